"""Tests that text comes from pipes and standard input wherever it comes from files."""

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from deepnet_fairseq.data.lines import STDIN, check_readable, read_lines, rereadable
from deepnet_fairseq.errors import UserError


@pytest.fixture
def pipe(tmp_path):
    """Give a function that makes a named pipe, and writes its text as soon as somebody reads."""
    writers = []

    def make(text: str, name: str = "pipe") -> Path:
        path = tmp_path / name
        os.mkfifo(path)
        writers.append(threading.Thread(target=path.write_bytes, args=(text.encode(),), daemon=True))
        writers[-1].start()
        return path

    yield make
    for writer in writers:
        writer.join(timeout=60)
        assert not writer.is_alive()


@pytest.fixture
def stdin(monkeypatch):
    """Give a function that puts text into standard input."""

    def put(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return put


def test_lines_of_a_file_a_pipe_and_standard_input_are_alike(tmp_path, pipe, stdin):
    text = "eins zwei\n\ndrei\rvier\nohne Ende"
    (tmp_path / "file").write_bytes(text.encode())
    stdin(text)
    for path in (tmp_path / "file", pipe(text), STDIN):
        assert list(read_lines(path)) == text.split("\n")
    assert "".join(read_lines(tmp_path / "file", keepends=True)) == text
    assert not sys.stdin.buffer.closed


def test_what_a_pipe_holds_can_be_read_again(tmp_path, pipe, stdin):
    (tmp_path / "file").write_text("a\nb\n")
    stdin("a\nb\n")
    with rereadable(tmp_path / "file") as same:
        assert same == tmp_path / "file"
    for path in (pipe("a\nb\n"), STDIN):
        with rereadable(path) as copy:
            assert [list(read_lines(copy)) for _ in range(2)] == [["a", "b"]] * 2
        assert not copy.exists()


def test_a_mistake_in_a_copy_names_the_pipe(pipe):
    path = pipe("a\n")
    with pytest.raises(UserError, match=f"^{path}, line 2: is odd$"), rereadable(path) as copy:
        raise UserError(f"{copy}, line 2: is odd")


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    for path, reason in ((tmp_path, "folder"), (tmp_path / "none", "no such file")):
        with pytest.raises(UserError, match=f"^{path}: .*{reason}"):
            check_readable(path)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserError, match="^-: "):
        list(read_lines(STDIN))
