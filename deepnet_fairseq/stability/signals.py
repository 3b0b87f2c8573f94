"""Numbers that a verdict rests on, from what a short training saw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from ..probes.half_precision import LARGEST
from .observed import Observed


def profile(observed: Observed, stack: str) -> list[float]:
    """Gradient norm of each layer of `stack`, L2, the first layer first; empty if the update has none."""
    norms = observed.probes.get("gradient_norm", {})
    layers = sorted(
        int(a.split(".")[1])
        for a in norms
        if a.startswith(f"{stack}.") and a.split(".")[1:][0].isdigit() and a.count(".") == 1
    )
    return [norms[f"{stack}.{layer}"] for layer in layers]


def evenness(norms: list[float]) -> float:
    """Smallest over largest gradient norm of the layers: 1 where all learn alike, 0 where some get nothing.

    NaN for no layers and for norms that are not finite.
    """
    if not norms or not all(map(math.isfinite, norms)):
        return math.nan
    return min(norms) / max(norms) if max(norms) > 0 else 0.0


@dataclass(frozen=True)
class Headroom:
    """How much room fp16 has left.

    activation: largest absolute value in the forward passes; gradient: largest absolute value of that of the summed
    loss of one update, per unit of loss scale.
    """

    activation: float
    gradient: float

    @property
    def doublings(self) -> float:
        """How often the activations can double before fp16 overflows."""
        return math.log2(LARGEST / self.activation)

    @property
    def loss_scale(self) -> float:
        """The largest power of two as loss scale that keeps the gradients of the weights finite."""
        return 2.0 ** math.floor(math.log2(LARGEST / self.gradient))


def headroom(observed: list[Observed]) -> Headroom | None:
    """The least headroom of all updates; None where no update has finite numbers."""
    rows = [(o.probes["half_precision"], o.tokens) for o in observed if "half_precision" in o.probes]
    rows = [(row, tokens) for row, tokens in rows if all(map(math.isfinite, row.values())) and tokens]
    if not rows:
        return None
    activation = max(value for row, _ in rows for name, value in row.items() if name != "gradient")
    return Headroom(activation, max(row["gradient"] * tokens for row, tokens in rows))


def ln_input(observed: Observed, kind: str) -> float:
    """Mean norm of what the LayerNorms of one kind of branch read, over all stacks; NaN if the update has none.

    kind: "ffn" or "self_attn".
    """
    values = [
        v for a, v in observed.probes.get("ln_input", {}).items() if a.split(".")[-1] == kind and a.count(".") == 2
    ]
    return fmean(values) if values else math.nan
