"""Provide the data of an experiment: the user's, those of a recipe of `deepnet prepare corpus`, or generated ones.

A recipe downloads and prepares a corpus of a paper. A miniature is generated data in the form of a corpus, to try an
experiment (--smoke). The quickstart's corpus is an artificial language pair, qaa and qab. `deepnet prepare language`
writes it as text; `deepnet prepare corpus`, `text` and `lm` write data that are binarised for fairseq.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...errors import UserError
from ...files import split_paths
from ...study.experiment import Experiment

MULTILINGUAL = ("opus100", "m2m102")
# flags of fairseq's task; DeepNet states neither language tags nor temperature, and 5 is M2M-100's (Fan et al. 2020)
MULTILINGUAL_FLAGS = ("--encoder-langtok", "tgt", "--sampling-method", "temperature", "--sampling-temperature", "5")
UNKNOWN_DIRECTIONS = ("SRC-TGT", "TGT-SRC")  # printed in a dry run, before the data are there
SENTENCEPIECE_MARK = "▁"  # before the first piece of a word


class Step(NamedTuple):
    """A command, as words, that makes a folder of data."""

    folder: Path
    command: list[str]

    @property
    def note(self) -> Path:
        """File beside the folder that says how it was made."""
        return self.folder.with_name(f"{self.folder.name}.command")

    @property
    def made_by(self) -> list[str]:
        """The words of the command for the note, with "." for the folder's parent, so that this may be moved."""
        return [word.replace(str(self.folder.parent), ".") for word in self.command]

    def write_note(self) -> None:
        """Write the command into the note beside the folder."""
        self.note.write_text(f"{shlex.join(self.made_by)}\n", encoding="utf-8")

    def check(self) -> None:
        """Raise a UserError if the folder's note names another command; a folder without a note passes."""
        if not self.note.is_file():
            return
        before = self.note.read_text(encoding="utf-8").strip()
        try:
            words = shlex.split(before)  # older notes may have quotes around a path that needs none since a move
        except ValueError:  # a quote that is not closed: this is no command
            words = []
        if words != self.made_by:
            raise UserError(self.folder, f"was made by `{before}`; remove it, or name another --out")


@dataclass(frozen=True)
class Corpus:
    """Binarised data of an experiment, which may still have to be made.

    data: fairseq's DATA: a folder, or the folders of all shards with colons between them
    recipe: name of the paper's corpus, which is that of a recipe if there is one
    name: what these data are, for run.json: the recipe that made them, "the quickstart's", "generated" for a language
      model's miniature, or for others of the user's "of DATA" or "of TEXT"
    steps: what makes the data, in order; empty if they are there
    directions: language directions of a multilingual model, as "de-en"; empty for others
    """

    data: str
    recipe: str
    name: str
    steps: tuple[Step, ...] = ()
    directions: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The first folder of the data; the dictionaries are in it."""
        return Path(split_paths(self.data)[0])

    @property
    def shards(self) -> int:
        """Number of parts of the training data; fairseq counts a pass over one as an epoch."""
        return len(split_paths(self.data))

    @property
    def task(self) -> list[str]:
        """Flags that choose fairseq's multilingual task; none if the data have one language pair or one language."""
        if not self.directions:
            return []
        return [
            "--task", "translation_multi_simple_epoch", "--lang-dict", str(self.folder / "langs.txt"),
            "--lang-pairs", ",".join(self.directions), *MULTILINGUAL_FLAGS,
        ]  # fmt: skip

    @property
    def remove_bpe(self) -> str:
        """Value of fairseq-generate's --remove-bpe: the kind of subwords of the data, as the dictionaries show it.

        A multilingual corpus always has "sentencepiece"; before the data are there, others count as "subword_nmt".
        """
        if self.directions:
            return "sentencepiece"
        for file in self.folder.glob("dict.*.txt"):
            if SENTENCEPIECE_MARK in file.read_text(encoding="utf-8"):
                return "sentencepiece"
        return "subword_nmt"

    def vocabulary_size(self, expected: int) -> int:
        """Return the number of symbols of the largest dictionary; `expected` before the data are there."""
        sizes = [len(file.read_bytes().splitlines()) for file in self.folder.glob("dict*.txt")]
        return max(sizes) + 4 if sizes else expected  # bos, pad, eos and unk are not in the file

    def directions_of(self, subset: str) -> list[str]:
        """List the directions of a test set, both of each language pair; before the data are there, all directions.

        subset: the test set's name, as fairseq's --gen-subset takes it.
        """
        if not self.folder.is_dir():
            return list(self.directions)
        found = set()
        for file in self.folder.glob(f"{subset}.*.idx"):
            _, pair, _language, _ = file.name.split(".")  # as test.de-en.de.idx; each pair has a file of each language
            source, target = pair.split("-")
            found |= {pair, f"{target}-{source}"}
        return sorted(found)

    def subsets(self, names: list[str]) -> list[str]:
        """Return those of the named test sets that the data have; before the data are there, all of them."""
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
    """Find the data of an experiment, or the steps that make them in the folder OUT/data.

    out: the folder OUT; data: the user's --data, folders with colons between them, None to look in OUT/data; pairs: the
    user's --pairs, the language pairs to take of a multilingual corpus, with commas, None for the recipe's; text: the
    user's --text, three files with lines to train on, to validate on and to test on, empty if not given. Raises a
    UserError for a folder that does not exist, for text that the experiment does not train on, and as the function that
    finds its data does.
    """
    if text and experiment["corpus"] != "text":
        raise UserError("--text", f"{experiment.name} does not train on lines of one language")
    if data is not None and not Path(split_paths(data)[0]).is_dir():
        raise UserError(f"--data {data}", "no such folder")
    find = WITHOUT_RECIPE.get(experiment["corpus"], _recipes_corpus)
    return find(experiment, out / "data", data, pairs, text)


