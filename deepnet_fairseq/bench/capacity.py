"""What fits into memory: whether all candidates live side by side, and an error instead of a killed process."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from .settings import Settings, Shape

STATE = {"fp32": 16, "bf16": 20, "fp16": 20}  # bytes a parameter: weights, gradients, Adam's moments, fp32 copies
ACTIVATIONS = 100  # bytes per channel, layer and token that stock fairseq keeps in fp32 (500L-500L: 84)
SHARE = 0.7  # of the free memory that may be planned with


def side_by_side(candidates: int, shape: Shape, settings: Settings) -> bool:
    """Do so many fit at a time? Each has its training state, one at a time its activations."""
    state = candidates * parameters(shape, settings.vocabulary) * STATE[settings.precision]
    activations = settings.max_tokens * (shape.N + 2 * shape.M) * shape.size.embed_dim * ACTIVATIONS
    return state + activations < SHARE * free_memory(settings.torch_device)


def parameters(shape: Shape, vocabulary: int) -> int:
    """Numbers in the matrices of an encoder-decoder with one embedding; biases and LayerNorms are left out."""
    d, ffn = shape.size.embed_dim, shape.size.ffn_embed_dim
    return shape.N * (4 * d * d + 2 * d * ffn) + shape.M * (8 * d * d + 2 * d * ffn) + vocabulary * d


def free_memory(device: torch.device) -> int:
    """Bytes that nobody uses: of the GPU, or of this machine as the kernel counts them."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info()[0]
    return kilobytes("/proc/meminfo", "MemAvailable") * 1024


@contextmanager
def limited(device: torch.device) -> Iterator[None]:
    """On a CPU, an allocation beyond the memory that is free now fails, and the kernel kills nobody."""
    if device.type == "cuda":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = kilobytes("/proc/self/status", "VmData") * 1024 + free_memory(device)
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def kilobytes(path: str, key: str) -> int:
    """The number behind `key` in a file of lines `KEY: NUMBER kB`, as of /proc; LookupError if there is none."""
    for line in Path(path).read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise LookupError(f"{path} has no {key}")
