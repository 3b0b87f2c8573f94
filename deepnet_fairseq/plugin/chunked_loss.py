"""Label-smoothed loss of a projection to the vocabulary, a chunk of tokens at a time, in torch alone.

The logits of a batch, their logarithms in float32 and the gradients of both are the largest tensors of a training step
where the vocabulary is large. Here a chunk of tokens at a time goes through the projection, and its gradient with
respect to features and weight is taken at once, as in Liger Kernel's fused linear cross-entropy (Hsu et al. 2024).

Shapes: N tokens, C width, V vocabulary.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

PREFIX = "chunked_"  # of the criteria's names
NAME = f"{PREFIX}label_smoothed_cross_entropy"
PLAIN = f"{PREFIX}cross_entropy"
BUDGET = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}  # bytes of float32 logits at a time: a cache, a busy GPU
FEWEST = 256  # fewer tokens make an inefficient matrix product
SCALE = 2.0**10  # keeps the gradient of unlikely words in the range of fp16 until the loss scale is known


class Losses(NamedTuple):
    """Losses summed over tokens, in nats: the one to train on, and -log p of the targets."""

    loss: Tensor
    nll_loss: Tensor


def label_smoothed_loss(
    features: Tensor, weight: Tensor, targets: Tensor, smoothing: float, chunk: int, ignored: int | None = None
) -> Losses:
    """Compute fairseq's label-smoothed loss of the logits `features @ weight.T`, summed over tokens.

    features (N, C), weight (V, C), targets (N,); smoothing: epsilon; chunk: tokens at a time, 0 for a number that is
    fast; ignored: a target that counts for nothing, None if there is none. Differentiable once with respect to features
    and weight; where no gradient is wanted none is computed. With eps_i = epsilon / (V - 1) a token's loss is
    (1 - epsilon - eps_i) (-log p(target)) + eps_i sum_v -log p(v) (Szegedy et al. 2016, section 7, fairseq's variant).
    """
    device = features.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        features, weight = features.to(dtype), weight.to(dtype)
    chunk = chunk or max(FEWEST, BUDGET.get(device, BUDGET["cuda"]) // (4 * weight.size(0)))
    wanted = [torch.is_grad_enabled() and tensor.requires_grad for tensor in (features, weight)]
    return Losses(*_ProjectedLoss.apply(features, weight, targets, smoothing, chunk, wanted, ignored))


class _ProjectedLoss(torch.autograd.Function):
    """Autograd function that computes the gradients in the forward pass; backward multiplies them by the incoming one.

    Everything is summed in float32, or float64 for float64.
    """

    @staticmethod
    def forward(ctx, features, weight, targets, smoothing, chunk, wanted, ignored):
        new = {"dtype": torch.promote_types(features.dtype, torch.float32), "device": features.device}
        each = smoothing / (weight.size(0) - 1)
        of_target = 1.0 - smoothing - each
        loss, nll_loss = torch.zeros((), **new), torch.zeros((), **new)
        of_features = torch.empty(features.shape, **new) if wanted[0] else None
        of_weight = torch.zeros(weight.shape, **new) if wanted[1] else None
        number = max(1, math.ceil(len(targets) / chunk))
        parts = of_features.tensor_split(number) if wanted[0] else [None] * number
        chunks = zip(features.tensor_split(number), targets.unsqueeze(1).tensor_split(number), parts, strict=True)
        with torch.autocast(features.device.type, enabled=False):
            for x, y, of_x in chunks:
                lprobs = torch.log_softmax(x @ weight.t(), dim=-1, dtype=new["dtype"])
                if ignored is not None:
                    lprobs.masked_fill_(y.eq(ignored), 0.0)
                of_chunk = -lprobs.gather(1, y).sum()
                nll_loss += of_chunk
                loss += of_target * of_chunk
                if each:
                    loss -= each * lprobs.sum()
                if any(wanted):
                    of_logits = _of_logits(lprobs, y, each, of_target)
                    if ignored is not None:
                        of_logits.masked_fill_(y.eq(ignored), 0.0)
                    _add_gradients(x, weight, of_logits, of_x, of_weight)
        ctx.dtypes = features.dtype, weight.dtype
        ctx.save_for_backward(of_features, of_weight)
        ctx.mark_non_differentiable(nll_loss)
        return loss, nll_loss

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, *_):
        kept = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        gradients = [None if tensor is None else (tensor * gradient).to(dtype) for tensor, dtype in kept]
        return *gradients, None, None, None, None, None


def _of_logits(lprobs: Tensor, y: Tensor, each: float, of_target: float) -> Tensor:
    """Return d loss / d logits = p - eps_i - (1 - eps - eps_i) [y], in place of lprobs."""
    gradient = lprobs.exp_()
    if each:
        gradient -= each
    return gradient.scatter_add_(1, y, gradient.new_full((), -of_target).expand_as(y))


def _add_gradients(x: Tensor, weight: Tensor, of_logits: Tensor, of_x: Tensor | None, of_weight: Tensor | None) -> None:
    """Write a chunk's gradient with respect to its features to of_x, and add that of the weight to of_weight."""
    half = x.dtype != of_logits.dtype
    scale = SCALE if x.dtype == torch.float16 else 1.0
    narrow = (of_logits * scale).to(x.dtype) if half else of_logits
    if of_x is not None:
        of_x.copy_(narrow @ weight).div_(scale)
    if of_weight is None:
        return
    if x.is_cuda and half and torch.__version__ >= (2, 8):
        # half precision in, float32 out: fp16 would overflow at a frequent word
        of_weight.add_(torch.mm(narrow.t(), x, out_dtype=of_weight.dtype), alpha=1 / scale)
    else:
        of_weight.addmm_(of_logits.t(), x.to(of_weight.dtype))
