"""Two graphs for deepnet_adam in half precision, for the copies between the model's tensors and Adam's in float32.

One copies the gradients to float32 and computes their norm, the other copies the updated weights to half precision.
Without a graph Python builds lists of all parameters for each copy, and a model of 500 encoder and 500 decoder layers
has 21,000.
"""

from __future__ import annotations

from typing import Any

from .capture import Device
from .gradients import GradientBuffers


def replace_copies_by_graphs(optimizer: Any, device: Device, buffers: GradientBuffers) -> bool:
    """Replace the copies of a HalfPrecisionOptimizer (deepnet_adam.py), and the norm of its gradients, by graphs.

    Returns True; for another optimiser changes nothing and returns False. buffers: the `grad` of the model's
    parameters. From now on they are set to 0 between updates instead of being dropped, because the graph reads them at
    a fixed address.
    """
    if not hasattr(optimizer, "copy_gradients"):  # a method that only HalfPrecisionOptimizer has
        return False
    adam = optimizer.fp32_optimizer
    optimizer.prepare_gradients()  # makes the float32 gradients, to whose addresses the graph copies
    copy_gradients = optimizer.copy_gradients
    compute_norm = adam.norm
    norm = compute_norm()  # the tensor of shape () that each replay fills

    def gradients_with_norm() -> None:
        """Copy the gradients to float32 and compute their norm."""
        copy_gradients()
        norm.copy_(compute_norm())

    gradients_graph = device.graph()
    gradients_graph.capture(gradients_with_norm)
    weights_graph = device.graph()
    weights_graph.capture(optimizer.copy_weights)

    # replaces the methods of these two objects alone, so that other trainings in the process stay as they are
    optimizer.copy_gradients = gradients_graph.replay
    optimizer.copy_weights = weights_graph.replay
    optimizer.drop_gradients = buffers.zero
    adam.norm = lambda: norm
    return True
