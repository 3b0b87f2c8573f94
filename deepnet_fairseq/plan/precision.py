"""Bytes a parameter takes beside its weight and its gradient, by precision and optimiser."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..optim.flat import CHUNK
from .tape import FLOAT32

MOMENTS = 2 * FLOAT32  # Adam's, of a parameter


@dataclass(frozen=True)
class Precision:
    """One of fairseq-train's ways to compute.

    dtype: of weights, activations and gradients; master: has the optimiser weights in float32 of its own?; flattened:
    are they one tensor for fairseq's adam?; flags: of fairseq-train.
    """

    name: str
    dtype: torch.dtype
    master: bool
    flattened: bool
    flags: str

    @property
    def itemsize(self) -> int:
        """Bytes of a weight, an activation or a gradient."""
        return self.dtype.itemsize

    @property
    def memory_efficient(self) -> bool:
        """Half precision without a master copy."""
        return self.itemsize < FLOAT32 and not self.master


PRECISIONS = {
    precision.name: precision
    for precision in (
        Precision("fp32", torch.float32, False, False, ""),
        Precision("fp16", torch.float16, True, True, "--fp16"),
        Precision("bf16", torch.bfloat16, True, False, "--bf16"),
        Precision("memory-efficient-fp16", torch.float16, False, False, "--fp16 --memory-efficient-fp16"),
        Precision("memory-efficient-bf16", torch.bfloat16, False, False, "--bf16 --memory-efficient-bf16"),
    )
}


class Adam:
    """fairseq's `--optimizer adam` under its Trainer (optim/adam.py, optim/fp16_optimizer.py)."""

    name = "adam"

    @staticmethod
    def kept(precision: Precision) -> int:
        """Bytes a parameter that stay from one update to the next, beside the moments: master weight and gradient."""
        return 2 * FLOAT32 if precision.master else 0

    @staticmethod
    def buffer(device: str, parameters: int) -> int:
        """Bytes that stay whatever the precision."""
        return 0

    @staticmethod
    def step(precision: Precision, parameters: int, largest: int) -> int:
        """Temporary bytes of an update, of one tensor at a time.

        They are the root of the second moment and, where the weights are in half precision, these and their gradient in
        float32.
        """
        copies = 3 if precision.memory_efficient else 1
        return copies * FLOAT32 * (parameters if precision.flattened else largest)


class DeepnetAdam:
    """`--optimizer deepnet_adam` (optim/flat.py); the methods are Adam's.

    Gradients are copied into float32 piece by piece, so an update has no temporaries of its own.
    """

    name = "deepnet_adam"

    @staticmethod
    def kept(precision: Precision) -> int:
        return FLOAT32 if precision.master else 0

    @staticmethod
    def buffer(device: str, parameters: int) -> int:
        return FLOAT32 * min(parameters, CHUNK[device])

    @staticmethod
    def step(precision: Precision, parameters: int, largest: int) -> int:
        return 0


OPTIMIZERS = {optimizer.name: optimizer for optimizer in (Adam, DeepnetAdam)}
