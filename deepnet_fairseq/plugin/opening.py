"""Describe a training in the first line of its log."""

from __future__ import annotations

from ..core.models import DeepModel
from ..core.modifiers import from_config
from .probe_record import FILE


def opening_line(trainer) -> str:
    """Name the method, depth, coefficients, parameters and precision of a DeepTrainer's run, and its output files.

    For another package's model only the parameters, the precision and the files are named.
    """
    cfg, model, parts = trainer.cfg, trainer.get_model(), []
    if isinstance(model, DeepModel):
        method, stacks = from_config(cfg.model), model.stacks()
        parts.append(f"{method.name} {'-'.join(f'{method.depth(stack)}L' for stack in stacks)}")
        for stack in stacks:
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in method.coefficients(stack).items())
            parts += [f"{stack} {numbers}"] if numbers else []
    parts.append(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    parts.append(next((kind for kind in ("fp16", "bf16", "amp") if getattr(cfg.common, kind)), "fp32"))
    places = {
        "checkpoints": None if cfg.checkpoint.no_save else cfg.checkpoint.save_dir,
        "log": cfg.common.log_file,
        "TensorBoard": cfg.common.tensorboard_logdir,
        "wandb": cfg.common.wandb_project,
        "probes": trainer.probes and trainer.probes.folder / FILE,
    }
    return "; ".join([*parts, *(f"{what} in {place}" for what, place in places.items() if place)])
