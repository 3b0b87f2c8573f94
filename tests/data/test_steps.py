"""Tests that a step runs once, and again when its output is not whole or an earlier step changed."""

import os

import pytest

from deepnet_fairseq.data.recipes.base import claimed
from deepnet_fairseq.data.steps import Steps, remove
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.files import whole


class Program:
    """Program of three steps, repeatable: a file, a folder made of it, a file made of that."""

    def __init__(self, folder):
        self.folder, self.words, self.made = folder, ["b", "a"], []

    def __call__(self, letter="x"):
        self.made, steps, folder = [], Steps(self.folder), self.folder

        def make(name, output, text):
            self.made.append(name)
            with whole(folder / output) as part:
                path = part / "deep" / "lines" if output == "sorted" else part
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("\n".join(content := text()))
            return {"lines": len(content)}

        def read(path):
            return (folder / path).read_text().split("\n")

        return [
            steps.run("write", [folder / "text"], {"letter": letter},
                      lambda: make("write", "text", lambda: [word + letter for word in self.words])),
            steps.run("sort", [folder / "sorted"], {}, lambda: make("sort", "sorted", lambda: sorted(read("text")))),
            steps.run("count", [folder / "count"], {},
                      lambda: make("count", "count", lambda: [str(len(read("sorted/deep/lines")))])),
        ]  # fmt: skip

    def content(self):
        files = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if path.is_file()}
        return {name: path.read_bytes() for name, path in files.items() if not name.startswith("steps")}


@pytest.fixture
def program(tmp_path):
    return Program(tmp_path / "a [b] *")  # a pattern would misread this path


def test_done_once_and_again_after_other_settings(program, capsys):
    assert program() == [{"lines": 2}, {"lines": 2}, {"lines": 1}]
    assert program.made == ["write", "sort", "count"]
    assert capsys.readouterr().out.split("\n")[:3] == ["== write", "== sort", "== count"]
    assert program() == [{"lines": 2}, {"lines": 2}, {"lines": 1}] and program.made == []  # earlier counts are kept
    assert capsys.readouterr().out.split("\n")[:3] == [f"== {step}: done before" for step in ("write", "sort", "count")]
    program("y")
    assert program.made == ["write", "sort", "count"] and program.content()["sorted/deep/lines"] == b"ay\nby"


SPOILED = {
    "a file cut off": (lambda folder: (folder / "text").write_text("bx"), ["write", "sort", "count"]),
    "a file gone": (lambda folder: (folder / "sorted" / "deep" / "lines").unlink(), ["sort", "count"]),
    "a file too many": (lambda folder: (folder / "sorted" / "more").write_text(""), ["sort", "count"]),
    "a record gone": (lambda folder: (folder / "steps" / "sort.json").unlink(), ["sort", "count"]),
    "a record torn": (lambda folder: (folder / "steps" / "count.json").write_text('{"asked": "'), ["count"]),
    "a record of something else": (lambda folder: (folder / "steps" / "count.json").write_text("[1]"), ["count"]),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_what_is_not_whole_is_done_again_and_all_after_it(kind, program):
    program()
    before = program.content()
    spoil, redone = SPOILED[kind]
    spoil(program.folder)
    program()
    assert program.made == redone and program.content() == before


def test_what_a_killed_or_failed_run_left_is_removed(program):
    program.words = None
    with pytest.raises(TypeError):
        program()
    assert program.content() == {}
    program.words = ["b", "a"]
    (program.folder / "text.123.part").write_text("half")
    (program.folder / "sorted.45.part").mkdir()
    (program.folder / "sorted.45.part" / "half").write_text("half")
    (program.folder / "other.9.part").write_text("of something else")
    (program.folder / "count").write_text("of unknown origin")
    program()
    assert set(program.content()) == {"text", "sorted/deep/lines", "count", "other.9.part"}
    assert program.content()["count"] == b"2"


def test_outputs_that_are_not_made_or_gone_on_with(tmp_path):
    with pytest.raises(RuntimeError, match="step idle did not make nothing"):
        Steps(tmp_path).run("idle", [tmp_path / "nothing"], {}, lambda: None)
    assert not list(tmp_path.glob("steps/*"))
    (tmp_path / "download").write_text("half")

    def make():
        with open(tmp_path / "download", "a") as file:
            file.write(" and half")

    Steps(tmp_path).run("download", [tmp_path / "download"], {}, make, keep=True)
    assert (tmp_path / "download").read_text() == "half and half"
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    remove(tmp_path / "link")  # the link, not its target
    assert not os.path.lexists(tmp_path / "link") and (tmp_path / "mine").is_dir()


def test_a_folder_belongs_to_one_corpus(tmp_path):
    def claim(folder, what="iwslt14_de_en"):
        with claimed(folder, what):
            (folder / "file").touch()

    claim(tmp_path / "new")
    claim(tmp_path / "new")
    with pytest.raises(UserError, match="new: holds iwslt14_de_en, not wmt17_en_de; name another folder"):
        claim(tmp_path / "new", "wmt17_en_de")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("keep")
    with pytest.raises(UserError, match=r"mine: is there and holds other things \(thesis\)"):
        claim(tmp_path / "mine")
    assert os.listdir(tmp_path / "mine") == ["thesis"]
    with pytest.raises(UserError, match="thesis: is there and no folder"):
        claim(tmp_path / "mine" / "thesis")
