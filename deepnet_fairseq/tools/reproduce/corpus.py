"""Provide the data of an experiment: the user's, those of a recipe of `deepnet prepare corpus`, or generated ones."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError
from ...study.experiment import Experiment

MULTILINGUAL = ("opus100", "m2m102")
# DeepNet states neither tags nor temperature; 5 is M2M-100's
OF_SEVERAL = ("--encoder-langtok", "tgt", "--sampling-method", "temperature", "--sampling-temperature", "5")
UNKNOWN_PAIRS = ("SRC-TGT", "TGT-SRC")  # of a dry run, before the data are there
PIECE = "▁"  # of SentencePiece, before the first piece of a word


class Step(NamedTuple):
    """A command that makes a folder."""

    folder: Path
    command: list[str]

    @property
    def note(self) -> Path:
        """File beside the folder that says how it was made."""
        return self.folder.with_name(f"{self.folder.name}.command")

    @property
    def made_by(self) -> str:
        """The command without the place of the data, so that they may be moved."""
        return shlex.join(self.command).replace(str(self.folder.parent), ".")

    def write_note(self) -> None:
        """Write the command beside the folder."""
        self.note.write_text(f"{self.made_by}\n", encoding="utf-8")

    def check(self) -> None:
        """Raise a UserError if the folder was made otherwise; one without a note is taken as it is."""
        if not self.note.is_file():
            return
        before = self.note.read_text(encoding="utf-8").strip()
        if before != self.made_by:
            raise UserError(f"{self.folder}: was made by `{before}`; remove it, or name another --out")


@dataclass(frozen=True)
class Corpus:
    """Binarised data of an experiment.

    data: folder, or those of all shards with colons; recipe: the corpus of the paper; name: of what these data are,
    for run.json; steps: what is to be made before they are there; directions: of several languages.
    """

    data: str
    recipe: str
    name: str
    steps: tuple[Step, ...] = ()
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
        sizes = [len(file.read_bytes().splitlines()) for file in self.folder.glob("dict*.txt")]
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
    experiment: Experiment,
    out: Path,
    data: str | None = None,
    pairs: str | None = None,
    text: Sequence[str] = (),
) -> Corpus:
    """Find the data of an experiment, or the commands that prepare them in OUT/data.

    data: the user's, folders with colons; pairs: of languages, with commas, of a corpus of many; text: the user's
    lines to train on, to validate on and to test on. Raises a UserError for a folder that does not exist.
    """
    if text and experiment["corpus"] != "text":
        raise UserError(f"--text: {experiment.name} does not train on lines of one language")
    if data is not None and not Path(data.split(":")[0]).is_dir():
        raise UserError(f"--data {data}: no such folder")
    make = KINDS.get(experiment["corpus"], _of_recipe)
    return make(experiment, out / "data", data, pairs, text)


def _of_recipe(
    experiment: Experiment, folder: Path, data: str | None, pairs: str | None, text: Sequence[str]
) -> Corpus:
    """Data of `deepnet prepare corpus`, in a folder of the recipe's name."""
    recipe = experiment["corpus"]
    if data is not None:
        return _with_languages(data, recipe, _recipe_of(Path(data.split(":")[0])) or "of DATA")

    folder /= recipe
    command = ["deepnet", "prepare", "corpus", recipe, str(folder)]
    if experiment.choice.smoke:
        command.append("--miniature")
    if pairs is not None:
        command += ["--pairs", pairs]
    step = Step(folder, command)
    summary = folder / "recipe.json"
    if not summary.is_file() or not (folder / "bin").is_dir():
        return _with_languages(str(folder / "bin"), recipe, recipe, step)

    step.check()  # without a note it was perhaps prepared with the user's own flags
    is_miniature = bool(json.loads(summary.read_text(encoding="utf-8")).get("miniature"))
    if is_miniature != experiment.choice.smoke:
        what = "a miniature's" if is_miniature else "no miniature's"
        raise UserError(f"{folder}: these data are {what}; remove the folder, or name another --out")
    return _with_languages(str(folder / "bin"), recipe, recipe)


