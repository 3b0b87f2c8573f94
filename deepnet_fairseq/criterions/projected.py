"""Label-smoothed cross-entropy behind a projection to the vocabulary, without the logits of the whole batch.

The logits of a batch, their logarithms in float32 and the gradients of both are the largest tensors of a training step
where the vocabulary is large. Here a chunk of tokens at a time goes through the projection, and its gradient with
respect to features and weight is taken at once, as in Liger Kernel's fused linear cross-entropy (Hsu et al. 2024).

Shapes: N tokens, C width, V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BUDGET = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}  # bytes of float32 logits at a time: a cache, a busy GPU
FEWEST = 256  # tokens that make a matrix product worth its while
SCALE = 2.0**10  # keeps the gradient of unlikely words in the range of fp16 until the loss scale is known


class Losses(NamedTuple):
    """Sums over tokens: the loss to train on and -log p of the targets, both in nats.

    correct: how many targets were the likeliest word, None where that was not asked for.
    """

    loss: Tensor
    nll_loss: Tensor
    correct: Tensor | None


def label_smoothed_loss(
    features: Tensor, weight: Tensor, targets: Tensor, smoothing: float, chunk: int, count_correct: bool = False
) -> Losses:
    """fairseq's label-smoothed loss of the logits `features @ weight.T`, summed over tokens.

    features (N, C), weight (V, C), targets (N,) without padding; smoothing: epsilon; chunk: tokens at a time, 0 for a
    number that is fast; count_correct: is Losses.correct wanted? Differentiable once with respect to features and
    weight; where no gradient is wanted none is computed. With eps_i = epsilon / (V - 1) a token's loss is
    (1 - epsilon - eps_i) (-log p(target)) + eps_i sum_v -log p(v) (Szegedy et al. 2016, section 7, fairseq's variant).
    """
    device = features.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        features, weight = features.to(dtype), weight.to(dtype)
    chunk = chunk or max(FEWEST, BUDGET.get(device, BUDGET["cuda"]) // (4 * weight.size(0)))
    wanted = [torch.is_grad_enabled() and tensor.requires_grad for tensor in (features, weight)]
    return Losses(*_ProjectedLoss.apply(features, weight, targets, smoothing, chunk, count_correct, wanted))


class _ProjectedLoss(torch.autograd.Function):
    """Keeps the gradients of the sum, to be multiplied by the gradient that arrives."""

    @staticmethod
    def forward(ctx, features, weight, targets, smoothing, chunk, count_correct, wanted):
        with torch.autocast(features.device.type, enabled=False):
            total = _Total(features, weight, smoothing, count_correct, wanted)
            for x, y, of_x in total.rounds(targets, chunk):
                total.add(x, y, of_x)
        ctx.dtypes = features.dtype, weight.dtype
        ctx.save_for_backward(total.of_features, total.of_weight)
        ctx.mark_non_differentiable(total.nll_loss)
        return total.loss, total.nll_loss, total.correct

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, *_):
        kept = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        found = [None if tensor is None else (tensor * gradient).to(dtype) for tensor, dtype in kept]
        return *found, None, None, None, None, None


class _Total:
    """Loss and gradients, summed in float32 (float64 for float64) over the chunks seen so far."""

    def __init__(self, features: Tensor, weight: Tensor, smoothing: float, count_correct: bool, wanted: list[bool]):
        self.features, self.weight = features, weight
        self.dtype = torch.promote_types(features.dtype, torch.float32)
        self.each = smoothing / (weight.size(0) - 1)
        self.target = 1.0 - smoothing - self.each
        new = {"dtype": self.dtype, "device": features.device}
        self.loss, self.nll_loss = torch.zeros((), **new), torch.zeros((), **new)
        self.correct = torch.zeros((), dtype=torch.long, device=features.device) if count_correct else None
        self.of_features = torch.empty(features.shape, **new) if wanted[0] else None
        self.of_weight = torch.zeros(weight.shape, **new) if wanted[1] else None

    def rounds(self, targets: Tensor, chunk: int):
        """Features, targets (n, 1) and the place of the features' gradient (or None), n <= chunk tokens at a time."""
        number = max(1, math.ceil(len(targets) / chunk))
        places = [None] * number if self.of_features is None else self.of_features.tensor_split(number)
        return zip(self.features.tensor_split(number), targets.unsqueeze(1).tensor_split(number), places, strict=True)

    def add(self, x: Tensor, y: Tensor, of_x: Tensor | None) -> None:
        """One chunk; the gradient with respect to it is written to of_x."""
        lprobs = torch.log_softmax(x @ self.weight.t(), dim=-1, dtype=self.dtype)
        nll_loss = -lprobs.gather(1, y).sum()
        self.nll_loss += nll_loss
        self.loss += self.target * nll_loss
        if self.each:
            self.loss -= self.each * lprobs.sum()
        if self.correct is not None:
            self.correct += lprobs.argmax(1, keepdim=True).eq(y).sum()
        if of_x is not None or self.of_weight is not None:
            self._add_gradients(x, self._of_logits(lprobs, y), of_x)

    def _of_logits(self, lprobs: Tensor, y: Tensor) -> Tensor:
        """d loss / d logits = p - eps_i - (1 - eps - eps_i) [y], in place of lprobs."""
        gradient = lprobs.exp_()
        if self.each:
            gradient -= self.each
        return gradient.scatter_add_(1, y, gradient.new_full((), -self.target).expand_as(y))

    def _add_gradients(self, x: Tensor, of_logits: Tensor, of_x: Tensor | None) -> None:
        scale = SCALE if x.dtype == torch.float16 else 1.0
        narrow = of_logits if x.dtype == self.dtype else (of_logits * scale).to(x.dtype)
        if of_x is not None:
            of_x.copy_(narrow @ self.weight).div_(scale)
        if self.of_weight is None:
            return
        if x.is_cuda and x.dtype != self.dtype and torch.__version__ >= (2, 8):
            # half precision in, float32 out: fp16 would overflow at a frequent word
            self.of_weight.add_(torch.mm(narrow.t(), x, out_dtype=self.dtype), alpha=1 / scale)
        else:
            self.of_weight.addmm_(of_logits.t(), x.to(self.dtype))
