"""A training that was stable and begins to grow: the log says so, with the layer, before the numbers end.

Each number is compared with its own history alone, by medians and median absolute deviations (Hampel 1974), which one
batch does not move: the gradient's norm and the loss of each update, which are on the host, and means of BLOCK updates,
for what grows slowly. An alarm is a warning and no more: weights and random numbers are as without. Where the layers
are ours, they are looked at every --watch-interval updates and in the one after an alarm.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections import deque

from torch import nn

from ...core.models import DeepModel
from ...core.probes.gradient_norm import GradientNorm
from ...core.probes.ln_input import LNInput
from ...core.probes.session import Session
from ..distributed import agreement
from ..optimisers.half_precision import gradient_scale

SPREADS = 3.0  # so many robust standard deviations above the median, at least
FLOOR = 0.01  # smallest of those, of a logarithm: numbers of which half are equal have none
SHARE = 0.8  # of the last numbers are that high
GROWTH = {"gradient norm": 2.0, "loss": 1.05}  # factor over the median, at least
FAST = 8.0  # factor at which few numbers are enough
BLOCK, ENOUGH = 25, 100  # updates
SKIPPED = 4  # of half precision, in a row; a scale that fits is left by one at a time
LOOKS = 8  # at the layers, that one is compared with
logger = logging.getLogger(__name__)


class History:
    """One positive number, compared with what it was.

    factor: the least growth that counts; window: how many earlier numbers give median and spread, at least `enough`;
    gap: so many of the newest are not among them, or what grows slowly would soon be its own measure; last: of these so
    many are set beside them; few: how many will do if they are FAST times the median.
    """

    def __init__(self, factor: float, window: int, enough: int, gap: int, last: int, few: int):
        self.least, self.enough, self.last, self.few = math.log(factor), enough, last, few
        self.recent: deque[float] = deque(maxlen=gap)
        self.before: deque[float] = deque(maxlen=window)
        self.middle = self.spread = math.nan
        self.age = 0

    def told(self, value: float) -> float | None:
        """The next number; its growth, as a factor of the median before, if that is an alarm. Then it starts anew."""
        if not 0 < value < math.inf:
            return None
        if len(self.recent) == self.recent.maxlen:
            self.before.append(self.recent[0])
            if self.age % self.few == 0:  # the sorting is what this costs
                self.middle = statistics.median(self.before)
                deviation = statistics.median(abs(one - self.middle) for one in self.before)
                self.spread = max(1.4826 * deviation, FLOOR)
            self.age += 1
        self.recent.append(math.log(value))
        if len(self.before) < self.enough:
            return None
        last = list(self.recent)[-self.last :]
        grown = sorted(last)[round((1 - SHARE) * self.last)] - self.middle
        fast = min(last[-self.few :]) - self.middle
        high = SPREADS * self.spread
        if grown < max(self.least, high) and fast < max(math.log(FAST), high):
            return None
        self.before.clear()
        self.recent.clear()
        self.age = 0
        return math.exp(max(grown, fast))


class Growth:
    """All numbers of a training, at both time scales. Costs some microseconds an update."""

    def __init__(self):
        self.single = {name: of_updates(name) for name in GROWTH}
        self.blocks = {name: of_blocks(name) for name in GROWTH}
        self.block: list[dict[str, float]] = []

    def told(self, numbers: dict[str, float]) -> str | None:
        """Those of an update, by GROWTH; what has grown, in words, if that is an alarm."""
        self.block.append(numbers)
        alarm = _said(self.single, numbers, "updates")
        if len(self.block) == BLOCK:
            means = {name: sum(one[name] for one in self.block) / BLOCK for name in numbers}
            self.block = []
            alarm = _said(self.blocks, means, f"blocks of {BLOCK} updates") or alarm
        return alarm


def of_updates(name: str) -> History:
    """For numbers of one update each."""
    return History(GROWTH[name], window=200, enough=ENOUGH, gap=50, last=10, few=3)


def of_blocks(name: str) -> History:
    """For means over some updates, as rows of a log are."""
    return History(GROWTH[name], window=20, enough=6, gap=2, last=2, few=2)


def _said(histories: dict[str, History], numbers: dict[str, float], unit: str) -> str | None:
    growth = {name: history.told(numbers[name]) for name, history in histories.items()}
    said = [f"the {name} is {grown:.3g} times its median" for name, grown in growth.items() if grown]
    return f"{' and '.join(said)} of the {unit} before" if said else None


class LocalInput(LNInput):
    """Of this rank's batches: the ranks need not meet for it."""

    def values(self) -> dict[str, float]:
        return {address: float(total / count) for address, (count, total) in self.sums.items() if count}