def _text(experiment: Experiment, folder: Path, data: str | None, pairs: str | None, text: Sequence[str]) -> Corpus:
    """Lines of one language: the user's binarised data, the user's text in GPT-2's pieces, or a miniature's."""
    recipe = experiment["paper_corpus"]
    if data is not None:
        if not (Path(data) / "dict.txt").is_file() or not (Path(data) / "train.idx").is_file():
            raise UserError(f"--data {data}: holds no data of deepnet prepare lm")
        return Corpus(data, recipe, "of DATA")

    made = folder / "text"
    prepare = ["deepnet", "prepare", "lm"]
    if text:
        command = [*prepare, *(str(Path(file).absolute()) for file in text), str(made), "--bpe", "gpt2"]
        return Corpus(str(made), recipe, "of TEXT", _missing(Step(made, command)))
    if not experiment.choice.smoke:
        way_out = "--data DIR of deepnet prepare lm, --text TRAIN VALID TEST, or --smoke"
        raise UserError(f"{experiment.name}: the paper's text is not public: {way_out}")
    plain = folder / "plain"
    lines = [str(plain / f"{split}.qab") for split in SPLITS]
    steps = _missing(_language(plain), Step(made, [*prepare, *lines, str(made), "--vocab", "500"]))
    return Corpus(str(made), recipe, "generated", steps)


def _small_text(
    experiment: Experiment, folder: Path, data: str | None, pairs: str | None, text: Sequence[str]
) -> Corpus:
    """The target side of the quickstart's corpus."""
    plain = folder / "plain"
    made = folder / "lm"
    lines = [str(plain / f"{split}.qab") for split in SPLITS]
    command = ["deepnet", "prepare", "lm", *lines, str(made), "--vocab", "1000"]
    name = experiment["paper_corpus"]
    if data is not None:
        return Corpus(data, name, "of DATA")
    return Corpus(str(made), name, name, _missing(_language(plain), Step(made, command)))


def _small_pair(
    experiment: Experiment, folder: Path, data: str | None, pairs: str | None, text: Sequence[str]
) -> Corpus:
    """The quickstart's corpus, 20,000 pairs."""
    plain = folder / "plain"
    made = folder / "pair"
    lines = [str(plain / split) for split in SPLITS]
    command = ["deepnet", "prepare", "text", "qaa", "qab", *lines, str(made), "--vocab", "1000"]
    name = experiment["paper_corpus"]
    if data is not None:
        return Corpus(data, name, "of DATA")
    return Corpus(str(made), name, name, _missing(_language(plain), Step(made, command)))


SPLITS = ("train", "valid", "test")
KINDS = {"text": _text, "language": _small_text, "language_pair": _small_pair}  # others are recipes


def _language(folder: Path) -> Step:
    return Step(folder, ["deepnet", "prepare", "language", str(folder), "--nouns", "60", "--verbs", "30"])


def _missing(*steps: Step) -> tuple[Step, ...]:
    """Return the steps that are still to be done: none if the last folder is there, made by the same command."""
    if steps[-1].folder.is_dir():
        steps[-1].check()
        return ()
    return tuple(step for step in steps if not step.folder.is_dir())


def _recipe_of(folder: Path) -> str | None:
    """Return the recipe by which a folder of binarised data was made, None if nothing says so."""
    for place in (folder, folder.parent, folder.parent.parent):
        file = place / "recipe.json"
        if file.is_file():
            return json.loads(file.read_text(encoding="utf-8")).get("recipe")
    return None


def _with_languages(data: str, recipe: str, name: str, *steps: Step) -> Corpus:
    """Make the corpus of a folder with the shards and directions that it has, if it is there."""
    folder = Path(data.split(":")[0])
    if not folder.is_dir():
        unknown = UNKNOWN_PAIRS if recipe in MULTILINGUAL else ()
        return Corpus(data, recipe, name, steps, unknown)

    shards = sorted(str(shard) for shard in folder.glob("shard[0-9]*") if shard.is_dir())
    if shards:
        data = ":".join(shards)
        folder = Path(shards[0])

    directions: tuple[str, ...] = ()
    pairs = folder / "pairs.txt"
    if pairs.is_file():
        directions = tuple(pairs.read_text(encoding="utf-8").split())
    return Corpus(data, recipe, name, steps, directions)
