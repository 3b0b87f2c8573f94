"""The SentencePiece model of all languages: given, or trained on a sample of their text."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from ...atomic_output import whole
from ..prepare import sentencepiece_model
from ..steps import Steps, read_json
from .pair_text import PairText
from .temperature import sample, shares
from .vocabulary import Vocabulary

SAMPLE = 10_000_000  # sentences the model is trained on, at most
CHARACTER_COVERAGE = 0.9999  # of some 6,000 characters in 76 languages of Tatoeba, this keeps those seen thrice


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
            Vocabulary(self.given)  # is one, or UserError
            settings = {"model": hashlib.sha256(self.given.read_bytes()).hexdigest()}
            Steps(self.dest).run("vocabulary", [path], settings, lambda: _copy(self.given, path))
            return Vocabulary(path)
        first = read_json(self.dest / "steps" / "vocabulary.json").get("result", {}).get("pairs")
        texts = [text for text in texts if first is None or text.name in first]

        def make() -> dict:
            sentences = (line for lines in self.draw(texts, counted).values() for line in lines)
            with whole(path) as part:
                part.write_bytes(sentencepiece_model(sentences, self.vocab, character_coverage=CHARACTER_COVERAGE))
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


def _side(texts: Sequence[PairText], lang: str) -> Iterator[str]:
    for text in texts:
        if lang in text.langs:
            side = text.langs.index(lang)
            yield from (pair[side] for pair in text.subsets["train"]())


def _copy(source: Path, path: Path) -> None:
    with whole(path) as part:
        shutil.copyfile(source, part)
