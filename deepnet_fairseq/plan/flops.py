"""Floating-point operations of a training update.

Counted are matrix products and attention, 2 for each multiplication and addition, as Kaplan et al. 2020 ("Scaling Laws
for Neural Language Models", table 1) and Narayanan et al. 2021 ("Efficient Large-Scale Language Model Training on GPU
Clusters", appendix) do: a matrix of n numbers costs 2n a token, attention to S keys 4 S C, causal or not. The backward
pass costs twice the forward pass; recomputed layers are one more forward pass of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from .setting import Setting
from .tracing import trace


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of the forward and backward passes.

    Of a target token and a source token with it: forward; attention, the part of it that grows with the length of
    sentences; train, forward and backward; recomputed. Of a whole update on all GPUs, recomputation included: step.
    """

    forward: float
    attention: float
    train: float
    recomputed: float
    step: float

    def as_dict(self) -> dict[str, float]:
        """For JSON, in operations."""
        return asdict(self)


def flops(setting: Setting) -> Flops:
    """Of the setting's model and batch, by the trace of its forward pass."""
    segments, tokens = trace(setting), setting.max_tokens
    forward = sum(segment.flops for segment in segments)
    attention = sum(segment.attention for segment in segments)
    recomputed = sum(segment.flops for segment in segments if segment.recomputed)
    step = (3 * forward + recomputed) * setting.update_freq * setting.gpus
    return Flops(forward / tokens, attention / tokens, 3 * forward / tokens, recomputed / tokens, step)
