"""Describe a training in the first line of its log."""

from __future__ import annotations

import torch

from .. import threads
from ..core.models import DeepModel
from .probe_record import FILE


def opening_line(trainer) -> str:
    """Name the method, depth, coefficients, parameters and precision of a DeepTrainer's run, and its output files.

    For another package's model method, depth and coefficients are left out. On a CPU the threads are named.
    """
    cfg, model, parts = trainer.cfg, trainer.get_model(), []
    if isinstance(model, DeepModel):
        method, stacks = model.method, model.stacks()
        parts.append(f"{method.name} {'-'.join(f'{method.depth(stack)}L' for stack in stacks)}")
        for stack in stacks:
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in method.coefficients(stack).items())
            parts += [f"{stack} {numbers}"] if numbers else []
    parts.append(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    parts.append(next((kind for kind in ("fp16", "bf16", "amp") if getattr(cfg.common, kind)), "fp32"))
    if trainer.device.type == "cpu":
        parts.append(threads_of(cfg.model))
    places = {
        "checkpoints": None if cfg.checkpoint.no_save else cfg.checkpoint.save_dir,
        "log": cfg.common.log_file,
        "TensorBoard": cfg.common.tensorboard_logdir,
        "wandb": cfg.common.wandb_project,
        "probes": trainer.probes and trainer.probes.folder / FILE,
    }
    return "; ".join([*parts, *(f"{what} in {place}" for what, place in places.items() if place)])


def threads_of(model_config) -> str:
    """Say how many threads compute on how many cores, and what chose their number."""
    number, cores = torch.get_num_threads(), threads.available_cores()
    reason = threads.from_environment()
    if reason is None and number == threads.torch_threads.chosen:
        reason = f"by width {threads.width_of(model_config)}; OMP_NUM_THREADS chooses another number"
    text = f"{threads.counted(number)} on {cores} core{'s' * (cores > 1)}"
    return f"{text} ({reason})" if reason else text
