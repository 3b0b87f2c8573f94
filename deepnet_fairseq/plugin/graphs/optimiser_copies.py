"""Two graphs for an optimiser in half precision: gradients to float32 with their norm, and weights to half precision.

Each copy takes lists of all parameters, of which a model of 500 encoder and 500 decoder layers has 21,000.
"""

from __future__ import annotations

from typing import Any

from .capture import Device
from .gradients import GradientBuffers


def attach(optimizer: Any, device: Device, buffers: GradientBuffers) -> bool:
    """Replace the copies of deepnet_adam's optimiser for half precision by graphs; return False for other optimisers.

    buffers: the parameters' gradients, which are set to 0 between updates and not dropped any more.
    """
    if not hasattr(optimizer, "copy_gradients"):
        return False
    adam = optimizer.fp32_optimizer
    optimizer.prepare_gradients()
    copy_gradients = optimizer.copy_gradients
    compute_norm = adam.norm
    norm = compute_norm()

    def gradients_with_norm() -> None:
        copy_gradients()
        norm.copy_(compute_norm())

    gradients = device.graph()
    gradients.capture(gradients_with_norm)
    weights = device.graph()
    weights.capture(optimizer.copy_weights)

    # On the instance, so that the class and other trainings stay as they are.
    optimizer.copy_gradients = gradients.replay
    optimizer.copy_weights = weights.replay
    optimizer.drop_gradients = buffers.zero
    adam.norm = lambda: norm
    return True
