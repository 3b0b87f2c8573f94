"""Binarised data and dictionaries that are broken, or not each other's; sentences that fairseq cannot take."""

import os
import shutil

import numpy
import pytest

from deepnet_fairseq.compat import data as compat
from deepnet_fairseq.errors import UserError

from .conftest import TRAIN_FLAGS
from .hostile import binarised as made
from .hostile.rooms import GENERATE, MODEL, TRAIN, a_sound_checkpoint, refused, the_programs  # noqa: F401

INDEX, TOKENS = made.INDEX, made.TOKENS
PLACES = made.SIZES + 4 * 400  # of the sentences in the .bin: behind their 400 sizes
LONG, SHORT = [5] * 1200 + [made.EOS], [6] * 10 + [made.EOS]


def instead(name, make):
    def write(folder):
        (folder / name).unlink()
        make(folder / name)

    return write


def dictionary_and(line: bytes):
    def write(folder):
        made.dictionary((folder / "dict.qaa.txt").read_bytes() + line)(folder)

    return write


def dictionary_of(lines: int):
    def write(folder):
        made.dictionary(b"".join((folder / "dict.qaa.txt").read_bytes().splitlines(keepends=True)[:lines]))(folder)

    return write


BROKEN = {  # -> which file, and what is said of it
    "index empty": (made.cut(INDEX, 0), INDEX, "damaged"),
    "index of a few bytes": (made.cut(INDEX, 0.001), INDEX, "damaged"),
    "index without its end of header": (made.rewritten(INDEX, lambda data: data[:20]), INDEX, "truncated"),
    "half an index": (made.cut(INDEX, 0.5), INDEX, "truncated"),
    "index short of a byte": (made.rewritten(INDEX, lambda data: data[:-1]), INDEX, "truncated"),
    "index longer by a byte": (made.rewritten(INDEX, lambda data: data + b"x"), INDEX, "damaged"),
    "magic": (made.put(INDEX, 0, b"XXXX"), INDEX, "no index of binarised data"),
    "version": (made.put(INDEX, 9, made.packed("Q", 7)), INDEX, "version 7"),
    "type of token 0": (made.put(INDEX, made.CODE, b"\0"), INDEX, "type of token (0)"),
    "type of token is a float": (made.put(INDEX, made.CODE, b"\6"), INDEX, "type of token (6)"),
    "2**60 sentences": (made.put(INDEX, made.COUNT, made.packed("Q", 2**60)), INDEX, "1,152,921,504,606,846,976"),
    "one sentence more": (made.put(INDEX, made.COUNT, made.packed("Q", 401)), INDEX, "401 sentences"),
    "size below 0": (made.put(INDEX, made.SIZES, made.packed("i", -5)), INDEX, "sentence 0 has no token"),
    "size 0": (made.put(INDEX, made.SIZES + 4, made.packed("i", 0)), INDEX, "sentence 1 has no token"),
    "size 2**31 - 1": (made.put(INDEX, made.SIZES, made.packed("i", 2**31 - 1)), TOKENS, "more bytes than"),
    "place 2**61": (made.put(INDEX, PLACES, made.packed("q", 2**61)), TOKENS, "more bytes than"),
    "place below 0": (made.put(INDEX, PLACES, made.packed("q", -2)), TOKENS, "more bytes than"),
    "place between two tokens": (made.put(INDEX, PLACES, made.packed("q", 1)), TOKENS, "damaged"),
    "no tokens": (made.cut(TOKENS, 0), TOKENS, "more bytes than 0"),
    "half the tokens": (made.cut(TOKENS, 0.5), TOKENS, "truncated"),
    "tokens short of a byte": (made.rewritten(TOKENS, lambda data: data[:-1]), TOKENS, "truncated"),
    "token beyond the dictionary": (made.put(TOKENS, 0, b"\xff\xff"), TOKENS, "holds token 65535"),
    "index missing": (lambda folder: (folder / INDEX).unlink(), "", "holds no train.qaa-qab"),
    "tokens missing": (lambda folder: (folder / TOKENS).unlink(), "", "holds no train.qaa-qab"),
    "index is a folder": (instead(INDEX, lambda path: path.mkdir()), INDEX, "no ordinary file"),
    "tokens are a folder": (instead(TOKENS, lambda path: path.mkdir()), TOKENS, "no ordinary file"),
    "index is a pipe": (instead(INDEX, os.mkfifo), INDEX, "no ordinary file"),
    "fewer sources than targets": (made.sentences("train.qaa-qab.qaa", SHORT, SHORT), "train.qaa-qab.qaa", "its twin"),
    "more sources than targets": (made.sentences("train.qaa-qab.qaa", *[SHORT] * 401), "qaa has 401", "its twin"),
    "no sentence": (made.every_side("train"), INDEX, "holds no sentence"),
    "sentence without its end": (made.every_side("train", [], SHORT), INDEX, "sentence 0 has no token"),
    "all sentences too long": (made.every_side("train", LONG, LONG), "train.qaa-qab", "longer than (600, 600)"),
    "dictionary of other data": (dictionary_of(50), TOKENS, "its dictionary has 54"),
    "dictionary empty": (made.dictionary(b""), "dict.qaa.txt", "it is empty"),
    "dictionary not in UTF-8": (dictionary_and(b"\xff\xfe 3\n"), "dict.qaa.txt", "ncoding"),
    "word twice": (dictionary_and(b"word 3\nword 2\n"), "dict.qaa.txt", "Duplicate word"),
    "special symbol": (dictionary_and(b"<pad> 3\n"), "dict.qaa.txt", "Duplicate word"),
    "count is a word": (dictionary_and(b"word many\n"), "dict.qaa.txt", "no dictionary of fairseq"),
    "count of 5000 digits": (
        dictionary_and(b"word " + b"9" * 5000 + b"\n"),
        "dict.qaa.txt",
        "no dictionary of fairseq",
    ),
    "count below 0": (dictionary_and(b"word -4\n"), "dict.qaa.txt", "negative"),
    "word without a count": (dictionary_and(b"word\n"), "dict.qaa.txt", "no dictionary of fairseq"),
    "dictionary of zeros": (made.dictionary(bytes(1000)), "dict.qaa.txt", "no dictionary of fairseq"),
    "dictionary of one line": (made.dictionary(b"x" * 10**7), "dict.qaa.txt", "no dictionary of fairseq"),
    "dictionary missing": (lambda folder: (folder / "dict.qaa.txt").unlink(), "dict.qaa.txt", "No such file"),
    "dictionary is a folder": (instead("dict.qaa.txt", lambda path: path.mkdir()), "dict.qaa.txt", "no ordinary file"),
    "dictionary is a pipe": (instead("dict.qaa.txt", os.mkfifo), "dict.qaa.txt", "no ordinary file"),
}


