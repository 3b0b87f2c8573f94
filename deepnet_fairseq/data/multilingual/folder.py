"""The names in a prepared multilingual corpus, as fairseq's task translation_multi_simple_epoch looks for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...atomic_output import whole
from .pair_text import PairText
from .vocabulary import Vocabulary


@dataclass(frozen=True)
class Folder:
    """DEST/bin, or DEST/bin/shard00, shard01, ... of which fairseq reads one an epoch.

    Dictionaries and held-out subsets lie in the first shard only: fairseq takes both from there.
    """

    dest: Path
    shards: int

    def data(self, shard: int = 0) -> Path:
        """The folder of a shard, by its number from 0."""
        folder = self.dest / "bin"
        return folder if self.shards == 1 else folder / f"shard{shard:02d}"

    def prefixes(self, subset: str, text: PairText, shards: int = 1) -> list[tuple[Path, Path]]:
        """Source and target prefix of the binarised subset, one pair a shard; both directions share the files."""
        source, target = text.langs
        names = [f"{subset}.{text.name}.{lang}" for lang in (source, target)]
        return [(self.data(shard) / names[0], self.data(shard) / names[1]) for shard in range(shards)]

    def references(self, subset: str, text: PairText) -> tuple[Path, Path]:
        """Where the raw text of source and target lies: either is the reference of one direction."""
        there, back = text.directions
        return tuple(self.dest / "reference" / f"{subset}.{direction}.{lang}"
                     for direction, lang in zip((back, there), text.langs, strict=True))  # fmt: skip

    def write_lists(self, texts: Iterable[PairText], vocabulary: Vocabulary) -> None:
        """dict.LANG.txt, langs.txt (for --lang-dict) and pairs.txt (all directions, for --lang-pairs)."""
        texts = list(texts)
        languages = sorted({lang for text in texts for lang in text.langs})
        dictionary = vocabulary.dictionary(len(languages))
        for language in languages:
            write_text(self.data() / f"dict.{language}.txt", dictionary)
        for folder in {self.dest / "bin", self.data()}:
            write_text(folder / "langs.txt", "".join(f"{language}\n" for language in languages))
            write_text(folder / "pairs.txt", "".join(f"{pair}\n" for text in texts for pair in text.directions))


def write_text(path: Path, text: str) -> None:
    """Writes `path` in UTF-8, whole or not at all."""
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")
