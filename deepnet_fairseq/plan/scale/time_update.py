"""Whole updates on this CPU: what the optimiser takes of them, and how the simulation compares."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from ...bench.clock import Clock
from ..flags import parse
from ..parameters import count
from ..setting import GIB, Setting
from ..trial import Trial
from .hardware import Hardware, Network
from .measured import Measured
from .model import MOVED, Model, Pace
from .modes import update

WARMUP = 2
DEPTHS = (("tiny", 6), ("tiny", 18), ("tiny", 50), ("tiny", 100), ("base", 2), ("base", 6))
FLAGS = ("--vocab", "1000", "--share-all-embeddings", "--max-tokens", "512", "--optimizer", "deepnet_adam", "--cpu")


@dataclass(frozen=True)
class Compared:
    """Seconds of an update of a model of N-N layers."""

    width: str
    depth: int
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """Predicted seconds by measured seconds."""
        return self.predicted / self.measured


def setting_of(width: str, depth: int) -> Setting:
    """An encoder-decoder of N-N layers at one of archs.WIDTHS on this CPU, 512 tokens a batch, with deepnet_adam."""
    stem = "deepnet_transformer" + ("" if width == "base" else f"_{width}")
    layers = [f"--{stack}-layers={depth}" for stack in ("encoder", "decoder")]
    return parse(["--arch", stem, *layers, *FLAGS])


def optimiser_seconds(turns: int) -> float:
    """Of an update of deepnet_adam, with the norm and the clipping of gradients, a parameter."""
    setting = setting_of("base", 2)
    trial = Trial(setting)
    clock = Clock(trial.trainer.device, "process")
    optimiser = trial.trainer.optimizer
    for owner, name in ((optimiser, "step"), (optimiser, "multiply_grads"), (trial.trainer, "clip_grad_norm")):
        clock.watch(owner, name, name)
    try:
        seconds = []
        for _ in range(WARMUP + turns):
            trial.step()
            seconds.append(sum(clock.read().values()))
    finally:
        trial.close()
    return statistics.median(seconds[WARMUP:]) / count(setting).trainable


def this_machine(measured: Measured) -> Hardware:
    """One thread of what `measured` was measured on; it waits for nothing and nobody."""
    network = Network(1, float("inf"), float("inf"))
    rate, bandwidth = measured.matmul, MOVED / measured.adam
    return Hardware("measured", rate, rate, GIB, bandwidth, network, "measured", asynchronous=False)


def predicted(measured: Measured, setting: Setting) -> float:
    """Seconds of an update on one thread."""
    share = measured.width(setting.cfg.encoder_embed_dim).share(measured.matmul)
    return update(Model(setting), setting, Pace(this_machine(measured), measured, share)).total


def compare(measured: Measured, width: str, depth: int, turns: int = 5) -> Compared:
    """The simulation beside the median update of fairseq's Trainer, in processor time."""
    setting = setting_of(width, depth)
    trial = Trial(setting)
    try:
        seconds = [_step(trial) for _ in range(WARMUP + turns)][WARMUP:]
    finally:
        trial.close()
    return Compared(width, depth, predicted(measured, setting), statistics.median(seconds))


def _step(trial: Trial) -> float:
    start = time.process_time()
    trial.step()
    return time.process_time() - start