@pytest.fixture
def copied(data, tmp_path):
    return shutil.copytree(data, tmp_path / "bin")


@pytest.mark.parametrize("case", BROKEN)
def test_opening(case, programs, copied, tmp_path):
    change, name, says = BROKEN[case]
    change(copied)
    refused(programs, tmp_path, ("fairseq-data", copied), str(copied), name, says)


def test_opening_sound_data(programs, copied):
    assert programs.run("fairseq-data", copied).status == 0


@pytest.mark.parametrize("case", ["token beyond the dictionary", "half the tokens", "word twice"])
def test_training(case, programs, copied, tmp_path):
    change, name, says = BROKEN[case]
    change(copied)
    refused(programs, tmp_path, ("fairseq-train", copied, *TRAIN, "--save-dir", tmp_path / "save"), name, says)


def test_dictionaries_that_differ(programs, copied, tmp_path):
    with open(copied / "dict.qaa.txt", "a") as file:
        file.write("word 3\n")
    words = ("fairseq-train", copied, *TRAIN, "--save-dir", tmp_path / "save")
    refused(programs, tmp_path, words, "--share-all-embeddings", "two dictionaries")


def test_dictionary_of_another_checkpoint(programs, copied, sound, tmp_path):
    dictionary_and(b"word 3\n")(copied)
    words = ("fairseq-generate", copied, "--path", sound, *GENERATE)
    refused(programs, tmp_path, words, "holds 144 encoder embeddings, these data have 145")


def test_long_sentences_of_the_training_are_left_out(programs, copied, tmp_path):
    """As fairseq does, with a warning that counts them."""
    made.every_side("train", LONG, *[SHORT] * 20)(copied)
    done = programs.run("fairseq-train", copied, *TRAIN, "--save-dir", tmp_path / "save")
    assert done.status == 0
    assert "1 samples have invalid sizes and will be skipped" in done.printed


@pytest.mark.parametrize("split", ["valid", "test"])
def test_long_sentences_of_a_test_are_not(split, programs, copied, sound, tmp_path):
    """What is measured must be all of it, unless --skip-invalid-size-inputs-valid-test says otherwise."""
    made.every_side(split, SHORT, LONG)(copied)
    flags = [flag for flag in TRAIN_FLAGS if flag != "--disable-validation"]
    words = {
        "valid": ("fairseq-train", copied, *flags, *MODEL, "--max-update", "1", "--no-save"),
        "test": ("fairseq-generate", copied, "--path", sound, *GENERATE),
    }[split]
    refused(programs, tmp_path, words, f"{split}.qaa-qab.qaa", "sample #1", "(1201, 1201)", "--skip-invalid-size")


def test_sentences_of_their_end_alone(programs, copied):
    """An empty line is binarised as its end: nothing is wrong with it."""
    made.every_side("train", *[[made.EOS]] * 20, SHORT)(copied)
    assert programs.run("fairseq-data", copied).status == 0


def test_large_data_are_looked_at_in_parts(data, tmp_path, monkeypatch):
    monkeypatch.setattr(compat, "AT_ONCE", 7)
    folder = shutil.copytree(data, tmp_path / "bin")
    prefix = str(folder / INDEX.removesuffix(".idx"))
    compat.check_mapped(prefix, 144)
    tokens = numpy.fromfile(folder / TOKENS, "u2")
    with pytest.raises(UserError, match=f"holds token {tokens.max()}, its dictionary has {tokens.max()}"):
        compat.check_mapped(prefix, int(tokens.max()))
    tokens[-1] = 144
    tokens.tofile(folder / TOKENS)
    with pytest.raises(UserError, match="holds token 144"):
        compat.check_mapped(prefix, 144)
