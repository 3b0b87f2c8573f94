"""fairseq's cross_entropy and label_smoothed_cross_entropy in less memory, `--criterion chunked_...`.

The logits of a batch, their logarithms in float32 and the gradients of both are the largest tensors of a training step
where the vocabulary is large. Here a chunk of tokens at a time goes through the projection, and its gradient with
respect to features and weight is taken at once, as in Liger Kernel's fused linear cross-entropy (Hsu et al. 2024).

Shapes: N tokens, C width, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from fairseq.criterions import label_smoothed_cross_entropy as smoothed
from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import UserError
from .config import flag

PREFIX = "chunked_"
NAME = f"{PREFIX}label_smoothed_cross_entropy"
PLAIN = f"{PREFIX}cross_entropy"
HELP = "target tokens whose logits exist at a time; 0 for as many as are fast"
BUDGET = {"cpu": 16 * 2**20, "cuda": 256 * 2**20}  # bytes of float32 logits at a time: a cache, a busy GPU
FEWEST = 256  # tokens that make a matrix product worth its while
COUNT = "target_count"  # in a batch: targets that are not padding
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
    """Keeps the gradients of the sum, to be multiplied by the gradient that arrives.

    Everything is summed in float32, or float64 for float64.
    """

    @staticmethod
    def forward(ctx, features, weight, targets, smoothing, chunk, count_correct, wanted):
        new = {"dtype": torch.promote_types(features.dtype, torch.float32), "device": features.device}
        each = smoothing / (weight.size(0) - 1)
        of_target = 1.0 - smoothing - each
        loss, nll_loss = torch.zeros((), **new), torch.zeros((), **new)
        correct = torch.zeros((), dtype=torch.long, device=features.device) if count_correct else None
        of_features = torch.empty(features.shape, **new) if wanted[0] else None
        of_weight = torch.zeros(weight.shape, **new) if wanted[1] else None
        number = max(1, math.ceil(len(targets) / chunk))
        parts = of_features.tensor_split(number) if wanted[0] else [None] * number
        chunks = zip(features.tensor_split(number), targets.unsqueeze(1).tensor_split(number), parts, strict=True)
        with torch.autocast(features.device.type, enabled=False):
            for x, y, of_x in chunks:
                lprobs = torch.log_softmax(x @ weight.t(), dim=-1, dtype=new["dtype"])
                of_chunk = -lprobs.gather(1, y).sum()
                nll_loss += of_chunk
                loss += of_target * of_chunk
                if each:
                    loss -= each * lprobs.sum()
                if count_correct:
                    correct += lprobs.argmax(1, keepdim=True).eq(y).sum()
                if any(wanted):
                    _add_gradients(x, weight, _of_logits(lprobs, y, each, of_target), of_x, of_weight)
        ctx.dtypes = features.dtype, weight.dtype
        ctx.save_for_backward(of_features, of_weight)
        ctx.mark_non_differentiable(nll_loss)
        return loss, nll_loss, correct

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient, *_):
        kept = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        found = [None if tensor is None else (tensor * gradient).to(dtype) for tensor, dtype in kept]
        return *found, None, None, None, None, None


def _of_logits(lprobs: Tensor, y: Tensor, each: float, of_target: float) -> Tensor:
    """d loss / d logits = p - eps_i - (1 - eps - eps_i) [y], in place of lprobs."""
    gradient = lprobs.exp_()
    if each:
        gradient -= each
    return gradient.scatter_add_(1, y, gradient.new_full((), -of_target).expand_as(y))


def _add_gradients(x: Tensor, weight: Tensor, of_logits: Tensor, of_x: Tensor | None, of_weight: Tensor | None) -> None:
    """Writes a chunk's gradient with respect to its features to of_x, and adds that with respect to the weight."""
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


@dataclass
class ChunkedLabelSmoothedCrossEntropyConfig(smoothed.LabelSmoothedCrossEntropyCriterionConfig):
    """The flags of fairseq's label_smoothed_cross_entropy, and --loss-chunk-tokens."""

    loss_chunk_tokens: int = flag(0, HELP)


@dataclass
class ChunkedCrossEntropyConfig(CrossEntropyCriterionConfig):
    """The flags of fairseq's cross_entropy, and --loss-chunk-tokens."""

    loss_chunk_tokens: int = flag(0, HELP)


