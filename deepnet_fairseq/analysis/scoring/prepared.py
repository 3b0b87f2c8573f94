"""One test set's translations and references as the metrics want them, by what its prepared corpus says of its text."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from sacremoses import MosesDetokenizer

from ...errors import UserError
from ...json_text import WRONG_VALUES, parse
from .generated import Generated, Output, logged_test_set, read_generated, read_text

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
        if not self.folder:
            return None
        path = self.folder / "reference" / f"{subset}.{direction}.{direction.split('-')[1]}"
        return path if path.is_file() else None

    def with_references(self, subset: str) -> set[str]:
        """The directions that have raw references in this subset."""
        return _directions(self.folder and self.folder / "reference", f"{subset}.*-*.*")

    def binarised_directions(self, subset: str) -> set[str]:
        """The directions of the binarised data themselves."""
        return _directions(self.binarised, f"{subset}.*-*.*.idx")

    def pairs(self) -> set[str]:
        """The directions of pairs.txt; empty for a bilingual corpus."""
        for folder in (self.binarised, self.binarised.parent) if self.binarised else ():  # a shard lies one deeper
            if (folder / "pairs.txt").is_file():
                return set((folder / "pairs.txt").read_text(encoding="utf-8").split())
        return set()

    def directions(self, subset: str) -> set[str]:
        """What a whole translation of `subset` holds: the pairs with a test set of their own."""
        return self.pairs() & (self.with_references(subset) or self.pairs())


def _directions(folder: Path | None, pattern: str) -> set[str]:
    return {path.name.split(".")[1] for path in folder.glob(pattern)} if folder else set()


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
        tokenize = {"*": tokenize} if isinstance(tokenize, str) else dict(tokenize)
        flags = bool(recipe["detokenise"]), bool(recipe["lowercase"])
        return Corpus(folder, binarised, recipe["pieces"], *flags, tokenize)
    except WRONG_VALUES as error:
        raise UserError(f"{path}: is damaged ({error!r}); prepare the corpus again") from None


@dataclass(frozen=True)
class Prepared:
    """All lists have one entry a sentence, in the order of the test set.

    hypotheses, references: as text is published, for sacreBLEU; generated: as fairseq-generate printed them.
    direction: "de-en", None where nothing tells (then nothing depends on it). raw: the references are the corpus's,
    not the detokenised T- lines, in which a word that the model's dictionary lacks is spoilt.
    """

    generated: Generated
    corpus: Corpus
    direction: str | None
    hypotheses: list[str]
    references: list[str]
    raw: bool

    @property
    def target(self) -> str:
        """The target language's code, "" if nothing tells."""
        return self.direction.split("-")[1] if self.direction else ""

    @property
    def tokenizer(self) -> str:
        """Name of sacreBLEU's tokenizer for the target language."""
        return self.corpus.tokenizer(self.target)


def prepare(output: Output, corpus: Corpus) -> Prepared:
    """UserError if sentences are missing, doubled, or not as many as the raw references."""
    generated = read_generated(output.file)
    subset, direction = _test_set(output, corpus)
    raw = direction and corpus.reference(subset, direction)
    if not raw and generated.references is None:
        raise UserError(f"{output.file}: has no references (lines T-n); give --data, where the raw ones are")
    references = _references(raw, generated) if raw else generated.references
    hypotheses = generated.translations
    if corpus.detokenise:
        if direction is None:
            raise UserError(
                f"{output.file}: which languages? Keep fairseq-generate's log beside it, or name the file SRC-TGT.txt"
            )
        hypotheses = _detokenise(hypotheses, direction)
        references = references if raw else _detokenise(references, direction)
    return Prepared(generated, corpus, direction, hypotheses, references, bool(raw))


def _test_set(output: Output, corpus: Corpus) -> tuple[str, str | None]:
    """Subset and direction: from the file's name, else from fairseq's log, else the only one of the corpus."""
    if output.direction:
        return output.subset or "test", output.direction
    if logged := logged_test_set(output.file):
        return logged
    known = corpus.binarised_directions("test") or corpus.with_references("test")
    return "test", known.pop() if len(known) == 1 else None


def _detokenise(sentences: list[str], direction: str) -> list[str]:
    """Undoes Moses tokens and their escapes (&apos; and the like)."""
    moses = MosesDetokenizer(lang=direction.split("-")[1].split("_")[0])
    return [moses.detokenize(sentence.split(), unescape=True) for sentence in sentences]


def _references(reference: Path, generated: Generated) -> list[str]:
    """The lines of `reference`; UserError if they are not as many as the translations of `generated`."""
    text = read_text(reference)
    lines = text.removesuffix("\n").split("\n") if text else []
    if len(lines) != len(generated.translations):
        raise UserError(
            f"{generated.path}: {len(generated.translations)} translations for {len(lines)} lines of {reference}"
        )
    return lines
