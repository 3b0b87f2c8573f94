"""`--stop-stuck`: end a training that does no better than unigram entropy, with one line and a status of its own.

A model that predicts the same probabilities at every place has a loss of at least the entropy of the targets'
frequencies p; with label smoothing eps over V words, of at least that of (1 - eps - eps / (V - 1)) p + eps / (V - 1),
fairseq's smoothed targets. A validation loss near that bound is no better than guessing. The targets of the same
batches are counted, so that this holds for translation, masked and causal language models alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import UserError
from .distributed import agreement

STATUS = 4  # of fairseq-train
MARGIN = 0.5  # bits; a language model of the quickstart's text is better than guessing by 3.5
KEY = "deepnet_stuck"  # in a checkpoint's extra_state
# logged in bits per target token, as are their chunked_ forms
LOSSES = ("cross_entropy", "label_smoothed_cross_entropy", "masked_lm")
REFUSED = {  # (section, key) -> reason
    ("dataset", "disable_validation"): "it goes by the validation losses",
    ("optimization", "sentence_avg"): "it goes by losses of a token, not of a sentence",
    ("criterion", "ignore_prefix_size"): "a loss without its prefix is not of all targets",
}
logger = logging.getLogger(__name__)


class Stuck:
    """Watch over a training's validation losses, which notes since when they are no better than guessing.

    limit: number of such updates that ends the training, 0 for never; smoothing: the loss's label smoothing; padding:
    the target that does not count. since: the update of the first such validation in a row, None if the last was
    better; at: the update of the last validation.
    """

    def __init__(self, limit: int, smoothing: float = 0.0, padding: int = 1):
        self.limit, self.smoothing, self.padding = limit, smoothing, padding
        self.since: int | None = None
        self.at = 0
        self.loss = self.bound = float("nan")
        self.counts: Tensor | None = None

    @property
    def over(self) -> bool:
        """True once the losses have been no better than guessing for `limit` updates."""
        return bool(self.limit) and self.since is not None and self.at - self.since >= self.limit

    def count(self, sample: dict | None, task) -> None:
        """Count the targets in a batch of a validation; a process that has no batch left gets an empty one."""
        if not self.limit or not sample:
            return
        if self.counts is None:
            self.counts = torch.zeros(len(task.target_dictionary), dtype=torch.long)
        target = sample["target"].cpu()
        self.counts += torch.bincount(target[target.ne(self.padding)], minlength=len(self.counts))

    def compare(self, task, stats: dict, first: bool) -> None:
        """Compare the loss of a validated subset with that of guessing. Only the first subset counts.

        All processes must call it together, because the counts are sums over all of them.
        """
        if not self.limit:
            return
        mine = torch.zeros(len(task.target_dictionary), dtype=torch.long) if self.counts is None else self.counts
        counts = sum(agreement.all_gather(mine))
        self.counts = None
        if first and counts.sum():
            self.validated(stats["num_updates"], float(stats["loss"]), entropy(counts, self.smoothing))

    def kept(self) -> dict:
        """Return the watch's state for a checkpoint's extra_state."""
        return {KEY: [self.since, self.at]} if self.limit else {}

    def resume(self, extra_state: dict) -> None:
        """Restore what `kept` returned."""
        self.since, self.at = extra_state.get(KEY, (None, 0))

    def validated(self, update: int, loss: float, bound: float) -> None:
        """Note the validation loss after `update`, and the bound, the loss of guessing, in bits per token."""
        self.at, self.loss, self.bound = update, loss, bound
        if loss < bound - MARGIN:
            self.since = None
            return
        self.since = update if self.since is None else self.since
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


def entropy(counts: Tensor, smoothing: float = 0.0) -> float:
    """Return the lowest loss, in bits per token, of one prediction for every place.

    counts (V,): how often each word is the target; smoothing: eps of fairseq's label_smoothed_cross_entropy.
    """
    each = smoothing / (len(counts) - 1)
    wanted = counts.double() / counts.sum() * (1 - smoothing - each) + each
    return float(-torch.special.xlogy(wanted, wanted).sum() / torch.log(torch.tensor(2.0)))


def check_settings(setting: Callable[[str, str], object]) -> None:
    """Raise a UserError for flags that do not go with --stop-stuck; setting(section, key) returns a config's value."""
    if not setting("model", "stop_stuck"):
        return
    criterion = str(setting("criterion", "_name") or setting("", "criterion"))
    if criterion.removeprefix("chunked_") not in LOSSES:
        raise UserError(f"--stop-stuck: not with --criterion {criterion}, which is no likelihood of words; drop it")
    for (section, key), reason in REFUSED.items():
        if setting(section, key):
            raise UserError(f"--stop-stuck: not with --{key.replace('_', '-')}, {reason}; drop one of them")


def watch_of(cfg, criterion) -> Stuck:
    """Make the watch that a training's config asks for; raise a UserError for flags that leave nothing to compare."""
    check_settings(lambda section, key: getattr(getattr(cfg, section, None), key, None))
    return Stuck(getattr(cfg.model, "stop_stuck", 0), getattr(criterion, "eps", 0.0), criterion.padding_idx)
