"""Texts of many pairs -> one vocabulary -> binarised data for one model: the steps that multilingual recipes share."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from random import Random

from ...whole_file import whole
from ..prepare import sentencepiece_model
from ..steps import Steps, read_json, remove
from .binarised import binarise
from .folder import Folder
from .pair_text import PairText
from .temperature import sample, shares
from .vocabulary import Vocabulary

SAMPLE = 10_000_000  # sentences the vocabulary is trained on, at most
CHARACTER_COVERAGE = 0.9995  # SentencePiece's advice for scripts with thousands of characters
LEAST = 10_000  # sentence pairs a shard; a pair that has fewer lies in fewer shards, and fairseq knows what that means


@dataclass(frozen=True)
class Multilingual:
    """One preparation into `folder`: `vocab` pieces, trained at `temperature` unless there is a `model`."""

    folder: Folder
    vocab: int
    temperature: float
    threads: int = 1
    model: Path | None = None

    def run(self, texts: Sequence[PairText]) -> dict[str, dict[str, int]]:
        """pair -> subset -> sentence pairs. Each pair has steps of its own: one that comes later leaves the others."""
        self.lay_out()
        counted = {text.name: self.count(text) for text in texts}
        vocabulary = self.vocabulary(texts, counted)
        counts = {text.name: self.pair(text, counted[text.name], vocabulary) for text in texts}
        self.folder.write_lists(texts, vocabulary)
        return counts

    def step(self, name: str, outputs: Sequence[Path], settings: dict, make) -> dict:
        return Steps(self.folder.dest).run(name, outputs, settings, make)

    def lay_out(self) -> None:
        """Makes the folders; those of another number of shards are removed."""

        def make() -> None:
            remove(self.folder.dest / "bin")

        self.step("layout", [], {"shards": self.folder.shards}, make)
        for folder in (*map(self.folder.data, range(self.folder.shards)), self.folder.dest / "reference"):
            folder.mkdir(parents=True, exist_ok=True)

    def count(self, text: PairText) -> int:
        """Training pairs; the reading finds what is wrong with the text, too."""

        def make() -> dict:
            return {subset: sum(1 for _ in read()) for subset, read in text.subsets.items()}

        return self.step(f"count.{text.name}", [], {"text": text.state}, make)["train"]

    def vocabulary(self, texts: Sequence[PairText], counted: dict[str, int]) -> Vocabulary:
        """DEST/spm.model: a copy of the model given, or trained on the pairs that were there when it was made first."""
        path = self.folder.dest / "spm.model"
        if self.model is not None:
            self.step("vocabulary", [path], {"model": _sha256(self.model)}, lambda: _copy(self.model, path))
            return Vocabulary(path)
        first = read_json(self.folder.dest / "steps" / "vocabulary.json").get("result", {}).get("pairs")
        texts = [text for text in texts if first is None or text.name in first]

        def make() -> dict:
            drawn = self.draw(texts, counted)
            with whole(path) as part:
                sentences = (line for lines in drawn.values() for line in lines)
                part.write_bytes(sentencepiece_model(sentences, self.vocab, character_coverage=CHARACTER_COVERAGE))
            return {"pairs": [text.name for text in texts]}

        settings = {"vocab": self.vocab, "temperature": self.temperature, "text": {t.name: t.state for t in texts}}
        self.step("vocabulary", [path], settings, make)
        return Vocabulary(path)

    def draw(self, texts: Sequence[PairText], counted: dict[str, int]) -> dict[str, Iterator[str]]:
        """language -> its share of the sentences that the vocabulary is trained on."""
        languages = sorted({lang for text in texts for lang in text.langs})
        sizes = {lang: sum(counted[text.name] for text in texts if lang in text.langs) for lang in languages}
        total = min(SAMPLE, sum(sizes.values()))
        wanted = {lang: round(total * share) for lang, share in shares(sizes, self.temperature).items()}
        print(f"| {self.vocab:,} pieces from {total:,} sentences in {len(languages)} languages, "
              f"{min(wanted.values()):,} to {max(wanted.values()):,} of each")  # fmt: skip
        return {
            lang: sample(_side(texts, lang), sizes[lang], wanted[lang], Random(f"vocabulary {lang}"))
            for lang in languages
        }

    def pair(self, text: PairText, train: int, vocabulary: Vocabulary) -> dict[str, int]:
        """Binarised text of one pair, subset -> sentence pairs."""
        shards = max(1, min(self.folder.shards, train // LEAST))
        prefixes = {"train": self.folder.prefixes("train", text, shards), "valid": self.folder.prefixes("valid", text)}
        prefixes |= {name: self.folder.prefixes(name, text) for name in text.subsets if name not in prefixes}
        references = {name: self.folder.references(name, text) for name in prefixes if name not in ("train", "valid")}

        def make() -> dict:
            counts = {}
            for subset, where in prefixes.items():
                # fairseq loads a valid set of every pair: where none was published, one training pair stands in
                read = text.subsets.get(subset) or (lambda: islice(text.subsets["train"](), 1))
                counts[subset] = binarise(read(), vocabulary, where, self.threads)["sentences"]
            for subset, paths in references.items():
                _write_sides(text.subsets[subset](), paths)
            print(f"| {text.name}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()), flush=True)
            return counts

        outputs = [
            Path(f"{side}.{end}") for shard in chain(*prefixes.values()) for side in shard for end in ("bin", "idx")
        ]
        settings = {"text": text.state, "vocabulary": vocabulary.digest, "shards": shards}
        return self.step(f"pair.{text.name}", [*outputs, *chain(*references.values())], settings, make)


def _side(texts: Sequence[PairText], lang: str) -> Iterator[str]:
    for text in texts:
        if lang in text.langs:
            side = text.langs.index(lang)
            yield from (pair[side] for pair in text.subsets["train"]())


def _write_sides(pairs: Iterator[tuple[str, str]], paths: tuple[Path, Path]) -> None:
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        with whole(path) as part:
            part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _copy(source: Path, path: Path) -> None:
    with whole(path) as part:
        shutil.copyfile(source, part)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
