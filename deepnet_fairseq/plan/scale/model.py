"""What a simulation needs of a model: its segments at some sizes of batch, and their seconds on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...errors import UserError
from ..memory import Memory, follow
from ..parameters import count
from ..setting import SHARDED, Setting
from ..tape import Segment
from ..tracing import trace
from .hardware import Hardware
from .measured import Measured
from .timeline import Step

MOVED = 28  # bytes that Adam moves for a parameter in float32: reads weight, gradient, moments; writes all but one


@dataclass
class Model:
    """A setting on any number of GPUs; traces are kept, for they differ in the tokens of a batch alone.

    UserError for a model of one stack, of which nothing was measured.
    """

    given: Setting

    def __post_init__(self):
        if len(self.given.stacks) == 1:
            raise UserError(
                f"--arch {self.given.cfg.arch}: what a GPU's host, the loader and the saves take was measured of "
                "encoder-decoders; `deepnet plan` says what a language model needs"
            )
        self._traces: dict[tuple[int, int], list[Segment]] = {}

    @cached_property
    def parameters(self):
        """Counted once, for all settings of the model."""
        return count(self.given)

    @property
    def graphed(self) -> bool:
        """Are the layers replayed from CUDA graphs, so that the host launches nothing layer by layer?"""
        return bool(getattr(self.given.cfg, "cuda_graphs", False))

    def segments(self, setting: Setting) -> list[Segment]:
        """Of a forward pass over the setting's batch, as trace() gives them."""
        key = setting.max_tokens, setting.checkpoint_every
        if key not in self._traces:
            self._traces[key] = trace(setting)
        return self._traces[key]

    def memory(self, setting: Setting) -> Memory:
        """Bytes on each GPU of the setting."""
        return follow(setting, self.parameters, self.segments(setting))

    def on(self, gpus: int, sharding: str, max_tokens: int, update_freq: int, recomputed: bool) -> Setting:
        """The setting on `gpus` GPUs; UserError where flags do not go together."""
        every = (self.given.checkpoint_every or 1) if recomputed else 0
        optimizer = SHARDED.get(sharding, self.given.optimizer)
        shards: dict[str, Any] = {"gpus": gpus, "sharding": sharding, "optimizer": optimizer}
        batch: dict[str, Any] = {"max_tokens": max_tokens, "update_freq": update_freq}
        return replace(self.given, checkpoint_every=every, **shards, **batch)


@dataclass(frozen=True)
class Pace:
    """Seconds of segments on some hardware that reaches `efficiency` of its peak.

    The host's are as measured, none under CUDA graphs.
    """

    hardware: Hardware
    measured: Measured
    efficiency: float
    graphed: bool = False

    def forward(self, setting: Setting, segment: Segment) -> Step:
        """Operations at the efficiency's share of the peak; the host's part as measured, a layer at a time."""
        return Step(self._device(setting, segment.flops), self._host(setting, segment, "forward"))

    def backward(self, setting: Setting, segment: Segment) -> Step:
        """Twice the forward pass, which comes once more first where the segment is recomputed."""
        again = self.forward(setting, segment) if segment.recomputed else Step(0.0)
        device = 2 * self._device(setting, segment.flops)
        return Step(again.device + device, again.host + self._host(setting, segment, "backward"))

    def optimiser(self, setting: Setting, parameters: int) -> Step:
        """Adam's update of so many parameters: as fast as memory can be read and written."""
        half = 2 * setting.precision.itemsize * (setting.precision.itemsize < 4)  # gradients read, weights written
        return Step(parameters * (MOVED + half) / self.hardware.bandwidth)

    def _device(self, setting: Setting, flops: float) -> float:
        return flops / (self.efficiency * self.hardware.peak(setting.precision.itemsize))

    def _host(self, setting: Setting, segment: Segment, way: str) -> float:
        stack, _, what = segment.name.partition(" ")
        if self.graphed or what != "layers":
            return 0.0
        nearest = self.measured.width(getattr(setting.cfg, f"{stack}_embed_dim"))
        width = self.measured.dispatch if self.hardware.asynchronous else nearest
        return getattr(getattr(width, stack), f"{way}_host") * segment.layers
