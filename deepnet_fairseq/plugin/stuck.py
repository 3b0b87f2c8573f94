"""`--stop-stuck`: end a training whose validation losses stay no better than guessing.

Guessing is to predict the same probabilities at every place. Its loss is at least the entropy of the targets'
frequencies p; with label smoothing eps over V words, the entropy of fairseq's smoothed targets,
(1 - eps - eps / (V - 1)) p + eps / (V - 1). This bound is computed for each validation from the targets in its batches,
so that it holds for translation, masked and causal language models alike. Run (run.py) ends the training, with one line
and an exit status of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import UserError
from .distributed import agreement

STATUS = 4  # exit status of fairseq-train for a stuck training
# bits by which a loss must be below the bound to be better than guessing; a language model of the quickstart's text is
# better by 3.5
MARGIN = 0.5
KEY = "deepnet_stuck"  # in a checkpoint's extra_state
# criteria whose loss is logged in bits per target token, as are the chunked_ forms of two of them
LOSSES = ("cross_entropy", "label_smoothed_cross_entropy", "masked_lm")
REFUSED = {  # (section of fairseq's config, setting) that does not go with --stop-stuck -> reason
    ("dataset", "disable_validation"): "it goes by the validation losses",
    ("optimization", "sentence_avg"): "it goes by losses of a token, not of a sentence",
    ("criterion", "ignore_prefix_size"): "a loss without its prefix is not of all targets",
}
logger = logging.getLogger(__name__)


class Stuck:
    """Early-stopping monitor of --stop-stuck: it notes since when validation losses are no better than guessing.

    limit: the training ends once the losses have been no better for so many updates, 0 for never; smoothing: eps of the
    loss's label smoothing; padding: the target that is not counted. Updates are numbered from 1.
    """

    def __init__(self, limit: int, smoothing: float = 0.0, padding: int = 1):
        self.limit = limit
        self.smoothing = smoothing
        self.padding = padding
        # the update since which all validations were no better than guessing; None if the last one was better
        self.since: int | None = None
        self.at = 0  # update after which the last validation was
        self.loss = float("nan")  # of the last validation, in bits per target token
        self.bound = float("nan")  # loss of guessing at the last validation, in bits per target token
        # (V,): how often each word was the target so far, in this process, in the validated subset; None before that
        self.counts: Tensor | None = None

    @property
    def over(self) -> bool:
        """True once the losses have been no better than guessing for `limit` updates."""
        if not self.limit or self.since is None:
            return False
        return self.at - self.since >= self.limit

    def count(self, sample: dict | None, task) -> None:
        """Count the targets in a batch of a validation; DeepTrainer calls this for each batch.

        sample: the batch, empty or None in a process that has none left; task: fairseq's.
        """
        if not self.limit or not sample:
            return
        if self.counts is None:
            self.counts = _no_counts(task)
        targets = sample["target"].cpu()
        words = targets[targets.ne(self.padding)]
        self.counts += torch.bincount(words, minlength=len(self.counts))

    def end_subset(self, task, stats: dict, first: bool) -> None:
        """End the validation of a subset: compare its loss with that of guessing if it is the first, drop its counts.

        stats: what fairseq logs of the subset; first: whether it is the first of --valid-subset, whose loss also
        decides about fairseq's early stopping. All processes must call this together, because the counts are summed
        over all of them.
        """
        if not self.limit:
            return
        own_counts = _no_counts(task) if self.counts is None else self.counts
        counts = sum(agreement.all_gather(own_counts))
        self.counts = None
        if first and counts.sum():  # a subset without targets tells nothing
            self.note_validation(stats["num_updates"], float(stats["loss"]), entropy(counts, self.smoothing))

    def entry_for_checkpoint(self) -> dict:
        """Return {KEY: [since, at]} for a checkpoint's extra_state, {} if the monitor never ends a training."""
        return {KEY: [self.since, self.at]} if self.limit else {}

    def resume(self, extra_state: dict) -> None:
        """Restore what entry_for_checkpoint returned; start afresh if the checkpoint's extra_state does not have it."""
        self.since, self.at = extra_state.get(KEY, (None, 0))

    def note_validation(self, update: int, loss: float, bound: float) -> None:
        """Note the validation loss after an update and the bound, the loss of guessing, both in bits per target token.

        A loss that is no better than guessing is told in the log.
        """
        self.at = update
        self.loss = loss
        self.bound = bound
        if loss < bound - MARGIN:
            self.since = None
            return
        if self.since is None:
            self.since = update
        logger.info(
            f"hardly better than guessing by the frequencies of words since update {self.since}: loss {loss:.3f}, "
            f"guessing {bound:.3f} bits; --stop-stuck {self.limit} would end it at update {self.since + self.limit}"
        )

    def headline(self) -> str:
        """Describe the end of the training in one line. Scripts look for its first words."""
        return (
            f"stuck at update {self.at}: since update {self.since} hardly better than guessing by the frequencies of "
            f"words; try --method deepnorm, a lower --lr, longer --warmup-updates; --stop-stuck 0 goes on"
        )


def _no_counts(task) -> Tensor:
    """Return zeros (V,), the counts of the words of a task's target dictionary before the first one is counted."""
    return torch.zeros(len(task.target_dictionary), dtype=torch.long)


def entropy(counts: Tensor, smoothing: float = 0.0) -> float:
    """Return the loss of guessing, in bits per token: the entropy of the smoothed targets (see the file's docstring).

    counts (V,): how often each word is the target; smoothing: eps of fairseq's label_smoothed_cross_entropy.
    """
    eps_i = smoothing / (len(counts) - 1)
    probabilities = counts.double() / counts.sum() * (1 - smoothing - eps_i) + eps_i
    nats = -torch.special.xlogy(probabilities, probabilities).sum()
    return float(nats / torch.log(torch.tensor(2.0)))


def check_settings(setting: Callable[[str, str], object]) -> None:
    """Raise a UserError for flags that do not go with --stop-stuck, if that is given.

    setting(section, key) returns a setting of fairseq's config, or of the parsed flags, which have no sections; None
    if it is not there.
    """
    if not setting("model", "stop_stuck"):
        return
    criterion = str(setting("criterion", "_name") or setting("", "criterion"))  # in a config, or among parsed flags
    if criterion.removeprefix("chunked_") not in LOSSES:
        raise UserError("--stop-stuck", f"not with --criterion {criterion}, which is no likelihood of words; drop it")
    for (section, key), reason in REFUSED.items():
        if setting(section, key):
            raise UserError("--stop-stuck", f"not with --{key.replace('_', '-')}, {reason}; drop one of them")


def stuck_monitor(cfg, criterion) -> Stuck:
    """Create the early-stopping monitor of --stop-stuck, one that never ends the training without the flag.

    cfg: fairseq's whole config; criterion: the training's loss module. Raises a UserError for flags that do not go with
    --stop-stuck.
    """

    def setting(section: str, key: str) -> object:
        """Return a setting of the config, None if the section or the setting is not there."""
        return getattr(getattr(cfg, section, None), key, None)

    check_settings(setting)
    return Stuck(
        limit=getattr(cfg.model, "stop_stuck", 0),  # another package's model does not have the flag
        smoothing=getattr(criterion, "eps", 0.0),  # only label_smoothed_cross_entropy has eps
        padding=criterion.padding_idx,
    )