def _recipes_corpus(
    experiment: Experiment, folder: Path, data: str | None, pairs: str | None, text: Sequence[str]
) -> Corpus:
    """Find the data of a recipe, or the step of `deepnet prepare corpus` that makes them in OUT/data/RECIPE.

    UserError if data in that folder were made by another command, are a miniature's though the experiment is not one,
    or are no miniature's though it is. folder: OUT/data; data, pairs, text: as for `corpus`, text is not used.
    """
    recipe = experiment["corpus"]
    if data is not None:
        made_by = _recipe_of(Path(split_paths(data)[0]))
        return _corpus_of_folder(data, recipe, made_by or "of DATA")

    folder = folder / recipe
    command = ["deepnet", "prepare", "corpus", recipe, str(folder)]
    if experiment.choice.smoke:
        command.append("--miniature")
    if pairs is not None:
        command += ["--pairs", pairs]
    step = Step(folder, command)
    summary = folder / "recipe.json"  # the command writes it when all else is done
    if not summary.is_file() or not (folder / "bin").is_dir():
        return _corpus_of_folder(str(folder / "bin"), recipe, recipe, step)

    step.check()  # passes without a note, because users may prepare the data with flags of their own
    is_miniature = json.loads(summary.read_text(encoding="utf-8"))["miniature"]
    if is_miniature != experiment.choice.smoke:
        what = "a miniature's" if is_miniature else "no miniature's"
        raise UserError(folder, f"these data are {what}; remove the folder, or name another --out")
    return _corpus_of_folder(str(folder / "bin"), recipe, recipe)


def _language_models_corpus(
    experiment: Experiment, folder: Path, data: str | None, pairs: str | None, text: Sequence[str]
) -> Corpus:
    """Find the data of a language model, or the steps that make them: from the user's text, or those of a miniature.

    The user's text is split into GPT-2's subwords. UserError for a folder that holds other data, for data in OUT/data
    that were made by another command, and if there are no data: neither folder nor text is given, and the experiment is
    no miniature. folder: OUT/data; data, pairs, text: as for `corpus`, pairs are not used.
    """
    recipe = experiment["paper_corpus"]
    if data is not None:
        first = Path(split_paths(data)[0])
        if not (first / "dict.txt").is_file() or not (first / "train.idx").is_file():
            raise UserError(f"--data {data}", "holds no data of deepnet prepare lm")
        return Corpus(data, recipe, "of DATA")

    made = folder / "text"
    prepare = ["deepnet", "prepare", "lm"]
    if text:
        files = [str(Path(file).absolute()) for file in text]
        steps = _steps_left(Step(made, [*prepare, *files, str(made), "--bpe", "gpt2"]))
        return Corpus(str(made), recipe, "of TEXT", steps)
    if not experiment.choice.smoke:
        way_out = "--data DIR of deepnet prepare lm, --text TRAIN VALID TEST, or --smoke"
        raise UserError(experiment.name, f"the paper's text is not public: {way_out}")

    plain = folder / "plain"  # the text of the quickstart's language pair, of which qab is taken
    lines = [str(plain / f"{split}.qab") for split in SPLITS]
    command = [*prepare, *lines, str(made), "--vocab", "500"]
    steps = _steps_left(_artificial_language(plain), Step(made, command))
    return Corpus(str(made), recipe, "generated", steps)


