"""How fast this machine multiplies matrices, and how many multiplications a training batch is."""

from __future__ import annotations

import torch
from torch import Tensor

from .clock import Clock
from .settings import Settings, Shape

REPEATS = 10
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def matmul_rate(settings: Settings) -> float:
    """Floating-point operations a second of one large product in the run's precision: the fastest of REPEATS."""
    device = settings.torch_device
    size = 8192 if device.type == "cuda" else 1024
    factors = [torch.randn(size, size, device=device).to(TYPES[settings.precision]) for _ in range(2)]
    clock = Clock(device, settings.clock)
    multiply = clock.watched(torch.mm, "product")
    seconds = []
    for _ in range(REPEATS):
        multiply(*factors)
        seconds.append(clock.read()["product"])
    return 2 * size**3 / min(seconds)


def training_flops(shape: Shape, vocabulary: int, batch: dict) -> float:
    """Floating-point operations in the matrix products of one update, without padding and recomputation.

    That is the work that any implementation does. Each weight is used twice a token forward (a product and a sum) and
    four times backward; so are the products of attention, over all pairs of positions, half of them in the decoder's
    causal self-attention.
    """
    net_input, pad = batch["net_input"], 1
    S = _lengths(net_input["src_tokens"], pad)
    T = _lengths(net_input["prev_output_tokens"], pad)
    d, ffn = shape.size.embed_dim, shape.size.ffn_embed_dim
    encoder = S * (4 * d * d + 2 * d * ffn) + 2 * S * S * d
    decoder = T * (6 * d * d + 2 * d * ffn) + T * T * d + S * 2 * d * d + 2 * S * T * d
    forward = shape.N * encoder + shape.M * decoder + T * d * vocabulary
    return 6 * forward.sum().item()


def _lengths(tokens: Tensor, pad: int) -> Tensor:
    """(B,) tokens of each sentence, in float64: their products overflow no integer."""
    return tokens.ne(pad).sum(dim=1).double().cpu()
