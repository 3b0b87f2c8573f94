"""A training that has learnt how often each word occurs, and no more: it ends in a line and a status of its own.

Whoever gives every place the same probabilities has a loss of at least the entropy of the targets' frequencies p; with
label smoothing eps over V words, of at least that of (1 - eps - eps / (V - 1)) p + eps / (V - 1), fairseq's smoothed
targets. So a validation loss near that bound is what guessing gives. Counted are the very targets that the loss was of:
it holds for translation, masked and causal language models alike.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ...errors import UserError
from ..checkpoints import holding
from ..distributed import agreement

STATUS = 4  # of fairseq-train
MARGIN = 0.5  # bits: hardly better than guessing; a language model of the quickstart's text is better by 3.5
KEY = "deepnet_stuck"  # in a checkpoint's extra_state
LOSSES = ("cross_entropy", "label_smoothed_cross_entropy", "masked_lm")  # and chunked_: logged in bits per target token
REFUSED = {  # section, key: why
    ("dataset", "disable_validation"): "it goes by the validation losses",
    ("optimization", "sentence_avg"): "it goes by losses of a token, not of a sentence",
    ("criterion", "ignore_prefix_size"): "a loss without its prefix is not of all targets",
}
logger = logging.getLogger(__name__)


class Stuck:
    """Since when a training's validation losses have been those of guessing.

    limit: so many updates are one too many, 0 for any number; since: the update of the first such validation in a row,
    None if the last was better; at: the update of the last.
    """

    def __init__(self, limit: int):
        self.limit = limit
        self.since: int | None = None
        self.at = 0
        self.loss = self.bound = float("nan")
        self.counts: Tensor | None = None

    @property
    def over(self) -> bool:
        """Has it lasted long enough?"""
        return bool(self.limit) and self.since is not None and self.at - self.since >= self.limit

    def validated(self, update: int, loss: float, bound: float) -> None:
        """To be told a validation loss of the weights after `update`, and what guessing gives, in bits per token."""
        self.at, self.loss, self.bound = update, loss, bound
        if loss < bound - MARGIN:
            self.since = None
            return
        self.since = update if self.since is None else self.since
        logger.info(
            f"hardly better than guessing by the frequencies of words, {loss:.3f} of {bound:.3f} bits, since update "
            f"{self.since}; --stop-stuck {self.limit} would end it at update {self.since + self.limit}"
        )

    def headline(self) -> str:
        """What has happened, in one line. Scripts look for how it begins."""
        return (
            f"stuck at update {self.at}: since update {self.since} hardly better than guessing by the frequencies of "
            f"words; try --method deepnorm, a lower --lr, longer --warmup-updates; --stop-stuck 0 goes on"
        )


def entropy(counts: Tensor, smoothing: float = 0.0) -> float:
    """The lowest loss, in bits per token, of one prediction for every place.

    counts (V,): how often each word is the target; smoothing: eps of fairseq's label_smoothed_cross_entropy.
    """
    each = smoothing / (len(counts) - 1)
    wanted = counts.double() / counts.sum() * (1 - smoothing - each) + each
    return float(-torch.special.xlogy(wanted, wanted).sum() / torch.log(torch.tensor(2.0)))


def check_settings(setting: Callable[[str, str], object]) -> None:
    """UserError for flags that --stop-stuck has no use for; setting(section, key): a value of fairseq's config."""
    if not setting("model", "stop_stuck"):
        return
    criterion = str(setting("criterion", "_name") or setting("", "criterion"))
    if criterion.removeprefix("chunked_") not in LOSSES:
        raise UserError(f"--stop-stuck: not with --criterion {criterion}, which is no likelihood of words; drop it")
    for (section, key), reason in REFUSED.items():
        if setting(section, key):
            raise UserError(f"--stop-stuck: not with --{key.replace('_', '-')}, {reason}; drop one of them")


def begin(original, trainer, cfg, *args, **kwargs):
    """A trainer knows how long it has been stuck."""
    original(trainer, cfg, *args, **kwargs)
    check_settings(lambda section, key: getattr(getattr(trainer.cfg, section, None), key, None))
    trainer.stuck = Stuck(getattr(trainer.cfg.model, "stop_stuck", 0))


def count_targets(original, trainer, sample, raise_oom=False):
    """One batch of a validation: raise_oom is its second try. A rank that has none left gets an empty one."""
    stuck = trainer.stuck
    if stuck.limit and sample and not raise_oom:
        if stuck.counts is None:
            stuck.counts = torch.zeros(len(trainer.task.target_dictionary), dtype=torch.long)
        # of multilingual_translation a batch of each pair
        for part in [sample] if "target" in sample else filter(None, sample.values()):
            target = part["target"].cpu()
            kept = target[target.ne(trainer.get_criterion().padding_idx)]
            stuck.counts += torch.bincount(kept, minlength=len(stuck.counts))
    return original(trainer, sample, raise_oom)


def compare(original, cfg, trainer, stats, tracking_best):
    """After the validation of a subset; the first is the one that tells."""
    stuck = trainer.stuck
    if stuck.limit:
        mine = torch.zeros(len(trainer.task.target_dictionary), dtype=torch.long)
        counts = agreement.summed(mine if stuck.counts is None else stuck.counts, trainer.device)
        stuck.counts = None
        if tracking_best and counts.sum():
            bound = entropy(counts, getattr(trainer.get_criterion(), "eps", 0.0))
            stuck.validated(trainer.get_num_updates(), float(stats["loss"]), bound)
    return original(cfg, trainer, stats, tracking_best)


def stop_if_stuck(original, cfg, trainer, *args):
    """After each update: fairseq's answer, validation losses and is the training over? A last save is not worth it."""
    losses, over = original(cfg, trainer, *args)
    return losses, over or trainer.stuck.over


def end_stuck(original, cfg, trainer, *args):
    """One epoch; the same on every rank, as losses and counts are sums over all ranks."""
    answer = None if trainer.stuck.over else original(cfg, trainer, *args)
    if not trainer.stuck.over:
        return answer
    if agreement.is_first():
        print(f"{Path(sys.argv[0]).name}: error: {trainer.stuck.headline()}", file=sys.stderr)
    agreement.meet()
    holding.release()
    raise SystemExit(STATUS)


def keep_count(original, trainer, filename, extra_state):
    """In the checkpoint: since when, and until when."""
    kept = {KEY: [trainer.stuck.since, trainer.stuck.at]} if trainer.stuck.limit else {}
    return original(trainer, filename, extra_state | kept)


def resume_count(original, trainer, *args, **kwargs):
    """From the checkpoint."""
    extra_state = original(trainer, *args, **kwargs)
    if extra_state and not kwargs.get("reset_meters"):
        trainer.stuck.since, trainer.stuck.at = extra_state.get(KEY, (None, 0))
    return extra_state
