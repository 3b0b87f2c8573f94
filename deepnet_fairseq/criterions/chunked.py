"""fairseq's cross_entropy and label_smoothed_cross_entropy in less memory, `--criterion chunked_...`."""

from dataclasses import dataclass

from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor, nn

from ..config import flag
from ..errors import UserError
from .projected import Losses, label_smoothed_loss

PREFIX = "chunked_"
NAME = f"{PREFIX}label_smoothed_cross_entropy"
PLAIN = f"{PREFIX}cross_entropy"
HELP = "target tokens whose logits exist at a time; 0 for as many as are fast"


@dataclass
class ChunkedLabelSmoothedCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
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
    ignore_prefix_size = 0

    def __init__(self, task, sentence_avg, loss_chunk_tokens=0, **flags):
        super().__init__(task, sentence_avg, **flags)  # type: ignore[call-arg]  # fairseq's
        if loss_chunk_tokens < 0:
            raise UserError(f"--loss-chunk-tokens {loss_chunk_tokens}: must be at least 1, or 0 to let it be chosen")
        self.chunk = loss_chunk_tokens

    def forward(self, model: nn.Module, sample: dict, reduce: bool = True):
        """The batch's loss (a sum over tokens, nats), its sample size and what is logged; unreduced, fairseq's way."""
        if not reduce:
            return super().forward(model, sample, reduce)
        weight = projection(model, self.registered)
        features, _ = model(**sample["net_input"], features_only=True)
        losses, total = self.losses(features, weight, model.get_targets(sample, None))
        sample_size = sample["target"].size(0) if self.sentence_avg else sample["ntokens"]
        logged = {
            "loss": losses.loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
        }
        return losses.loss, sample_size, logged | self.further(losses, total)

    def further(self, losses: Losses, total: int) -> dict:
        """What the criterion logs beside the loss; losses: of the whole batch; total: the tokens that count."""
        return {}

    def losses(self, features: Tensor, weight: Tensor, targets: Tensor) -> tuple[Losses, int]:
        """features (B, T, C), weight (V, C), targets (B, T) -> sums over the tokens that count, and their number."""
        skipped = max(0, self.ignore_prefix_size)
        features, targets = features[:, skipped:].flatten(0, 1), targets[:, skipped:].flatten()
        kept = targets.ne(self.padding_idx).nonzero().squeeze(1)
        features, targets = features.index_select(0, kept), targets.index_select(0, kept)
        found = label_smoothed_loss(features, weight, targets, self.eps, self.chunk, self.report_accuracy)
        return found, len(kept)


@register_criterion(NAME, dataclass=ChunkedLabelSmoothedCrossEntropyConfig)
class ChunkedLabelSmoothedCrossEntropy(Chunked, LabelSmoothedCrossEntropyCriterion):
    """`--criterion chunked_label_smoothed_cross_entropy`, for translation: sums over target tokens, in nats."""

    registered = NAME

    def __init__(
        self, task, sentence_avg, label_smoothing, ignore_prefix_size=0, report_accuracy=False, loss_chunk_tokens=0
    ):
        more = {"ignore_prefix_size": ignore_prefix_size, "report_accuracy": report_accuracy}
        super().__init__(task, sentence_avg, loss_chunk_tokens, label_smoothing=label_smoothing, **more)

    def further(self, losses, total):
        counted = {"n_correct": losses.correct.item(), "total": total} if self.report_accuracy else {}
        return {"nll_loss": losses.nll_loss.data} | counted


@register_criterion(PLAIN, dataclass=ChunkedCrossEntropyConfig)
class ChunkedCrossEntropy(Chunked, CrossEntropyCriterion):
    """`--criterion chunked_cross_entropy`, for language models: sums over tokens, in nats."""

    registered = PLAIN

    def __init__(self, task, sentence_avg, loss_chunk_tokens=0):
        super().__init__(task, sentence_avg, loss_chunk_tokens)


def projection(model: nn.Module, criterion: str = NAME) -> Tensor:
    """The matrix (V, C) that turns features into scores; `model` may be wrapped for several processes.

    UserError, naming the flag, where there is no such matrix, or none that is whole or that autograd sees used.
    """
    if getattr(model, "find_unused_parameters", False):
        raise UserError(f"--find-unused-parameters: not with --criterion {criterion}, whose matrix it takes for unused")
    if type(model).__name__ == "FullyShardedDataParallel":
        raise UserError(f"--ddp-backend fully_sharded: not with --criterion {criterion}, which needs a whole matrix")
    linear = getattr(getattr(model, "decoder", None), "output_projection", None)
    if not isinstance(linear, nn.Linear) or linear.bias is not None:
        kind = "no output projection" if linear is None else f"a {type(linear).__name__} for output projection"
        plain = criterion.removeprefix(PREFIX)
        raise UserError(f"--criterion {criterion}: the model has {kind}, not one matrix; take {plain}")
    return linear.weight


# Resuming compares these names: a run may switch between these losses and fairseq's without --reset-optimizer.
ChunkedLabelSmoothedCrossEntropy.__name__ = LabelSmoothedCrossEntropyCriterion.__name__
ChunkedCrossEntropy.__name__ = CrossEntropyCriterion.__name__
