"""Criteria that compute fairseq's cross_entropy and label_smoothed_cross_entropy in less memory.

Their names are `--criterion chunked_cross_entropy` and `chunked_label_smoothed_cross_entropy`; chunked_loss.py computes
the loss. Shapes: B sentences, T tokens of the longest one, N tokens of a batch, C width, V vocabulary.
"""

from dataclasses import dataclass

from fairseq.criterions import label_smoothed_cross_entropy as smoothed
from fairseq.criterions import register_criterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion, CrossEntropyCriterionConfig
from torch import Tensor, nn

from ..errors import UserError
from .chunked_loss import CROSS_ENTROPY, LABEL_SMOOTHED, PREFIX, label_smoothed_loss
from .flags import flag

CHUNK_HELP = "target tokens whose logits exist at a time; 0 for as many as are fast"


@dataclass
class ChunkedLabelSmoothedCrossEntropyConfig(smoothed.LabelSmoothedCrossEntropyCriterionConfig):
    """The flags of fairseq's label_smoothed_cross_entropy, and --loss-chunk-tokens."""

    loss_chunk_tokens: int = flag(0, CHUNK_HELP)


@dataclass
class ChunkedCrossEntropyConfig(CrossEntropyCriterionConfig):
    """The flags of fairseq's cross_entropy, and --loss-chunk-tokens."""

    loss_chunk_tokens: int = flag(0, CHUNK_HELP)


class Chunked:
    """Mixin in front of one of fairseq's two criteria; the criterion keeps its flags, its loss and what it logs.

    The mixin asks the model for the decoder's features instead of its scores over the vocabulary, and computes the
    scores a chunk of tokens at a time. Its forward raises a UserError, naming the flag, for a model whose scores are
    not the product of the features and one matrix.
    """

    registered: str  # name by which --criterion chooses it, CROSS_ENTROPY or LABEL_SMOOTHED
    # attributes of fairseq's criteria, with values for those that only the label-smoothed one has
    sentence_avg: bool
    padding_idx: int
    eps = 0.0
    report_accuracy = False
    ignore_prefix_size = 0

    chunk = 0  # --loss-chunk-tokens
    # False: padded places are removed before the scores are computed. The CPU must wait for the GPU to learn how many
    # tokens remain. True: scores of padded places are computed too, and have no effect. graphs/ sets True, since a CUDA
    # graph cannot wait.
    masks_padding = False

    @classmethod
    def build_criterion(cls, cfg, task):
        """Build the criterion as fairseq does; raise a UserError for a negative --loss-chunk-tokens."""
        criterion = super().build_criterion(cfg, task)
        chunk = cfg.loss_chunk_tokens
        if chunk < 0:
            raise UserError(f"--loss-chunk-tokens {chunk}", "must be at least 1, or 0 to let it be chosen")
        criterion.chunk = chunk
        return criterion

    def forward(self, model: nn.Module, sample: dict, reduce: bool = True):
        """Return the batch's loss (a sum over tokens, nats), its sample size and the values to log.

        model: may be wrapped in DistributedDataParallel; sample: fairseq's batch; reduce: False for a loss of each
        token. Such losses, --report-accuracy and --ignore-prefix-size need all logits at once, and are left to
        fairseq's own forward.
        """
        if not reduce or self.report_accuracy or self.ignore_prefix_size:
            return super().forward(model, sample, reduce)

        weight = projection(model, self.registered)
        features, _extra = model(**sample["net_input"], features_only=True)  # (B, T, C)
        features = features.flatten(0, 1)
        targets = model.get_targets(sample, None).flatten()  # None: fairseq's models do not look at their output

        ignored = None  # target without a loss
        if self.masks_padding:
            ignored = self.padding_idx
        else:
            kept = targets.ne(self.padding_idx).nonzero().squeeze(1)
            features = features.index_select(0, kept)
            targets = targets.index_select(0, kept)
        losses = label_smoothed_loss(features, weight, targets, smoothing=self.eps, chunk=self.chunk, ignored=ignored)

        sentences = sample["target"].size(0)
        sample_size = sentences if self.sentence_avg else sample["ntokens"]
        logged = {"loss": losses.loss.data, "ntokens": sample["ntokens"], "nsentences": sentences}
        if self.registered == LABEL_SMOOTHED:
            logged["nll_loss"] = losses.nll_loss.data
        logged["sample_size"] = sample_size
        return losses.loss, sample_size, logged


@register_criterion(LABEL_SMOOTHED, dataclass=ChunkedLabelSmoothedCrossEntropyConfig)
class ChunkedLabelSmoothedCrossEntropy(Chunked, smoothed.LabelSmoothedCrossEntropyCriterion):
    """`--criterion chunked_label_smoothed_cross_entropy`, for translation: sums over target tokens, in nats."""

    registered = LABEL_SMOOTHED


@register_criterion(CROSS_ENTROPY, dataclass=ChunkedCrossEntropyConfig)
class ChunkedCrossEntropy(Chunked, CrossEntropyCriterion):
    """`--criterion chunked_cross_entropy`, for language models: sums over tokens, in nats."""

    registered = CROSS_ENTROPY


def projection(model: nn.Module, criterion: str = LABEL_SMOOTHED) -> Tensor:
    """Return the matrix (V, C) of a model's output projection, which turns features into scores.

    model: may be wrapped in DistributedDataParallel (DDP); criterion: the name of --criterion, for messages. Raises a
    UserError, naming the flag, if there is no such matrix; also under --find-unused-parameters, because DDP would take
    the matrix for unused: the product with it is computed outside of the model's forward.
    """
    if getattr(model, "find_unused_parameters", False):
        raise UserError(
            "--find-unused-parameters", f"not with --criterion {criterion}, whose matrix it takes for unused"
        )
    decoder = getattr(model, "decoder", None)
    linear = getattr(decoder, "output_projection", None)
    if not isinstance(linear, nn.Linear) or linear.bias is not None:
        same_of_fairseq = criterion.removeprefix(PREFIX)
        problem = "the model has no output projection of one matrix"
        raise UserError(f"--criterion {criterion}", f"{problem}; take {same_of_fairseq}")
    return linear.weight


# Resuming compares these names: a run may switch between these losses and fairseq's without --reset-optimizer.
ChunkedLabelSmoothedCrossEntropy.__name__ = smoothed.LabelSmoothedCrossEntropyCriterion.__name__
ChunkedCrossEntropy.__name__ = CrossEntropyCriterion.__name__
