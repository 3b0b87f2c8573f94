"""What a checkpoint holds, how long saves stop the training, and how often to save."""

from __future__ import annotations

from dataclasses import dataclass

from ..precision import MOMENTS
from ..setting import Setting
from ..tape import FLOAT32
from . import failures
from .hardware import GIGA, Hardware
from .measured import Measured
from .model import Model

TO_HOST = 20 * GIGA  # bytes/s from a GPU's memory to the host's: PCIe 4.0 x16, as seen


@dataclass(frozen=True)
class Saves:
    """A way to save a checkpoint of `size` bytes.

    Seconds: stops: that a save stops the training; written: until the file is whole; interval: of training between two
    saves. lost: share of all time that goes into saves, work done again and restarts.
    """

    name: str
    size: int
    stops: float
    written: float
    interval: float
    lost: float


def size(model: Model) -> int:
    """Bytes of a whole checkpoint: the weights, those that Adam has in float32 beside them, its moments."""
    kept = MOMENTS + FLOAT32 * model.given.precision.master
    return model.parameters.weight_bytes + kept * model.parameters.trainable


def saves(model: Model, setting: Setting, hardware: Hardware, measured: Measured) -> list[Saves]:
    """Saved by one GPU's process, by all, and by all while the training goes on; best intervals by Daly's formula."""
    total, n = size(model), setting.gpus
    one = total / min(measured.write, hardware.storage)
    each = total / min(n * measured.write, hardware.storage)
    copied = min(each, total / n / TO_HOST)
    ways = [("by one process", one, one), ("by all processes", each, each), ("by all, in the background", copied, each)]
    mtbf = hardware.mtbf * 3600 / n
    reading = total / min(n * measured.read, hardware.storage)
    return [_plan(name, total, stops, written, hardware.restart + reading, mtbf) for name, stops, written in ways]


def _plan(name: str, total: int, stops: float, written: float, restart: float, mtbf: float) -> Saves:
    """A save in the background is of no use until it is whole: a failure loses so much more."""
    interval = max(failures.daly(stops, mtbf), written)
    share = failures.lost(interval, stops, restart + written - stops, mtbf)
    return Saves(name, total, stops, written, interval, share)
