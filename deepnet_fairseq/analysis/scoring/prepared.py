"""One test set's translations and references, as the metrics want them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sacremoses import MosesDetokenizer

from ...errors import UserError
from .corpus import Corpus, read_corpus
from .generated import logged_test_set, read_generated
from .metrics import read_references
from .outputs import Output


@dataclass(frozen=True)
class Prepared:
    """All lists have one entry a sentence, in the order of the test set.

    hypotheses, references: as text is published, for sacreBLEU; tokenised_*: as fairseq-generate printed them, the
    references None where it printed none. direction: "de-en", None where nothing tells (then nothing depends on it).
    reference: "raw", from the corpus, or "generated", the detokenised T- lines, in which a word that the model's
    dictionary lacks is spoilt.
    """

    path: Path
    direction: str | None
    hypotheses: list[str]
    references: list[str]
    tokenised_hypotheses: list[str]
    tokenised_references: list[str] | None
    reference: str
    corpus: Corpus

    @property
    def target(self) -> str:
        """The target language's code, "" if nothing tells."""
        return self.direction.split("-")[1] if self.direction else ""

    @property
    def tokenizer(self) -> str:
        """Name of sacreBLEU's tokenizer for the target language."""
        return self.corpus.tokenizer(self.target)


def prepare(output: Output | Path, data: Corpus | str | Path | None = None) -> Prepared:
    """output: a file of fairseq-generate; data: what was translated, as fairseq takes it (see read_corpus).

    UserError if sentences are missing, doubled, or not as many as the raw references.
    """
    output = output if isinstance(output, Output) else Output(Path(output))
    corpus = data if isinstance(data, Corpus) else read_corpus(data)
    generated = read_generated(output.file)
    subset, direction = _test_set(output, corpus)
    raw = direction and corpus.reference(subset, direction)
    if not raw and generated.references is None:
        raise UserError(f"{output.file}: has no references (lines T-n); give --data, where the raw ones are")
    references = read_references(raw, generated) if raw else generated.references
    hypotheses = generated.translations
    if corpus.detokenise:
        if direction is None:
            raise UserError(
                f"{output.file}: which languages? Keep fairseq-generate's log beside it, or name the file SRC-TGT.txt"
            )
        hypotheses = _detokenise(hypotheses, direction)
        references = references if raw else _detokenise(references, direction)
    return Prepared(
        output.file,
        direction,
        hypotheses,
        references,
        generated.translations,
        generated.references,
        "raw" if raw else "generated",
        corpus,
    )


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
