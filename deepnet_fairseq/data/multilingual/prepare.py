"""Texts of many pairs -> one vocabulary -> binarised data for one model: the steps that multilingual recipes share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from ..steps import Steps, remove
from .binarised import binarise
from .folder import Folder, write_text
from .pair_text import PairText
from .training import Pieces
from .vocabulary import Vocabulary

LEAST = 10_000  # sentence pairs a shard; a pair that has fewer lies in fewer shards, and fairseq knows what that means


@dataclass(frozen=True)
class Multilingual:
    """One preparation into `folder`, with the vocabulary of `pieces`."""

    folder: Folder
    pieces: Pieces
    threads: int = 1

    def run(self, texts: Sequence[PairText], evaluated: Sequence[PairText] = ()) -> dict[str, dict[str, int]]:
        """pair -> subset -> sentence pairs. Each pair has steps of its own: one that comes later leaves the others.

        texts: pairs to train on; evaluated: pairs without training text, in languages that others have.
        """
        self.lay_out()
        counted = {}
        if not self.pieces.given:
            counted = {text.name: self.count(text) for text in texts}
        vocabulary = self.pieces.vocabulary(texts, counted)
        counts = {}
        for text in texts:  # one pair after another: it may take its archives away when it is done
            counts[text.name] = self.pair(text, counted.get(text.name) or self.count(text), vocabulary)
            text.finish()
        for text in evaluated:
            counts[text.name] = self.pair(text, 0, vocabulary)
        self.folder.write_lists(texts, vocabulary)
        return counts

    def step(self, name: str, outputs: Sequence[Path], settings: dict, make) -> dict:
        """A step by itself, which depends on none before it; see Steps.run."""
        return Steps(self.folder.dest).run(name, outputs, settings, make)

    def lay_out(self) -> None:
        """Makes the folders; those of another number of shards are removed."""

        def make() -> None:
            remove(self.folder.dest / "bin")

        self.step("layout", [], {"shards": self.folder.shards}, make)
        for folder in (*map(self.folder.data, range(self.folder.shards)), self.folder.dest / "reference"):
            folder.mkdir(parents=True, exist_ok=True)

    def count(self, text: PairText) -> int:
        """Training pairs, or their bound; the reading finds what is wrong with the text, too."""

        def make() -> dict:
            if text.bound is not None:
                return {"train": text.bound()}
            return {subset: sum(1 for _ in read()) for subset, read in text.subsets.items()}

        return self.step(f"count.{text.name}", [], {"text": text.state}, make)["train"]

    def pair(self, text: PairText, train: int, vocabulary: Vocabulary) -> dict[str, int]:
        """Binarised text of one pair, subset -> sentence pairs."""
        shards = max(1, min(self.folder.shards, train // LEAST))
        read = dict(text.subsets)
        if "train" in read:  # fairseq wants a valid set of every pair it trains on: a training pair stands in for one
            read.setdefault("valid", lambda: islice(text.subsets["train"](), 1))
        prefixes = {name: self.folder.prefixes(name, text, shards if name == "train" else 1) for name in read}
        references = {name: self.folder.references(name, text) for name in read if name not in ("train", "valid")}

        def make() -> dict:
            counts = {
                name: binarise(read[name](), vocabulary, where, self.threads)["sentences"]
                for name, where in prefixes.items()
            }
            for name, paths in references.items():
                _write_sides(read[name](), paths)
            print(f"| {text.name}: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()), flush=True)
            return counts

        sides = chain.from_iterable(chain.from_iterable(prefixes.values()))
        outputs = [Path(f"{side}.{end}") for side in sides for end in ("bin", "idx")]
        settings = {"text": text.state, "vocabulary": vocabulary.digest, "shards": shards}
        return self.step(f"pair.{text.name}", [*outputs, *chain(*references.values())], settings, make)


def _write_sides(pairs: Iterator[tuple[str, str]], paths: tuple[Path, Path]) -> None:
    for path, lines in zip(paths, zip(*pairs, strict=True), strict=True):
        write_text(path, "".join(f"{line}\n" for line in lines))