class Layers:
    """Gradient norm of each layer and what each LayerNorm reads, in a few updates of a training.

    model: the bare model; hooks: may its LayerNorms be looked at?
    """

    def __init__(self, model: nn.Module, hooks: bool):
        self.session = Session(model, [GradientNorm, LocalInput] if hooks else [GradientNorm])
        self.looks: deque[dict[str, dict[str, float]]] = deque(maxlen=LOOKS)

    def grown(self, values: dict[str, dict[str, float]]) -> str:
        """Where these are largest beside the median of the looks before, in words."""
        found = []
        for probe, words in ((GradientNorm.name, "gradient norm"), (LocalInput.name, "LayerNorm's input")):
            growth = {
                address: value / before
                for address, value in values.get(probe, {}).items()
                if len(address.split(".")) == (2 if probe == GradientNorm.name else 3)
                and (before := statistics.median(look[probe].get(address, 0.0) for look in self.looks))
            }
            if growth:
                address = max(growth, key=growth.__getitem__)
                found.append(f"the {words} of {address} ({growth[address]:.3g} times)")
        return " and ".join(found)


class LateWatch:
    """A training's Growth and Layers. interval: updates from one look to the next, 0 for no watch at all."""

    def __init__(self, trainer):
        cfg = trainer.cfg
        interval = getattr(cfg.model, "watch_interval", 100)
        self.interval = max(interval, cfg.common.log_interval) if interval else 0  # a look waits for the device
        self.growth, self.layers, self.update = Growth(), None, 0
        self.alarms: list[int] = []  # their updates
        self.wanted = False  # a look after an alarm
        self.hooks = True

    def begin(self, trainer) -> None:
        """Of an update: is it looked at?"""
        made = trainer.get_num_updates()
        if self.layers is None and isinstance(trainer.get_model(), DeepModel):
            self.layers = Layers(trainer.get_model(), self.hooks)
        if self.layers and (self.wanted or (made and made % self.interval == 0)):
            self.layers.session.begin()

    def end(self, trainer) -> None:
        """Of an update that was made, or was not."""
        watch = trainer.watch
        made = watch.made[-1] if watch.made else None
        watching = self.layers is not None and bool(self.layers.session.watching)
        if made is None or made["update"] == self.update or made["gnorm"] is None:
            if watch.skipped == SKIPPED and self.update >= ENOUGH:
                self._warn(f"half precision has skipped {SKIPPED} updates in a row")
            return
        self.update = made["update"]
        if watching:
            self._look()
        if said := self.growth.told({"gradient norm": float(made["gnorm"]), "loss": made["loss"]}):
            self._warn(said)

    def set_back(self, update: int) -> None:
        """To be told that the weights are those after `update` again."""
        self.growth, self.wanted, self.update = Growth(), False, update
        if self.layers:
            self.layers.looks.clear()

    def _warn(self, said: str) -> None:
        self.alarms.append(self.update)
        self.growth, self.wanted = Growth(), True
        _say(f"growing at update {self.update}: {said}; a lower --lr, --clip-norm, or an older checkpoint")

    def _look(self) -> None:
        values = self.layers.session.values()
        if not self.wanted:
            self.layers.looks.append(values)
        elif self.layers.looks and (where := self.layers.grown(values)):
            _say(f"growing most at update {self.update}: {where}, beside the looks before")
        self.wanted = False


def _say(line: str) -> None:
    if agreement.is_first():
        logger.warning(line)


def begin_watch(original, trainer, cfg, *args, **kwargs):
    """A trainer has a LateWatch."""
    original(trainer, cfg, *args, **kwargs)
    trainer.late = LateWatch(trainer)


def watch_growth(original, trainer, samples, *args, **kwargs):
    """Around one update, and what is known of it."""
    late = trainer.late
    if not late.interval:
        return original(trainer, samples, *args, **kwargs)
    late.begin(trainer)
    try:
        logged = original(trainer, samples, *args, **kwargs)
        late.end(trainer)
        return logged
    finally:
        if late.layers:
            late.layers.session.end()


def look_at_gradients(original, trainer, clip_norm):
    """Before they are clipped."""
    layers = trainer.late.layers
    if layers and layers.session.watching:
        layers.session.gradients(gradient_scale(trainer.optimizer))
    return original(trainer, clip_norm)
