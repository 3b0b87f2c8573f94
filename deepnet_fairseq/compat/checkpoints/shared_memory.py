"""Tensors that are views of one memory are so in a checkpoint too.

fairseq moves each tensor of a checkpoint to the CPU by itself, half precision as float32. Parameters and Adam's state
under deepnet_adam are views of a few buffers: copied as such they take one transfer, and one entry of the file.
"""

from __future__ import annotations

from collections import Counter

import torch
from fairseq import utils
from torch import Tensor

from ...checkpoints import background

HALF = (torch.float16, torch.bfloat16)


def keep_views() -> None:
    """Replaces fairseq.utils.move_to_cpu, which moves each tensor by itself."""
    utils.move_to_cpu = move_to_cpu


def move_to_cpu(sample):
    """`sample`, nested containers of tensors, with every tensor on the CPU and those in half precision in float32.

    Float32 tensors that are on the CPU already are themselves, or copies for a save in the background.
    """
    used, moved, copied = Counter(), {}, background.holding()

    def count(tensor: Tensor) -> None:
        used[_memory(tensor)] += tensor.numel()

    def move(tensor: Tensor) -> Tensor:
        if tensor.device.type == "cpu" and tensor.dtype not in HALF and not copied:
            return tensor
        key = _memory(tensor)
        if key is None or used[key] * tensor.element_size() < tensor.untyped_storage().nbytes() / 2:
            return _plain(tensor)  # most of the memory is no part of the checkpoint
        if key not in moved:
            moved[key] = _plain(tensor.new_empty(0).set_(tensor.untyped_storage()))
        return moved[key].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    utils.apply_to_sample(count, sample)
    return utils.apply_to_sample(move, sample)


def _memory(tensor: Tensor) -> tuple | None:
    """What tensors that share memory have in common."""
    if tensor.layout != torch.strided or not tensor.numel():
        return None
    return tensor.untyped_storage().data_ptr(), tensor.dtype


def _plain(tensor: Tensor) -> Tensor:
    moved = tensor.detach().cpu()  # first, for a float32 copy of a whole buffer may not fit on the GPU
    if tensor.dtype in HALF:
        return moved.float()
    return moved.clone() if moved.data_ptr() == tensor.data_ptr() else moved
