"""How long an update and a training take at a rate that was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from .flops import Flops
from .setting import Setting

TERA = 1e12


@dataclass(frozen=True)
class Speed:
    """How fast a training is.

    rate: floating-point operations a second that one GPU achieves in training; step: seconds of an update;
    tokens_per_second: target tokens, of all GPUs; updates, hours: of the whole training, None where nobody asked.
    """

    rate: float
    step: float
    tokens_per_second: float
    updates: int | None = None
    hours: float | None = None

    def as_dict(self) -> dict:
        """For JSON; FLOP/s, seconds, hours."""
        return asdict(self)


def speed(setting: Setting, work: Flops, rate: float, updates: int | None = None) -> Speed:
    """Of the setting whose operations are `work`, at `rate` FLOP/s on each of its GPUs.

    Exchange of gradients is in the rate or left out.
    """
    step = work.step / (rate * setting.gpus)
    hours = None if updates is None else updates * step / 3600
    return Speed(rate, step, setting.batch / step, updates, hours)


def updates_of(setting: Setting, epochs: float, corpus_tokens: int) -> int:
    """Updates that `epochs` of a corpus of so many target tokens take; batches are taken as full."""
    return max(1, round(epochs * corpus_tokens / setting.batch))
