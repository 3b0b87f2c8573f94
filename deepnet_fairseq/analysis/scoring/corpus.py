"""What a prepared corpus says of its text: how to undo its tokens, its raw references, its directions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import UserError
from ...json_text import WRONG_VALUES, parse

DEFAULT_TOKENIZER = "13a"


@dataclass(frozen=True)
class Corpus:
    """The folder DEST over the binarised data, and what DEST/recipe.json holds; the defaults where there is none.

    detokenise: the binarised text is in Moses tokens; lowercase: and in lower case; tokenize: target language -> name
    of sacreBLEU's tokenizer, "*" for all others.
    """

    folder: Path | None = None
    binarised: Path | None = None
    pieces: str | None = None
    detokenise: bool = False
    lowercase: bool = False
    tokenize: dict[str, str] = field(default_factory=dict)

    @property
    def in_words(self) -> bool:
        """Whether the text without its pieces is split into words, so that BLEU on it is "tokenised BLEU"."""
        return self.detokenise or self.pieces == "subword_nmt"

    def tokenizer(self, language: str) -> str:
        """Name of sacreBLEU's tokenizer for a target language's code; 13a if the corpus does not say."""
        return self.tokenize.get(language, self.tokenize.get("*", DEFAULT_TOKENIZER))

    def reference(self, subset: str, direction: str) -> Path | None:
        """The file of raw references, or None if the corpus has none for this test set."""
        path = self._references / f"{subset}.{direction}.{direction.split('-')[1]}" if self.folder else None
        return path if path and path.is_file() else None

    def with_references(self, subset: str) -> set[str]:
        """The directions that have raw references in this subset."""
        if not self.folder:
            return set()
        return {path.name.split(".")[1] for path in self._references.glob(f"{subset}.*-*.*")}

    def binarised_directions(self, subset: str) -> set[str]:
        """The directions of the binarised data themselves."""
        return (
            {path.name.split(".")[1] for path in self.binarised.glob(f"{subset}.*-*.*.idx")}
            if self.binarised
            else set()
        )

    def pairs(self) -> set[str]:
        """The directions of pairs.txt; empty for a bilingual corpus."""
        for folder in (self.binarised, self.binarised and self.binarised.parent):  # a shard lies one deeper
            if folder and (folder / "pairs.txt").is_file():
                return set((folder / "pairs.txt").read_text(encoding="utf-8").split())
        return set()

    def directions(self, subset: str) -> set[str]:
        """What a whole translation of `subset` holds: the pairs with a test set of their own."""
        return self.pairs() & (self.with_references(subset) or self.pairs())

    @property
    def _references(self) -> Path:
        return self.folder / "reference"


def read_corpus(data: str | Path | None) -> Corpus:
    """What lies over the binarised data; a Corpus of defaults without data or recipe.json.

    data: as fairseq takes it, DEST/bin, a shard in it, or several joined with colons. UserError if there is no such
    folder, or recipe.json is damaged.
    """
    if data is None:
        return Corpus()
    binarised = Path(os.path.abspath(str(data).split(":")[0]))
    if not binarised.is_dir():
        raise UserError(f"--data {data}: no such folder; name the binarised data that was translated")
    for folder in (binarised.parent, binarised.parent.parent):
        if (folder / "recipe.json").is_file():
            return _read_recipe(folder, binarised)
    return Corpus(binarised=binarised)


def _read_recipe(folder: Path, binarised: Path) -> Corpus:
    path = folder / "recipe.json"
    try:
        recipe = parse(path.read_text(encoding="utf-8"))
        tokenize = recipe.get("tokenize", {})
        return Corpus(
            folder,
            binarised,
            recipe["pieces"],
            bool(recipe["detokenise"]),
            bool(recipe["lowercase"]),
            {"*": tokenize} if isinstance(tokenize, str) else dict(tokenize),
        )
    except WRONG_VALUES as error:
        raise UserError(f"{path}: is damaged ({error!r}); prepare the corpus again") from None