def _quickstart_lines(
    experiment: Experiment, folder: Path, data: str | None, pairs: str | None, text: Sequence[str]
) -> Corpus:
    """Find the target side of the quickstart's corpus, for a language model, or the steps that make it.

    folder: OUT/data; data: as for `corpus`; pairs, text: not used.
    """
    name = experiment["paper_corpus"]
    if data is not None:
        return Corpus(data, name, "of DATA")

    plain = folder / "plain"
    made = folder / "lm"
    lines = [str(plain / f"{split}.qab") for split in SPLITS]
    command = ["deepnet", "prepare", "lm", *lines, str(made), "--vocab", "1000"]
    steps = _steps_left(_artificial_language(plain), Step(made, command))
    return Corpus(str(made), name, name, steps)


def _quickstart_pairs(
    experiment: Experiment, folder: Path, data: str | None, pairs: str | None, text: Sequence[str]
) -> Corpus:
    """Find the quickstart's 20,000 sentence pairs, or the steps that make them.

    folder: OUT/data; data: as for `corpus`; pairs, text: not used.
    """
    name = experiment["paper_corpus"]
    if data is not None:
        return Corpus(data, name, "of DATA")

    plain = folder / "plain"
    made = folder / "pair"
    lines = [str(plain / split) for split in SPLITS]
    command = ["deepnet", "prepare", "text", "qaa", "qab", *lines, str(made), "--vocab", "1000"]
    steps = _steps_left(_artificial_language(plain), Step(made, command))
    return Corpus(str(made), name, name, steps)


SPLITS = ("train", "valid", "test")  # names of the files of text, and of the binarised sets
# the key `corpus` of an experiment's file -> function that finds its data; any other value is the name of a recipe
WITHOUT_RECIPE = {"text": _language_models_corpus, "language": _quickstart_lines, "language_pair": _quickstart_pairs}


def _artificial_language(folder: Path) -> Step:
    """Return the step that writes the quickstart's language pair as text, into files such as FOLDER/train.qab.

    The language has as many nouns and verbs as in tools/quickstart.py.
    """
    return Step(folder, ["deepnet", "prepare", "language", str(folder), "--nouns", "60", "--verbs", "30"])


def _steps_left(*steps: Step) -> tuple[Step, ...]:
    """Return the steps that are still to be done: those whose folders are not there.

    If the folder of the last step is there, nothing is left to do, even if the folders before it are gone. Raises a
    UserError if that folder was made by another command.
    """
    if steps[-1].folder.is_dir():
        steps[-1].check()
        return ()
    return tuple(step for step in steps if not step.folder.is_dir())


def _recipe_of(folder: Path) -> str | None:
    """Return the name of the recipe that made a folder of binarised data; None if no recipe.json says it.

    That file is in the folder, one above it, or two above a shard.
    """
    for place in (folder, folder.parent, folder.parent.parent):
        file = place / "recipe.json"
        if file.is_file():
            return json.loads(file.read_text(encoding="utf-8")).get("recipe")
    return None


def _corpus_of_folder(data: str, recipe: str, name: str, *steps: Step) -> Corpus:
    """Return the Corpus of a folder, with the shards and directions that the folder has if it is there.

    data: the folder, or several with colons between them; recipe, name, steps: as in Corpus.
    """
    folder = Path(split_paths(data)[0])
    if not folder.is_dir():  # the steps are still to make it
        unknown = UNKNOWN_DIRECTIONS if recipe in MULTILINGUAL else ()
        return Corpus(data, recipe, name, steps, unknown)

    shards = sorted(str(shard) for shard in folder.glob("shard[0-9]*") if shard.is_dir())
    if shards:  # a recipe's folder of shards, instead of a list of them
        data = ":".join(shards)
        folder = Path(shards[0])

    directions: tuple[str, ...] = ()
    pairs = folder / "pairs.txt"  # of a multilingual corpus
    if pairs.is_file():
        directions = tuple(pairs.read_text(encoding="utf-8").split())
    return Corpus(data, recipe, name, steps, directions)
