"""Tests of the steps of a recipe, and of the folder that it claims.

A step runs once, and again when its output is not whole, its settings changed, or an earlier step ran again. Its record
is FOLDER/steps/NAME.json.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from deepnet_fairseq.data.recipes.base import claimed
from deepnet_fairseq.data.steps import Steps, remove
from deepnet_fairseq.files import whole

from ..support.errors import refused
from ..support.prepared import files_in

STEPS = ["write", "sort", "count"]


class Program:
    """Program of three steps: "write" makes a file of words, "sort" a folder with their sorted lines, "count" a file.

    words: what is written
    made: the steps that the last call ran
    """

    def __init__(self, folder):
        self.folder = folder
        self.words = ["b", "a"]
        self.made = []

    def __call__(self, letter="x"):
        """Run the steps; return what each of them has counted.

        letter: a setting of the first step, which puts it behind each word
        """
        self.made = []
        steps = Steps(self.folder)
        return [
            steps.run("write", [self.folder / "text"], {"letter": letter}, lambda: self.write(letter)),
            steps.run("sort", [self.folder / "sorted"], {}, self.sort),
            steps.run("count", [self.folder / "count"], {}, self.count),
        ]

    def write(self, letter):
        """Write the words, each with the letter behind it, to the file text."""
        self.made.append("write")
        with whole(self.folder / "text") as part:
            part.write_text("\n".join(word + letter for word in self.words))
        return {"lines": len(self.words)}

    def sort(self):
        """Write the lines of text, sorted, to sorted/deep/lines."""
        self.made.append("sort")
        lines = sorted((self.folder / "text").read_text().split("\n"))
        with whole(self.folder / "sorted") as part:
            (part / "deep").mkdir(parents=True)
            (part / "deep" / "lines").write_text("\n".join(lines))
        return {"lines": len(lines)}

    def count(self):
        """Write the number of sorted lines to the file count."""
        self.made.append("count")
        lines = (self.folder / "sorted" / "deep" / "lines").read_text().split("\n")
        with whole(self.folder / "count") as part:
            part.write_text(str(len(lines)))
        return {"lines": 1}

    def outputs(self):
        """Return path -> bytes of the files in the folder, without the records of steps."""
        return {name: content for name, content in files_in(self.folder).items() if not name.startswith("steps")}


@pytest.fixture
def program(tmp_path):
    """Provide a Program whose folder has a name that glob would take for a pattern."""
    return Program(tmp_path / "a [b] *")


def announced(capsys):
    """Return the lines by which the three steps were announced: the first three that were printed."""
    return capsys.readouterr().out.split("\n")[:3]


def test_steps_are_run_in_order_and_announced(program, capsys):
    counts = program()

    assert counts == [{"lines": 2}, {"lines": 2}, {"lines": 1}]
    assert program.made == STEPS
    assert announced(capsys) == ["== write", "== sort", "== count"]


def test_steps_that_are_done_are_not_run_again_and_give_their_earlier_counts(program, capsys):
    counts = program()
    capsys.readouterr()

    assert program() == counts
    assert program.made == []
    for step, line in zip(STEPS, announced(capsys), strict=True):
        assert line.startswith(f"== {step}: ")  # with a remark that it was done before


def test_a_step_with_another_setting_is_run_again_and_all_after_it(program):
    program(letter="x")

    program(letter="y")

    assert program.made == STEPS
    assert program.outputs()["sorted/deep/lines"] == b"ay\nby"


class Spoilt(NamedTuple):
    """Folder of finished steps in which something is not whole.

    spoil: function that changes it. run_again: the steps that have to run again
    """

    spoil: Callable[[Path], object]
    run_again: list[str]


def writer_of(name, content):
    """Return a function that writes a file of a folder."""
    return lambda folder: (folder / name).write_text(content)


def remover_of(name):
    """Return a function that removes a file of a folder."""
    return lambda folder: (folder / name).unlink()


SPOILT = {
    "a file cut off": Spoilt(writer_of("text", "bx"), ["write", "sort", "count"]),
    "a file gone": Spoilt(remover_of("sorted/deep/lines"), ["sort", "count"]),
    "a file too many": Spoilt(writer_of("sorted/more", ""), ["sort", "count"]),
    "a record gone": Spoilt(remover_of("steps/sort.json"), ["sort", "count"]),
    "a record cut off": Spoilt(writer_of("steps/count.json", '{"asked": "'), ["count"]),
    "a record of something else": Spoilt(writer_of("steps/count.json", "[1]"), ["count"]),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_step_whose_output_is_not_whole_is_run_again_and_all_after_it(kind, program):
    program()
    before = program.outputs()

    SPOILT[kind].spoil(program.folder)
    program()

    assert program.made == SPOILT[kind].run_again
    assert program.outputs() == before


def test_a_step_that_fails_leaves_no_output(program):
    program.words = None  # cannot be written

    with pytest.raises(TypeError):
        program()

    assert program.outputs() == {}


def test_what_a_killed_run_left_of_the_outputs_is_removed(program):
    """Outputs are written as NAME.PROCESS.part at first, with the number of the process."""
    program.folder.mkdir()
    (program.folder / "text.123.part").write_text("half")
    (program.folder / "sorted.45.part").mkdir()
    (program.folder / "sorted.45.part" / "half").write_text("half")
    (program.folder / "other.9.part").write_text("no output of a step")
    (program.folder / "count").write_text("without a record")

    program()

    assert program.outputs().keys() == {"text", "sorted/deep/lines", "count", "other.9.part"}
    assert program.outputs()["count"] == b"2"  # made anew


def test_a_step_that_does_not_make_its_output_is_an_error_and_not_recorded(tmp_path):
    with pytest.raises(RuntimeError, match="idle"):
        Steps(tmp_path).run("idle", [tmp_path / "nothing"], {}, lambda: None)

    assert not list(tmp_path.glob("steps/*"))


def test_a_step_may_go_on_with_what_is_there(tmp_path):
    """By default an output without a record is removed before the step runs; with keep=True it stays."""
    download = tmp_path / "download"
    download.write_text("half")

    def append():
        with open(download, "a") as file:
            file.write(" and half")

    Steps(tmp_path).run("download", [download], {}, append, keep=True)

    assert download.read_text() == "half and half"


def test_of_a_link_the_target_is_not_removed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")

    remove(tmp_path / "link")

    assert not os.path.lexists(tmp_path / "link")
    assert (tmp_path / "mine").is_dir()


def claim(folder, corpus="iwslt14_de_en"):
    """Write a file into a folder that a recipe fills; corpus: name of the recipe."""
    with claimed(folder, corpus):
        (folder / "file").touch()


def test_a_folder_can_be_claimed_again_by_the_same_corpus(tmp_path):
    claim(tmp_path / "new")
    claim(tmp_path / "new")

    assert (tmp_path / "new" / "file").exists()


def test_a_folder_of_another_corpus_is_refused(tmp_path):
    claim(tmp_path / "new", "iwslt14_de_en")

    with refused(tmp_path / "new") as caught:
        claim(tmp_path / "new", "wmt17_en_de")

    assert "iwslt14_de_en" in caught.value.way_out
    assert "wmt17_en_de" in caught.value.way_out


def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("keep")

    with refused(tmp_path / "mine") as caught:
        claim(tmp_path / "mine")

    assert "thesis" in caught.value.way_out
    assert os.listdir(tmp_path / "mine") == ["thesis"]


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "thesis").write_text("keep")

    with refused(tmp_path / "thesis"):
        claim(tmp_path / "thesis")
