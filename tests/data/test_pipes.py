"""Tests that text is read from pipes and standard input wherever it is read from files.

A pipe gives its content once. The path STDIN, "-", stands for standard input.
"""

from __future__ import annotations

import io
import sys

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.data.lines import STDIN, check_readable, read_lines, rereadable
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study.scoring.paired import significance
from deepnet_fairseq.study.scoring.scores import score
from deepnet_fairseq.tools.verify.reading import read_names

from ..support.corpora import SPLITS
from ..support.errors import assert_refused, refused
from ..support.pipes import fill_pipe, filled_pipes
from ..support.translated import as_lines, random_sentences, with_wrong_words, write_generated


@pytest.fixture
def make_pipe(tmp_path):
    """Provide a function that makes a named pipe with a text in it, and returns its path.

    A test that ends before the text has been read fails.
    """
    with filled_pipes() as make_filled:

        def make(text, name="pipe"):
            return make_filled(tmp_path / name, text.encode())

        yield make


@pytest.fixture
def fill_stdin(monkeypatch):
    """Provide a function that puts text into standard input."""

    def fill(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return fill


@pytest.fixture(params=["file", "pipe", "standard input"])
def make_source(request, tmp_path, make_pipe, fill_stdin):
    """Provide a function that puts a text into a file, a pipe or standard input, and returns the path to read it."""

    def make(text: str):
        if request.param == "pipe":
            return make_pipe(text)
        if request.param == "standard input":
            fill_stdin(text)
            return STDIN
        (tmp_path / "file").write_bytes(text.encode())
        return tmp_path / "file"

    return make


TEXT = "eins zwei\n\ndrei\rvier\nohne Ende"  # the last line does not end


def test_lines_end_at_line_feeds_alone_wherever_they_come_from(make_source):
    assert list(read_lines(make_source(TEXT))) == ["eins zwei", "", "drei\rvier", "ohne Ende"]


def test_lines_with_their_ends_are_the_text(make_source):
    assert "".join(read_lines(make_source(TEXT), keepends=True)) == TEXT


def test_standard_input_stays_open(fill_stdin):
    fill_stdin(TEXT)
    list(read_lines(STDIN))

    assert not sys.stdin.buffer.closed


def test_text_from_anywhere_can_be_read_twice_by_rereadable(make_source):
    with rereadable(make_source("a\nb\n")) as path:
        assert list(read_lines(path)) == ["a", "b"]
        assert list(read_lines(path)) == ["a", "b"]


def test_rereadable_makes_no_copy_of_a_file(tmp_path):
    (tmp_path / "file").write_text("a\nb\n")

    with rereadable(tmp_path / "file") as path:
        assert path == tmp_path / "file"


@pytest.mark.parametrize("make_source", ["pipe", "standard input"], indirect=True)
def test_the_copy_of_a_pipe_or_standard_input_is_removed(make_source):
    with rereadable(make_source("a\nb\n")) as copy:
        assert copy.exists()

    assert not copy.exists()


def test_an_error_about_the_copy_of_a_pipe_names_the_pipe(make_pipe):
    """The user does not know of the copy."""
    pipe = make_pipe("a\n")

    with refused(f"{pipe}, line 2") as caught, rereadable(pipe) as copy:
        raise UserError(f"{copy}, line 2", "is odd")

    assert caught.value.way_out == "is odd"


@pytest.mark.parametrize("name", [".", "none"], ids=["a folder", "a missing file"])
def test_a_folder_or_a_missing_file_cannot_be_read(name, tmp_path):
    with refused(tmp_path / name):
        check_readable(tmp_path / name)


def test_standard_input_that_is_closed_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)

    with refused(STDIN):
        list(read_lines(STDIN))


@pytest.fixture
def generated_output(tmp_path):
    """Provide the file o.txt with the log of fairseq-generate and, behind it, the output, as a terminal shows them.

    A fifth of the words in the 30 translations are wrong.
    """
    references = random_sentences(30)
    translations = with_wrong_words(references, rate=0.2)
    file = write_generated(tmp_path / "o.txt", translations, references, direction="de-en", seconds=2.5)
    log = (tmp_path / "o.log").read_text()
    file.write_text(log + file.read_text())
    return file


def test_scores_of_an_output_are_the_same_wherever_it_is_read_from(generated_output, make_source):
    of_file = score(generated_output)

    scores = score(make_source(generated_output.read_text()))

    assert of_file["generation"]["seconds"] == 2.5  # from the log, which is read too
    assert scores == of_file


def test_an_output_from_a_pipe_is_compared_with_that_of_a_file(generated_output, make_pipe):
    pipe = make_pipe(generated_output.read_text(), "system")

    comparisons = significance(generated_output, [pipe])  # test set -> comparison

    compared = comparisons[None]  # neither is in the folder of a named test set
    assert compared.systems == ["o.txt", str(pipe)]
    assert compared.results["BLEU"][1].p_value == 1  # both are the same


def test_text_of_a_language_model_from_pipes_gives_the_data_of_files(tmp_path, make_pipe, fill_stdin):
    """The training text comes from standard input, the others from pipes."""
    texts = {}
    for seed, split in enumerate(SPLITS):
        texts[split] = as_lines(random_sentences(300, seed))
        (tmp_path / split).write_text(texts[split])
    files = [str(tmp_path / split) for split in SPLITS]
    flags = ["--vocab", "60", "--workers", "1"]
    main(["prepare", "lm", *files, str(tmp_path / "of_files"), *flags])

    fill_stdin(texts["train"])
    valid_pipe = make_pipe(texts["valid"], "valid.pipe")
    test_pipe = make_pipe(texts["test"], "test.pipe")
    main(["prepare", "lm", "-", str(valid_pipe), str(test_pipe), str(tmp_path / "of_pipes"), *flags])

    for split in SPLITS:
        of_files = (tmp_path / "of_files" / f"{split}.bin").read_bytes()
        assert (tmp_path / "of_pipes" / f"{split}.bin").read_bytes() == of_files


def test_bad_text_from_a_pipe_is_refused_by_the_name_of_the_pipe(tmp_path):
    for split in ("valid", "test"):
        (tmp_path / split).write_text("fine\n")
    fill_pipe(tmp_path / "bad", b"\xff\n")  # no UTF-8

    files = (tmp_path / "bad", tmp_path / "valid", tmp_path / "test")
    assert_refused(f"{tmp_path / 'bad'}, line 1", "prepare", "lm", *files, tmp_path / "new")


def test_rows_of_a_plan_come_from_a_pipe(make_pipe, capsys):
    main(["plan", "--rows", str(make_pipe("own-row --arch deepnet_transformer --max-tokens 1000\n"))])

    assert "own-row" in capsys.readouterr().out


def test_patterns_that_rename_parameters_come_from_a_pipe(make_pipe):
    rename = read_names(make_pipe('"^a" = "b"\n'))  # pattern = replacement

    assert rename("ab") == "bb"
