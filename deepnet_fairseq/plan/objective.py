"""What fairseq trains each of the models for: task, loss, and batches of made-up tokens without padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import archs
from ..building import SPECIALS
from ..criterions.chunked import NAME, PLAIN

LANGUAGES = ("xx", "yy")
MASK_PROB = 0.15  # fairseq's --mask-prob
Tokens = Callable[[int], Tensor]  # size of a vocabulary -> (B, T) of its symbols


@dataclass(frozen=True)
class Objective:
    """What one of the models is trained for.

    task, criterion: fairseq's names; chunked: the criterion's form without all logits, None where there is none;
    length: tokens of a sample, by default; length_flags: what says so; dictionaries: files that the task reads; added:
    symbols that it adds to them; flags: of fairseq-train, that the task and the loss need.
    """

    task: str
    criterion: str
    chunked: str | None
    length: int
    length_flags: tuple[str, ...]
    dictionaries: tuple[str, ...] = ("dict.txt",)
    added: int = 0
    flags: tuple[str, ...] = ()

    masks = False  # are some of the tokens hidden, and only these predicted?

    def scored(self, tokens: int, mask_prob: float) -> int:
        """Tokens of so many whose scores are computed."""
        return tokens

    def sample(self, tokens: Tokens, vocab: tuple[int, int], mask_prob: float) -> tuple[dict[str, Tensor], Tensor]:
        """What net_input holds beside src_lengths, and the target, (B, T) each.

        tokens draws (B, T) symbols of a vocabulary of the given size; vocab: sizes of source and target.
        """
        return {"src_tokens": tokens(vocab[0])}, tokens(vocab[1])


class Translation(Objective):
    """From src_tokens and prev_output_tokens to the target; source and target have a vocabulary each."""

    def sample(self, tokens, vocab, mask_prob):
        return {"src_tokens": tokens(vocab[0]), "prev_output_tokens": tokens(vocab[1])}, tokens(vocab[1])


class Masked(Objective):
    """Of all tokens only the share mask_prob is predicted, and only theirs are projected to the vocabulary."""

    masks = True

    def scored(self, tokens, mask_prob):
        return max(1, round(tokens * mask_prob))

    def sample(self, tokens, vocab, mask_prob):
        """The target is padding where nothing is masked; the first places of the batch stand for those that are."""
        net_input, target = super().sample(tokens, vocab, mask_prob)
        target.flatten()[self.scored(target.numel(), mask_prob) :] = PADDING
        return net_input, target


PADDING = 1  # index of fairseq's padding symbol; positions are counted behind it
SAMPLES = ("--length", "--tokens-per-sample")
OBJECTIVES = {
    archs.MODEL_NAME: Translation(
        "translation", "label_smoothed_cross_entropy", NAME, 32, ("--length",),
        dictionaries=tuple(f"dict.{language}.txt" for language in LANGUAGES),
        flags=("--source-lang", LANGUAGES[0], "--target-lang", LANGUAGES[1], "--label-smoothing", "0.1"),
    ),
    archs.LM: Objective("language_modeling", "cross_entropy", PLAIN, 1024, SAMPLES),
    archs.MASKED_LM: Masked("masked_lm", "masked_lm", None, 1024, SAMPLES, added=1),
}  # fmt: skip


def objective_of(cfg) -> Objective:
    """What the model of a config is trained for."""
    return OBJECTIVES[archs.model_of(cfg)]


def batch(objective: Objective, vocab: tuple[int, int], sentences: int, length: int, mask_prob: float, seed: int):
    """A sample as the task's data sets give it: `sentences` of `length` tokens.

    ntokens counts all of them, masked or not; the same seed gives the same tokens.
    """
    generator = torch.Generator().manual_seed(seed)

    def tokens(size: int) -> Tensor:
        return torch.randint(SPECIALS, size, (sentences, length), generator=generator)

    net_input, target = objective.sample(tokens, vocab, mask_prob)
    return {
        "id": torch.arange(sentences),
        "nsentences": sentences,
        "ntokens": sentences * length,
        "net_input": net_input | {"src_lengths": torch.full((sentences,), length)},
        "target": target,
    }
