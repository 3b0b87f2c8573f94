"""Provide the data of an experiment: the user's, or those of a recipe of `deepnet prepare corpus`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import UserError

MULTILINGUAL = ("opus100", "m2m102")
# DeepNet states neither tags nor temperature; 5 is M2M-100's
OF_SEVERAL = ("--encoder-langtok", "tgt", "--sampling-method", "temperature", "--sampling-temperature", "5")
UNKNOWN_PAIRS = ("SRC-TGT", "TGT-SRC")  # of a dry run, before the data are there
PIECE = "▁"  # of SentencePiece, before the first piece of a word


@dataclass(frozen=True)
class Corpus:
    """Binarised data of an experiment.

    data: folder, or those of all shards with colons; recipe: the corpus of the paper; name: of what these data are,
    for run.json; command: that prepares them, empty if they are there; directions: of several languages.
    """

    data: str
    recipe: str
    name: str
    command: list[str] = field(default_factory=list)
    directions: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The first folder of the data, which has the dictionaries."""
        return Path(self.data.split(":")[0])

    @property
    def shards(self) -> int:
        """Number of parts of the training data; fairseq counts a pass over one as an epoch."""
        return len(self.data.split(":"))

    @property
    def task(self) -> list[str]:
        """Flags of fairseq's task, none for one language pair."""
        if not self.directions:
            return []
        return [
            "--task", "translation_multi_simple_epoch", "--lang-dict", str(self.folder / "langs.txt"),
            "--lang-pairs", ",".join(self.directions), *OF_SEVERAL,
        ]  # fmt: skip

    @property
    def pieces(self) -> str:
        """What --remove-bpe undoes."""
        if self.directions:
            return "sentencepiece"
        for file in self.folder.glob("dict.*.txt"):
            if PIECE in file.read_text(encoding="utf-8"):
                return "sentencepiece"
        return "subword_nmt"

    def symbols(self, vocabulary: int) -> int:
        """Return the size of the dictionary with fairseq's four symbols; `vocabulary` before the data are there."""
        sizes = [len(file.read_bytes().splitlines()) for file in self.folder.glob("dict.*.txt")]
        return max(sizes) + 4 if sizes else vocabulary

    def directions_of(self, subset: str) -> list[str]:
        """List the directions of a test set, both ways of each pair."""
        if not self.folder.is_dir():
            return list(self.directions)
        found = set()
        for file in self.folder.glob(f"{subset}.*.idx"):
            _, pair, lang, _ = file.name.split(".")
            source, target = pair.split("-")
            if lang == source:
                found |= {pair, f"{target}-{source}"}
        return sorted(found)

    def subsets(self, names: list[str]) -> list[str]:
        """Return those of the test sets that the data have; all before they are there."""
        if not self.folder.is_dir():
            return names
        return [name for name in names if any(self.folder.glob(f"{name}.*.idx"))]


def corpus(
    recipe: str, out: Path, data: str | None = None, miniature: bool = False, pairs: str | None = None
) -> Corpus:
    """Find the data of an experiment, or the command that prepares them in OUT/data.

    data: the user's, folders with colons; pairs: of languages, with commas, of a corpus of many. Raises a UserError for
    a folder that does not exist.
    """
    if data is not None:
        first = Path(data.split(":")[0])
        if not first.is_dir():
            raise UserError(f"--data {data}: no such folder")
        return _with_languages(data, recipe, _recipe_of(first) or "of DATA", [])

    folder = out / "data" / recipe
    command = ["deepnet", "prepare", "corpus", recipe, str(folder)]
    if miniature:
        command.append("--miniature")
    if pairs is not None:
        command += ["--pairs", pairs]
    if (folder / "recipe.json").is_file() and (folder / "bin").is_dir():
        command = []  # perhaps prepared with the user's own flags
    return _with_languages(str(folder / "bin"), recipe, recipe, command)


def _recipe_of(folder: Path) -> str | None:
    """Return the recipe by which a folder of binarised data was made, None if nothing says so."""
    for place in (folder, folder.parent, folder.parent.parent):
        file = place / "recipe.json"
        if file.is_file():
            return json.loads(file.read_text(encoding="utf-8")).get("recipe")
    return None


def _with_languages(data: str, recipe: str, name: str, command: list[str]) -> Corpus:
    folder = Path(data.split(":")[0])
    if not folder.is_dir():
        unknown = UNKNOWN_PAIRS if recipe in MULTILINGUAL else ()
        return Corpus(data, recipe, name, command, unknown)
    shards = sorted(str(shard) for shard in folder.glob("shard[0-9]*") if shard.is_dir())
    data = ":".join(shards) or data
    pairs = Path(data.split(":")[0]) / "pairs.txt"
    directions = tuple(pairs.read_text(encoding="utf-8").split()) if pairs.is_file() else ()
    return Corpus(data, recipe, name, command, directions)
