"""Tests that a step runs once, and again when its output is not whole or an earlier step changed."""

import os

import pytest

from deepnet_fairseq.data.recipes.base import claimed
from deepnet_fairseq.data.steps import Steps, remove
from deepnet_fairseq.files import whole

from ..support.errors import refused
from ..support.prepared import files_in

STEPS = ["write", "sort", "count"]


class Program:
    """Program of three steps: "write" makes a file, "sort" a folder of it, "count" a file of that.

    words: what is written; made: the steps that the last call ran
    """

    def __init__(self, folder):
        self.folder = folder
        self.words = ["b", "a"]
        self.made = []

    def __call__(self, letter="x"):
        """Run the steps; return what each of them has counted. letter: a setting of the first, put after each word."""
        self.made = []
        steps = Steps(self.folder)
        return [
            steps.run("write", [self.folder / "text"], {"letter": letter}, lambda: self.write(letter)),
            steps.run("sort", [self.folder / "sorted"], {}, self.sort),
            steps.run("count", [self.folder / "count"], {}, self.count),
        ]

    def write(self, letter):
        self.made.append("write")
        with whole(self.folder / "text") as part:
            part.write_text("\n".join(word + letter for word in self.words))
        return {"lines": len(self.words)}

    def sort(self):
        self.made.append("sort")
        lines = sorted((self.folder / "text").read_text().split("\n"))
        with whole(self.folder / "sorted") as part:
            (part / "deep").mkdir(parents=True)
            (part / "deep" / "lines").write_text("\n".join(lines))
        return {"lines": len(lines)}

    def count(self):
        self.made.append("count")
        lines = (self.folder / "sorted" / "deep" / "lines").read_text().split("\n")
        with whole(self.folder / "count") as part:
            part.write_text(str(len(lines)))
        return {"lines": 1}

    def outputs(self):
        """Return the content of the files but the records of steps."""
        return {name: content for name, content in files_in(self.folder).items() if not name.startswith("steps")}


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path / "a [b] *")  # a pattern would misread this path


def announced(capsys):
    """Return the first three lines that were printed."""
    return capsys.readouterr().out.split("\n")[:3]


def test_steps_are_run_in_order_and_announced(program, capsys):
    assert program() == [{"lines": 2}, {"lines": 2}, {"lines": 1}]

    assert program.made == STEPS
    assert announced(capsys) == ["== write", "== sort", "== count"]


def test_steps_that_are_done_are_not_run_again_and_give_their_earlier_counts(program, capsys):
    first = program()
    capsys.readouterr()

    assert program() == first

    assert program.made == []
    assert announced(capsys) == [f"== {step}: done before" for step in STEPS]


def test_a_step_with_another_setting_is_run_again_and_all_after_it(program):
    program()

    program("y")

    assert program.made == STEPS
    assert program.outputs()["sorted/deep/lines"] == b"ay\nby"


SPOILED = {  # what is wrong -> how to spoil the folder, steps that are run again
    "a file cut off": (lambda folder: (folder / "text").write_text("bx"), ["write", "sort", "count"]),
    "a file gone": (lambda folder: (folder / "sorted" / "deep" / "lines").unlink(), ["sort", "count"]),
    "a file too many": (lambda folder: (folder / "sorted" / "more").write_text(""), ["sort", "count"]),
    "a record gone": (lambda folder: (folder / "steps" / "sort.json").unlink(), ["sort", "count"]),
    "a record torn": (lambda folder: (folder / "steps" / "count.json").write_text('{"asked": "'), ["count"]),
    "a record of something else": (lambda folder: (folder / "steps" / "count.json").write_text("[1]"), ["count"]),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_a_step_whose_output_is_not_whole_is_run_again_and_all_after_it(kind, program):
    spoil, run_again = SPOILED[kind]
    program()
    before = program.outputs()

    spoil(program.folder)
    program()

    assert program.made == run_again
    assert program.outputs() == before


def test_a_step_that_fails_leaves_nothing(program):
    program.words = None  # which cannot be written

    with pytest.raises(TypeError):
        program()

    assert program.outputs() == {}


def test_what_a_killed_run_left_of_the_outputs_is_removed(program):
    program.folder.mkdir()
    (program.folder / "text.123.part").write_text("half")
    (program.folder / "sorted.45.part").mkdir()
    (program.folder / "sorted.45.part" / "half").write_text("half")
    (program.folder / "other.9.part").write_text("of something else")
    (program.folder / "count").write_text("of unknown origin")

    program()

    assert program.outputs().keys() == {"text", "sorted/deep/lines", "count", "other.9.part"}
    assert program.outputs()["count"] == b"2"


def test_a_step_that_does_not_make_its_output_is_an_error_and_not_recorded(tmp_path):
    with pytest.raises(RuntimeError, match="idle"):
        Steps(tmp_path).run("idle", [tmp_path / "nothing"], {}, lambda: None)

    assert not list(tmp_path.glob("steps/*"))


def test_a_step_that_keeps_what_is_there_goes_on_with_it(tmp_path):
    download = tmp_path / "download"
    download.write_text("half")

    def append():
        with open(download, "a") as file:
            file.write(" and half")

    Steps(tmp_path).run("download", [download], {}, append, keep=True)

    assert download.read_text() == "half and half"


def test_a_link_is_removed_and_not_its_target(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")

    remove(tmp_path / "link")

    assert not os.path.lexists(tmp_path / "link")
    assert (tmp_path / "mine").is_dir()


def claim(folder, corpus="iwslt14_de_en"):
    """Write a file of a corpus into its folder."""
    with claimed(folder, corpus):
        (folder / "file").touch()


def test_a_folder_is_claimed_by_one_corpus_again_and_again(tmp_path):
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
