"""How much memory a training update takes, and when it takes most.

The update is followed as fairseq's Trainer runs it: the forward pass adds what each segment of the model holds; the
backward pass frees it from the end, while gradients arrive; the optimiser then adds its temporaries. Adam's moments
are there from the second update on, and the gradients from the second batch of an update with --update-freq.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

from .. import archs
from .parameters import Parameters, count
from .precision import MOMENTS
from .setting import Setting
from .tape import Segment
from .tracing import grouped, trace

# What Python and autograd need for the modules, tensors and graph nodes around one parameter, in the memory of the CPU.
# Measured: resident memory at the peak, less all tensors, of 758 to 21,002 parameters, recomputed and not.
OBJECTS = 14_000

GATHERED = 2  # layers whose weights a fully sharded model holds whole: the one at work, and the next
WIDEST = 4  # no group is tried that is wider than twice the square root of the depth
NEAR = 1.01  # peaks as good as the lowest


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU, or of a process on the CPU.

    optimiser: what it keeps between updates; buckets: the copy of the gradients that pytorch_ddp sends; activations:
    what all segments but the loss hold at the end of the forward pass; recomputed: what the largest of them adds in its
    backward pass; loss: what the loss holds, and its temporaries; step: temporaries of the optimiser's update; objects:
    Python's, on the CPU; peak: the most at a time, which is in `phase` "forward", "backward" or "optimiser".
    """

    weights: int
    gradients: int
    optimiser: int
    buckets: int
    activations: int
    recomputed: int
    loss: int
    step: int
    objects: int
    peak: int
    phase: str

    def as_dict(self) -> dict:
        """For JSON, in bytes."""
        return asdict(self)


def memory(setting: Setting) -> Memory:
    """What one update of the setting takes, from the second on."""
    return follow(setting, count(setting), trace(setting))


def follow(setting: Setting, parameters: Parameters, segments: list[Segment]) -> Memory:
    """The same, from the model's parameters and the segments of its forward pass."""
    *body, loss = segments
    fully = setting.sharding == "fully_sharded"
    shards = setting.gpus if fully else 1
    whole = max(segment.gradients for segment in segments) if fully else 0  # bytes of one layer's weights, gathered
    weights = math.ceil(parameters.weight_bytes / shards) + GATHERED * whole
    gradients = math.ceil(sum(segment.gradients for segment in segments) / shards)
    optimiser, step = _optimiser(setting, parameters)
    buckets = gradients if setting.gpus > 1 and not fully else 0
    objects = OBJECTS * parameters.tensors if setting.device.name == "cpu" else 0
    base = weights + optimiser + buckets + objects
    waiting = gradients if setting.update_freq > 1 else 0
    phases = {
        "forward": base + waiting + sum(segment.held_bytes for segment in segments) + loss.forward_working,
        "backward": base + whole + _backward(segments, waiting, shards),
        "optimiser": base + gradients + step,
    }
    phase = max(phases, key=phases.__getitem__)
    return Memory(
        weights=weights,
        gradients=gradients,
        optimiser=optimiser,
        buckets=buckets,
        activations=sum(segment.held_bytes for segment in body),
        recomputed=max(segment.redone_bytes for segment in body),
        loss=loss.held_bytes + max(loss.working, loss.forward_working),
        step=step,
        objects=objects,
        peak=phases[phase],
        phase=phase,
    )


def _optimiser(setting: Setting, parameters: Parameters) -> tuple[int, int]:
    """Bytes kept between updates, and bytes of an update's temporaries.

    Sharded, each GPU has its part of moments and float32 weights.
    """
    adam, precision = setting.optimizer, setting.precision
    parts = 1 if setting.sharding == "none" else setting.gpus
    held = math.ceil(parameters.trainable * (MOMENTS + adam.kept(precision)) / parts)
    held += adam.buffer(setting.device.name, parameters.trainable)
    return held, adam.step(precision, parameters.trainable, parameters.largest)


def _backward(segments: list[Segment], waiting: int, shards: int) -> int:
    """Most bytes at a time in the backward pass.

    waiting: of the gradients that are there from its start; shards: of each gradient one stays.
    """
    held, arrived, most = sum(segment.held_bytes for segment in segments), 0, 0
    for segment in reversed(segments):
        rest = held - segment.held_bytes
        start = held + segment.redone_bytes + max(waiting, arrived)
        arrived += segment.gradients // shards
        end = rest + max(waiting, arrived)
        most = max(most, start + segment.working, end + segment.working)
        held = rest
    return most


def best_group(setting: Setting) -> int:
    """The k of --checkpoint-every with the lowest peak; of those within 1% of it the one with the fewest activations.

    A stack of L layers keeps L / k inputs, C numbers a token each, and recomputes k layers of A numbers a token. That
    is least at k = sqrt(L C / A), whatever the batch. The peak may lie elsewhere: at the loss, when nothing is
    recomputed yet and only the inputs count; or at the end of the backward pass, when gradients have come and inputs
    gone, and k = 1 is best.
    """
    parameters, segments = count(setting), trace(replace(setting, checkpoint_every=1))
    depth = max(archs.depths(setting.cfg))
    found = {
        k: follow(setting, parameters, grouped(segments, k)) for k in range(1, depth + 1) if k * k <= WIDEST * depth
    }
    lowest = min(plan.peak for plan in found.values())
    near = [k for k in found if found[k].peak <= NEAR * lowest]
    return min(near, key=lambda k: found[k].activations + found[k].recomputed)
