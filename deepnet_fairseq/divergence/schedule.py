"""The learning rates of a run's config, all of them at once."""

from __future__ import annotations

from omegaconf import OmegaConf

from ..errors import UserError

SECTIONS = ("optimization", "lr_scheduler", "optimizer")
RATES = ("lr", "max_lr", "min_lr", "warmup_init_lr", "end_learning_rate")  # of fairseq's schedules and ours
UNSCALED = {
    "reduce_lr_on_plateau": "which goes on with the rate that a checkpoint holds",
    "manual": "whose rates are given update by update",
    "pass_through": "whose parts have rates of their own",
}


def scale(cfg, factor: float) -> None:
    """Every learning rate of `cfg` times `factor`; what is built from it then is the old schedule times `factor`.

    A negative rate is fairseq's word for "none given" and stays negative.
    """
    for section in SECTIONS:
        node = cfg.get(section)
        for key in RATES:
            if not OmegaConf.is_config(node) or key not in node or OmegaConf.is_interpolation(node, key):
                continue
            value = node[key]
            if value is not None:
                node[key] = [rate * factor for rate in value] if OmegaConf.is_list(value) else value * factor


def check(cfg) -> None:
    """UserError for a schedule that this cannot scale."""
    name = getattr(cfg.lr_scheduler, "_name", None)
    if name in UNSCALED:
        raise UserError(f"--rollbacks: not with --lr-scheduler {name}, {UNSCALED[name]}; take another or drop the flag")
