"""`--criterion chunked_label_smoothed_cross_entropy`: fairseq's label_smoothed_cross_entropy in less memory."""

from dataclasses import dataclass, field

from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from torch import Tensor, nn

from ..errors import UserError
from .projected import Losses, label_smoothed_loss

NAME = "chunked_label_smoothed_cross_entropy"


@dataclass
class ChunkedLabelSmoothedCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
    loss_chunk_tokens: int = field(
        default=0, metadata={"help": "target tokens whose logits exist at a time; 0 for as many as are fast"}
    )


@register_criterion(NAME, dataclass=ChunkedLabelSmoothedCrossEntropyConfig)
class ChunkedLabelSmoothedCrossEntropy(LabelSmoothedCrossEntropyCriterion):
    """Same flags, loss and log; the decoder's features are taken instead of its scores.

    UserError, naming the flag, for a model whose scores are not the product of features and one matrix.
    """

    def __init__(
        self,
        task,
        sentence_avg,
        label_smoothing,
        ignore_prefix_size=0,
        report_accuracy=False,
        loss_chunk_tokens=0,
    ):
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        if loss_chunk_tokens < 0:
            raise UserError(f"--loss-chunk-tokens {loss_chunk_tokens}: must be at least 1, or 0 to let it be chosen")
        self.chunk = loss_chunk_tokens

    def forward(self, model: nn.Module, sample: dict, reduce: bool = True):
        """The batch's loss, its sample size and what is logged; not reduced, fairseq's own way."""
        if not reduce:
            return super().forward(model, sample, reduce)
        weight = projection(model)
        features, _ = model(**sample["net_input"], features_only=True)
        losses, total = self.losses(features, weight, model.get_targets(sample, None))
        sample_size = sample["target"].size(0) if self.sentence_avg else sample["ntokens"]
        logged = {
            "loss": losses.loss.data,
            "nll_loss": losses.nll_loss.data,
            "ntokens": sample["ntokens"],
            "nsentences": sample["target"].size(0),
            "sample_size": sample_size,
        }
        if self.report_accuracy:
            logged |= {"n_correct": losses.correct.item(), "total": total}
        return losses.loss, sample_size, logged

    def losses(self, features: Tensor, weight: Tensor, targets: Tensor) -> tuple[Losses, int]:
        """features (B, T, C), weight (V, C), targets (B, T) -> sums over the tokens that count, and their number."""
        skipped = max(0, self.ignore_prefix_size)
        features, targets = features[:, skipped:].flatten(0, 1), targets[:, skipped:].flatten()
        kept = targets.ne(self.padding_idx).nonzero().squeeze(1)
        features, targets = features.index_select(0, kept), targets.index_select(0, kept)
        found = label_smoothed_loss(features, weight, targets, self.eps, self.chunk, self.report_accuracy)
        return found, len(kept)


def projection(model: nn.Module) -> Tensor:
    """The matrix (V, C) that turns features into scores; `model` may be wrapped for several processes."""
    if getattr(model, "find_unused_parameters", False):
        raise UserError(f"--find-unused-parameters: not with --criterion {NAME}, whose matrix it takes for unused")
    if type(model).__name__ == "FullyShardedDataParallel":
        raise UserError(f"--ddp-backend fully_sharded: not with --criterion {NAME}, which needs a whole matrix")
    linear = getattr(model.decoder, "output_projection", None)
    if not isinstance(linear, nn.Linear) or linear.bias is not None:
        kind = "no output projection" if linear is None else f"a {type(linear).__name__} for output projection"
        raise UserError(f"--criterion {NAME}: the model has {kind}, not one matrix; take label_smoothed_cross_entropy")
    return linear.weight


# Resuming compares this name: a run may switch between this loss and fairseq's without --reset-optimizer.
ChunkedLabelSmoothedCrossEntropy.__name__ = LabelSmoothedCrossEntropyCriterion.__name__
