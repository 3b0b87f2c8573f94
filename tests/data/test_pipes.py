"""Tests that text comes from pipes and standard input wherever it comes from files."""

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.data.lines import STDIN, check_readable, read_lines, rereadable
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study.scoring.paired import significance
from deepnet_fairseq.study.scoring.scores import score
from deepnet_fairseq.tools.verify.reading import read_names

from ..support.translated import noisy, sentences, write_generated

SPLITS = ("train", "valid", "test")


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


def test_scores_of_a_pipe_and_of_standard_input(tmp_path, pipe, stdin):
    text = sentences(30)
    file = write_generated(tmp_path / "o.txt", noisy(text, 0.2), text, "de-en", seconds=2.5)
    log = (tmp_path / "o.log").read_text()
    file.write_text(log + file.read_text())
    wanted, stream = score(file), file.read_text()
    stdin(stream)
    assert score(pipe(stream)) == score(STDIN) == wanted and wanted["generation"]["seconds"] == 2.5
    results = significance(file, [pipe(stream, "system")])[None]
    assert results.systems == ["o.txt", str(tmp_path / "system")] and results.results["BLEU"][1].p_value == 1


def test_text_of_a_language_model_from_pipes(tmp_path, pipe, stdin):
    """`deepnet prepare lm` reads each pipe once, and makes the data that files make."""
    texts = {split: "".join(f"{line}\n" for line in sentences(300, seed)) for seed, split in enumerate(SPLITS)}
    for split, text in texts.items():
        (tmp_path / split).write_text(text)
    flags = ["--vocab", "60", "--workers", "1"]
    main(["prepare", "lm", *(str(tmp_path / split) for split in SPLITS), str(tmp_path / "files"), *flags])
    stdin(texts["train"])
    pipes = [str(pipe(texts[split], f"{split}.pipe")) for split in SPLITS[1:]]
    main(["prepare", "lm", "-", *pipes, str(tmp_path / "pipes"), *flags])
    for split in SPLITS:
        made = [(tmp_path / name / f"{split}.bin").read_bytes() for name in ("files", "pipes")]
        assert made[0] == made[1]
    with pytest.raises(SystemExit, match=f"{tmp_path / 'bad'}, line 1: not UTF-8"):
        os.mkfifo(tmp_path / "bad")
        threading.Thread(target=(tmp_path / "bad").write_bytes, args=(b"\xff\n",), daemon=True).start()
        main(["prepare", "lm", str(tmp_path / "bad"), *(str(tmp_path / s) for s in SPLITS[1:]), str(tmp_path / "new")])


def test_settings_from_pipes(tmp_path, pipe, capsys):
    rows = "row --arch deepnet_transformer --max-tokens 1000\n"
    main(["plan", "--rows", str(pipe(rows))])
    assert "row" in capsys.readouterr().out
    assert read_names(pipe('"^a" = "b"\n', "names"))("ab") == "bb"
