"""Describe a training in the first line of its log."""

from __future__ import annotations

import torch

from .. import threads
from ..core.models import DeepModel
from ..wording import counted
from .probe_record import FILE as PROBES_FILE


def opening_line(trainer) -> str:
    """Name the method, depth, coefficients, parameters and precision of a DeepTrainer's run, and its output files.

    The line reads "deepnorm 18L-18L; encoder alpha 2.6, beta 0.2; ...; 1,000 parameters; fp32; checkpoints in DIR", for
    example. A model of another package has no method, depth or coefficients here. On a CPU the line also names the
    threads.
    """
    cfg = trainer.cfg
    model = trainer.get_model()
    parts = []
    if isinstance(model, DeepModel):
        method = model.method
        stacks = model.stacks()
        depths = "-".join(f"{method.depth(stack)}L" for stack in stacks)
        parts.append(f"{method.name} {depths}")
        for stack in stacks:
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in method.coefficients(stack).items())
            if numbers:
                parts.append(f"{stack} {numbers}")

    number_of_parameters = sum(parameter.numel() for parameter in model.parameters())
    parts.append(f"{number_of_parameters:,} parameters")
    precision = next((kind for kind in ("fp16", "bf16", "amp") if getattr(cfg.common, kind)), "fp32")
    parts.append(precision)
    if trainer.device.type == "cpu":
        parts.append(describe_threads(cfg.model))

    places = {  # what is written -> its file or folder, None if it is not
        "checkpoints": None if cfg.checkpoint.no_save else cfg.checkpoint.save_dir,
        "log": cfg.common.log_file,
        "TensorBoard": cfg.common.tensorboard_logdir,
        "wandb": cfg.common.wandb_project,
        "probes": trainer.probes and trainer.probes.folder / PROBES_FILE,
    }
    parts += [f"{what} in {place}" for what, place in places.items() if place]
    return "; ".join(parts)


def describe_threads(model_config) -> str:
    """Say on how many of the cores torch computes, and what chose its number of threads, if that is known.

    model_config: the model section of fairseq's config, which has the widths.
    """
    number = torch.get_num_threads()
    cores = threads.available_cores()
    reason = threads.from_environment()
    if reason is None and number == threads.torch_threads.chosen:  # this package has set it
        reason = f"by width {threads.width_of(model_config)}; OMP_NUM_THREADS chooses another number"
    text = f"{counted(number, 'thread')} on {counted(cores, 'core')}"
    return f"{text} ({reason})" if reason else text
