"""Items scored: log-likelihood of every choice, made comparable, and the best one."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UserError
from .items import Item
from .model import LanguageModel
from .pieces import Continuation, Reader


@dataclass(frozen=True)
class Likelihood:
    """How likely one choice is: log_p(choice | context) in nats, beside its pieces and UTF-8 bytes.

    unconditional: log_p(choice | unconditional context) in nats, 0 where it was not asked for.
    """

    log_p: float
    pieces: int
    bytes: int
    unconditional: float = 0.0


NORMALISATIONS = {  # Brown et al. 2020, section 2.4, has "tokens" and "unconditional"
    "none": lambda found: found.log_p,
    "tokens": lambda found: found.log_p / found.pieces,
    "bytes": lambda found: found.log_p / found.bytes,
    "unconditional": lambda found: found.log_p - found.unconditional,
}
ASKS_TWICE = {"unconditional"}  # also for the choices without their context


@dataclass(frozen=True)
class Scored:
    """An item and what became of its choices, in their order.

    scores: log-likelihoods, normalised; truncated: the context had to lose its beginning; apart: a choice's pieces
    would have merged with the context's; unknown: pieces of the choices that the dictionary has not got.
    """

    item: Item
    likelihoods: tuple[Likelihood, ...]
    scores: tuple[float, ...]
    truncated: bool
    apart: bool
    unknown: int

    @property
    def prediction(self) -> int:
        """The choice with the highest score, the first of equal ones."""
        return self.scores.index(max(self.scores))

    @property
    def correct(self) -> bool | None:
        """Is the prediction the item's answer? None where the answer is not known."""
        return None if self.item.answer is None else self.prediction == self.item.answer

    def as_dict(self) -> dict:
        """What --results writes of the item, plain data."""
        choices = [
            {"log_p": found.log_p, "pieces": found.pieces, "bytes": found.bytes, "score": score}
            for found, score in zip(self.likelihoods, self.scores, strict=True)
        ]
        known = {"id": self.item.id, "prediction": self.prediction, "answer": self.item.answer, "correct": self.correct}
        return known | {"truncated": self.truncated, "choices": choices}


def score(items: list[Item], model: LanguageModel, reader: Reader, normalise: str, batch_tokens: int) -> list[Scored]:
    """The items with what the model says of them, in their order.

    normalise: a key of NORMALISATIONS; batch_tokens: at most so many at once. UserError, naming file:line, for a choice
    without pieces or longer than the model takes.
    """
    read = [_read(item, item.context, reader, model) for item in items]
    asked = [one for continuations, _ in read for one in continuations]
    log_p = iter(model.log_likelihoods(asked, batch_tokens))
    unconditional = None
    if normalise in ASKS_TWICE:
        alone = [_read(item, item.unconditional_context, reader, model)[0] for item in items]
        unconditional = iter(model.log_likelihoods([one for each in alone for one in each], batch_tokens))
    scored = []
    for item, (continuations, apart) in zip(items, read, strict=True):
        found = tuple(
            Likelihood(next(log_p), len(one.choice), len(choice.strip().encode()), next(unconditional or iter([0.0])))
            for one, choice in zip(continuations, item.choices, strict=True)
        )
        scores = tuple(map(NORMALISATIONS[normalise], found))
        truncated = any(map(model.truncates, continuations))
        unknown = sum(one.choice.count(reader.dictionary.unk()) for one in continuations)
        scored.append(Scored(item, found, scores, truncated, apart, unknown))
    return scored


def _read(item: Item, context: str, reader: Reader, model: LanguageModel) -> tuple[list[Continuation], bool]:
    read = [reader.read(context, choice) for choice in item.choices]
    for number, (one, _) in enumerate(read):
        if not one.choice:
            raise UserError(f"{item.where}: choice {number} gives no piece of text; leave the item out")
        if len(one.choice) > model.positions:
            raise UserError(
                f"{item.where}: choice {number} has {len(one.choice):,} pieces, the model takes {model.positions:,}; "
                "leave the item out"
            )
    return [one for one, _ in read], any(apart for _, apart in read)
