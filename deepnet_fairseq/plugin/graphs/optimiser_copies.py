"""Two graphs for deepnet_adam in half precision, for the copies between the model's tensors and Adam's in float32.

One copies the gradients to float32 and computes their norm, the other copies the updated weights to half precision.
Without a graph Python builds lists of all parameters for each copy, and a model of 500 encoder and 500 decoder layers
has 21,000.
"""

from __future__ import annotations

from typing import Any

from .capture import Device
from .gradients import GradientBuffers


class OptimiserCopies:
    """The graphs that replace the copies of a HalfPrecisionOptimizer (deepnet_adam.py), and the norm of its gradients.

    norm: tensor () that a replay of `gradients` fills; buffers: the `grad` of the model's parameters.
    """

    def __init__(self, optimizer: Any, device: Device, buffers: GradientBuffers):
        """Capture both graphs; `use` lets the optimiser replay them."""
        self.optimizer = optimizer
        self.buffers = buffers
        optimizer.prepare_gradients()  # makes the float32 gradients, to whose addresses the graph copies
        copy_gradients = optimizer.copy_gradients  # as they are now: `use` replaces them
        compute_norm = optimizer.fp32_optimizer.norm
        self.norm = compute_norm()

        def gradients_with_norm() -> None:
            """Copy the gradients to float32 and compute their norm."""
            copy_gradients()
            self.norm.copy_(compute_norm())

        self.gradients = device.graph()
        self.gradients.capture(gradients_with_norm)
        self.weights = device.graph()
        self.weights.capture(optimizer.copy_weights)

    def use(self) -> None:
        """Replace the optimiser's copies and its norm by the graphs.

        From now on the gradients are set to 0 between updates instead of being dropped, because the graph reads them at
        a fixed address.
        """
        # replaces the methods of these two objects alone, so that other trainings in the process stay as they are
        self.optimizer.copy_gradients = self.gradients.replay
        self.optimizer.copy_weights = self.weights.replay
        self.optimizer.drop_gradients = self.buffers.zero
        self.optimizer.fp32_optimizer.norm = lambda: self.norm


def capture_copies(optimizer: Any, device: Device, buffers: GradientBuffers) -> OptimiserCopies | None:
    """Capture the graphs for the copies of an optimiser; None for one that is no HalfPrecisionOptimizer."""
    if not hasattr(optimizer, "copy_gradients"):  # a method that only HalfPrecisionOptimizer has
        return None
    return OptimiserCopies(optimizer, device, buffers)
