"""What the multilingual recipes share: pairs that may come one after another, and the steps that make them."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from ...errors import UserError
from ..recipes.base import Options, Recipe, versions
from ..steps import Steps, read_json, write_json
from .folder import Folder
from .pair_text import PairText
from .prepare import Multilingual

TEMPERATURE = 5.0  # M2M-100's; the DeepNet paper does not say
MINIATURE_VOCAB = 600


class MultilingualRecipe(Recipe):
    """One model for many pairs; `vocab` is the recipe's number of pieces."""

    takes = frozenset({"pairs", "vocab", "shards", "temperature"})
    vocab: int

    @abstractmethod
    def pairs(self, options: Options) -> tuple[str, ...]:
        """The pairs asked for; UserError for one that this corpus does not have."""

    @abstractmethod
    def text(self, options: Options, pair: str, files: dict[str, Path]) -> PairText:
        """The text of one pair; UserError if it is not there."""

    def outline(self, options: Options) -> tuple[str, ...]:
        return (
            "count the sentences of each pair, and check them",
            f"one SentencePiece vocabulary of {self.vocabulary_size(options):,} pieces, languages drawn at temperature "
            f"{self.temperature(options):g}",
            "segment and binarise each pair, both directions in one",
            "dictionaries, lists of languages and directions, raw references of the test sets",
        )

    def tools(self, options: Options) -> dict[str, str]:
        return versions("sentencepiece", "fairseq-fixed")

    def settings(self, options: Options) -> dict:
        return super().settings(options) | {
            "state": {pair: self.text(options, pair, {}).state for pair in self.pairs(options)}
        }

    def vocabulary_size(self, options: Options) -> int:
        return options.vocab or (MINIATURE_VOCAB if options.miniature else self.vocab)

    def temperature(self, options: Options) -> float:
        return TEMPERATURE if options.temperature is None else options.temperature

    def check(self, options: Options) -> None:
        super().check(options)
        for flag, number in (("--vocab", options.vocab), ("--shards", options.shards)):
            if number is not None and number < 1:
                raise UserError(f"{flag} {number}: must be 1 or more")
        self.pairs(options)

    def make(self, options: Options, steps: Steps, files: dict[str, Path]) -> dict:
        pairs = _with_earlier(options.dest, self.pairs(options))
        texts = [self.text(options, pair, files) for pair in pairs]
        folder = Folder(options.dest, options.shards or 1)
        counts = Multilingual(
            folder, self.vocabulary_size(options), self.temperature(options), options.workers
        ).run(texts)  # fmt: skip
        total = {"train": sum(of_pair["train"] for of_pair in counts.values())}
        return {"pieces": "sentencepiece", "detokenise": False, "lowercase": False, "counts": total | {"pairs": counts}}


def _with_earlier(dest: Path, asked: tuple[str, ...]) -> list[str]:
    """The pairs asked for now or before: those that DEST will hold."""
    record = dest / "steps" / "pairs.json"
    pairs = sorted({*asked, *read_json(record).get("pairs", [])})
    write_json(record, {"pairs": pairs})
    return pairs
