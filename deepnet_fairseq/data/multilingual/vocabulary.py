"""One SentencePiece vocabulary for all languages: given, or trained on a sample of their text drawn by temperature."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import sentencepiece

from ...atomic_output import whole
from ...errors import UserError
from ..prepare import sentencepiece_model
from ..steps import Steps, read_json
from . import PairText

FAIRSEQ_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first four entries of every fairseq dictionary
MULTIPLE = 8  # tensor cores want matrix sizes in such steps
SAMPLE = 10_000_000  # sentences the model is trained on, at most
CHARACTER_COVERAGE = 0.9999  # of some 6,000 characters in 76 languages of Tatoeba, this keeps those seen thrice


class Vocabulary:
    """SentencePiece's pieces in their order behind fairseq's four special symbols.

    The dictionary is that of the model, not of the words some text happens to hold: text binarised later fits it.
    UserError if the file is no SentencePiece model.
    """

    def __init__(self, model: Path):
        self.digest = hashlib.sha256(model.read_bytes()).hexdigest()
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        except (RuntimeError, OSError) as error:
            raise UserError(f"{model}: no SentencePiece model ({error})") from error
        ids = range(len(self.processor))
        special = [self.processor.is_control(i) or self.processor.is_unknown(i) for i in ids]
        self.pieces = [self.processor.id_to_piece(i) for i in ids if not special[i]]
        self._fairseq_id = np.cumsum([not s for s in special]) + len(FAIRSEQ_SPECIAL) - 1
        self._fairseq_id[special] = FAIRSEQ_SPECIAL.index("<unk>")

    def __len__(self) -> int:
        """Entries of fairseq's dictionary, its four special symbols among them."""
        return len(FAIRSEQ_SPECIAL) + len(self.pieces)

    def encode(self, sentences: list[str], threads: int = 1) -> list[np.ndarray]:
        """fairseq's numbers of the pieces of each sentence, the end-of-sentence symbol last."""
        eos = FAIRSEQ_SPECIAL.index("</s>")
        encoded = self.processor.encode(sentences, out_type=int, num_threads=threads)
        return [np.append(self._fairseq_id[ids], eos) if ids else np.array([eos]) for ids in encoded]

    def dictionary(self, languages: int) -> list[str]:
        """Lines of dict.LANG.txt; with fillers, so that it is a multiple of 8 once fairseq adds a tag per language."""
        fillers = -(len(self) + languages) % MULTIPLE
        return [f"{entry} 1" for entry in (*self.pieces, *(f"madeupword{i:04d}" for i in range(fillers)))]


@dataclass(frozen=True)
class Pieces:
    """DEST/spm.model: a copy of the file `given`, or `vocab` pieces with languages drawn at `temperature`."""

    dest: Path
    vocab: int
    temperature: float
    given: Path | None = None

    def vocabulary(self, texts: Sequence[PairText], counted: dict[str, int]) -> Vocabulary:
        """The model, trained unless it is given or there; UserError if the file given is none.

        counted: pair -> training pairs, where none is given. Pairs that come later change nothing.
        """
        path = self.dest / "spm.model"
        if self.given is not None:
            settings = {"model": Vocabulary(self.given).digest}
            Steps(self.dest).run("vocabulary", [path], settings, lambda: _write(path, self.given.read_bytes()))
            return Vocabulary(path)
        first = read_json(self.dest / "steps" / "vocabulary.json").get("result", {}).get("pairs")
        texts = [text for text in texts if first is None or text.name in first]

        def make() -> dict:
            sentences = (line for lines in self.draw(texts, counted).values() for line in lines)
            _write(path, sentencepiece_model(sentences, self.vocab, character_coverage=CHARACTER_COVERAGE))
            return {"pairs": [text.name for text in texts]}

        settings = {"vocab": self.vocab, "temperature": self.temperature, "text": {t.name: t.state for t in texts}}
        Steps(self.dest).run("vocabulary", [path], settings, make)
        return Vocabulary(path)

    def draw(self, texts: Sequence[PairText], counted: dict[str, int]) -> dict[str, Iterator[str]]:
        """language -> lines, its share of the sample by temperature."""
        languages = sorted({lang for text in texts for lang in text.langs})
        sizes = {lang: sum(counted[text.name] for text in texts if lang in text.langs) for lang in languages}
        total = min(SAMPLE, sum(sizes.values()))
        wanted = {lang: round(total * share) for lang, share in shares(sizes, self.temperature).items()}
        print(
            f"| {self.vocab:,} pieces from {total:,} sentences in {len(languages)} languages, "
            f"{min(wanted.values()):,} to {max(wanted.values()):,} of each"
        )
        return {
            lang: sample(_side(texts, lang), sizes[lang], wanted[lang], Random(f"vocabulary {lang}"))
            for lang in languages
        }


def _write(path: Path, content: bytes) -> None:
    with whole(path) as part:
        part.write_bytes(content)


def _side(texts: Sequence[PairText], lang: str) -> Iterator[str]:
    for text in texts:
        if lang in text.langs:
            side = text.langs.index(lang)
            yield from (pair[side] for pair in text.subsets["train"]())


def shares(sizes: dict[str, int], temperature: float) -> dict[str, float]:
    """p_l proportional to (n_l / sum of n) ** (1 / T), as in Arivazhagan et al. (2019); T = 1 keeps the proportions.

    sizes: language -> sentences; the shares sum to 1. The temperature T is above 0.
    """
    total = sum(sizes.values())
    weights = {name: (size / total) ** (1 / temperature) for name, size in sizes.items()}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def sample(lines: Iterable[str], count: int, wanted: int, rng: Random) -> Iterator[str]:
    """`wanted` of the `count` lines, in one pass and in their order.

    Each line comes wanted // count times; those that come once more are a random sample without replacement (Knuth,
    The Art of Computer Programming, vol. 2, algorithm S), so that the share is met to the line.
    """
    copies, left = divmod(wanted, count)
    for position, line in enumerate(lines):
        once_more = rng.random() * (count - position) < left
        left -= once_more
        for _ in range(copies + once_more):
            yield line