class Chunked:
    """Mixin before fairseq's criterion: the same flags, loss and log, from the decoder's features, not its scores.

    UserError, naming the flag, for a model whose scores are not the product of features and one matrix.
    """

    registered: str
    sentence_avg: bool
    padding_idx: int
    eps = 0.0
    report_accuracy = False
    ignore_prefix_size = chunk = 0

    @classmethod
    def build_criterion(cls, cfg, task):
        """fairseq's, which passes on what its own criterion asks for; UserError for a chunk of less than no token."""
        criterion, chunk = super().build_criterion(cfg, task), cfg.loss_chunk_tokens
        if chunk < 0:
            raise UserError(f"--loss-chunk-tokens {chunk}: must be at least 1, or 0 to let it be chosen")
        criterion.chunk = chunk
        return criterion

    def forward(self, model: nn.Module, sample: dict, reduce: bool = True):
        """The batch's loss (a sum over tokens, nats), its sample size and what is logged; unreduced, fairseq's way."""
        if not reduce:
            return super().forward(model, sample, reduce)
        weight = projection(model, self.registered)
        features, _ = model(**sample["net_input"], features_only=True)
        skipped = max(0, self.ignore_prefix_size)
        features = features[:, skipped:].flatten(0, 1)
        targets = model.get_targets(sample, None)[:, skipped:].flatten()
        kept = places(targets.ne(self.padding_idx), sample.get(COUNT))
        features, targets = features.index_select(0, kept), targets.index_select(0, kept)
        losses = label_smoothed_loss(features, weight, targets, self.eps, self.chunk, self.report_accuracy)
        sample_size = sample["target"].size(0) if self.sentence_avg else sample["ntokens"]
        logged = {"loss": losses.loss.data, "ntokens": sample["ntokens"], "nsentences": sample["target"].size(0)}
        if self.registered == NAME:
            logged["nll_loss"] = losses.nll_loss.data
        if losses.correct is not None:
            logged |= {"n_correct": losses.correct, "total": len(kept)}
        return losses.loss, sample_size, logged | {"sample_size": sample_size}

    def count_targets(self, sample: dict) -> dict[str, int]:
        """What a batch on the host says of itself, so that the loss asks no GPU for it."""
        targets = sample["target"][:, max(0, self.ignore_prefix_size) :]
        return {COUNT: int(targets.ne(self.padding_idx).sum())}


def places(kept: Tensor, number: int | None) -> Tensor:
    """Where `kept` (N,) is true, (number,); number: how many there are, None if the host does not know."""
    # nonzero_static is for CPUs alone before torch 2.7, and until 2.10 fails on a GPU where there is nothing to find
    if not number or torch.__version__ < (2, 7):
        return kept.nonzero().squeeze(1)  # waits for a GPU
    return torch.nonzero_static(kept, size=number).squeeze(1)


@register_criterion(NAME, dataclass=ChunkedLabelSmoothedCrossEntropyConfig)
class ChunkedLabelSmoothedCrossEntropy(Chunked, smoothed.LabelSmoothedCrossEntropyCriterion):
    """`--criterion chunked_label_smoothed_cross_entropy`, for translation: sums over target tokens, in nats."""

    registered = NAME


@register_criterion(PLAIN, dataclass=ChunkedCrossEntropyConfig)
class ChunkedCrossEntropy(Chunked, CrossEntropyCriterion):
    """`--criterion chunked_cross_entropy`, for language models: sums over tokens, in nats."""

    registered = PLAIN


def projection(model: nn.Module, criterion: str = NAME) -> Tensor:
    """The matrix (V, C) that turns features into scores; `model` may be wrapped for several processes.

    UserError, naming the flag, where there is no such matrix or none that autograd sees used.
    """
    if getattr(model, "find_unused_parameters", False):
        raise UserError(f"--find-unused-parameters: not with --criterion {criterion}, whose matrix it takes for unused")
    linear = getattr(getattr(model, "decoder", None), "output_projection", None)
    if not isinstance(linear, nn.Linear) or linear.bias is not None:
        kind = "no output projection" if linear is None else f"a {type(linear).__name__} for output projection"
        plain = criterion.removeprefix(PREFIX)
        raise UserError(f"--criterion {criterion}: the model has {kind}, not one matrix; take {plain}")
    return linear.weight


# Resuming compares these names: a run may switch between these losses and fairseq's without --reset-optimizer.
ChunkedLabelSmoothedCrossEntropy.__name__ = smoothed.LabelSmoothedCrossEntropyCriterion.__name__
ChunkedCrossEntropy.__name__ = CrossEntropyCriterion.__name__
