"""Binarised data and dictionaries that are broken, or not each other's; sentences that fairseq cannot take."""

import shutil
import struct

import numpy
import pytest
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from deepnet_fairseq.compat import data as compat
from deepnet_fairseq.errors import UserError

from .conftest import TRAIN_FLAGS
from .support.broken import check_line, sentences
from .support.helpers import run
from .test_bad_input import assert_one_line
from .test_hostile_checkpoints import GENERATE, MODEL, sound  # noqa: F401

INDEX, TOKENS = "train.qaa-qab.qaa.idx", "train.qaa-qab.qaa.bin"
CODE, COUNT = 17, 18  # offsets in an index: type of token, number of sentences
EOS = 2
LONG, SHORT = [5] * 1200 + [EOS], [6] * 10 + [EOS]


def packed(kind: str, number: int) -> bytes:
    return struct.pack(f"<{kind}", number)


def file_changed(name: str, change):
    """Changes a folder. change: bytes -> bytes, of the file `name`."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def put(name: str, offset: int, content: bytes):
    return file_changed(name, lambda data: data[:offset] + content + data[offset + len(content) :])


def both_sides(change):
    """change: language -> what changes a folder."""
    return lambda folder: [change(lang)(folder) for lang in ("qaa", "qab")] and None


def dictionary(change):
    return both_sides(lambda lang: file_changed(f"dict.{lang}.txt", change))


def both(split, *rows):
    return both_sides(lambda lang: sentences(f"{split}.qaa-qab.{lang}", *rows))


BROKEN = {  # -> which file, and what is said of it
    "index short of a byte": (file_changed(INDEX, lambda data: data[:-1]), INDEX, "truncated"),
    "magic": (put(INDEX, 0, b"XXXX"), INDEX, "no index of binarised data"),
    "type of token is a float": (put(INDEX, CODE, b"\6"), INDEX, "tokens of type 6"),
    "2**60 sentences": (put(INDEX, COUNT, packed("Q", 2**60)), INDEX, "1,152,921,504,606,846,976"),
    "half the tokens": (file_changed(TOKENS, lambda data: data[: len(data) // 2]), TOKENS, "truncated"),
    "token beyond the dictionary": (put(TOKENS, 0, b"\xff\xff"), TOKENS, "holds token 65535"),
    "fewer sources than targets": (sentences("train.qaa-qab.qaa", SHORT, SHORT), "train.qaa-qab.qaa", "its twin"),
    "no sentence": (both("train"), INDEX, "holds no sentence"),
    "all sentences too long": (both("train", LONG, LONG), "train.qaa-qab", "longer than (600, 600)"),
    "dictionary of other data": (dictionary(lambda d: b"".join(d.splitlines(True)[:50])), TOKENS, "dictionary has 54"),
    "dictionary empty": (dictionary(lambda data: b""), "dict.qaa.txt", "it is empty"),
    "word twice": (dictionary(lambda data: data + b"word 3\nword 2\n"), "dict.qaa.txt", "Duplicate word"),
    "count below 0": (dictionary(lambda data: data + b"word -4\n"), "dict.qaa.txt", "negative"),
    "dictionary missing": (lambda folder: (folder / "dict.qaa.txt").unlink(), "dict.qaa.txt", "No such file"),
}


@pytest.fixture
def copied(data, tmp_path):
    return shutil.copytree(data, tmp_path / "bin")


def opened(folder) -> int:
    """Tokens of the first batch, by fairseq's task and iterator."""
    cfg = TranslationConfig(data=str(folder), source_lang="qaa", target_lang="qab", left_pad_source=True)
    cfg.dataset_impl, cfg.num_batch_buckets, cfg.required_seq_len_multiple = None, 0, 1
    cfg.train_subset = "train"
    task = TranslationTask.setup_task(cfg)
    task.load_dataset("train")
    limits = {"max_tokens": 600, "max_positions": (600, 600), "ignore_invalid_inputs": True}
    iterator = task.get_batch_iterator(task.dataset("train"), **limits)
    return next(iterator.next_epoch_itr())["ntokens"]


@pytest.mark.parametrize("case", BROKEN)
def test_opening(case, copied):
    change, name, says = BROKEN[case]
    change(copied)
    with pytest.raises(UserError) as caught:
        opened(copied)
    check_line(caught.value, str(copied), name, says)


def test_opening_sound_data(copied):
    """An empty line is binarised as its end: nothing is wrong with it."""
    assert opened(copied) > 0
    both("train", *[[EOS]] * 20, SHORT)(copied)
    assert opened(copied) > 0


def test_training(copied, tmp_path):
    put(TOKENS, 0, b"\xff\xff")(copied)
    done = run("fairseq-train", copied, *TRAIN_FLAGS, *MODEL, "--save-dir", tmp_path / "save", check=False)
    assert_one_line(done, TOKENS, "holds token 65535")
    file_changed("dict.qaa.txt", lambda data: data + b"word 3\n")(copied)
    done = run("fairseq-train", copied, *TRAIN_FLAGS, *MODEL, "--save-dir", tmp_path / "save", check=False)
    assert_one_line(done, "--share-all-embeddings", "two dictionaries")


def test_dictionary_of_another_checkpoint(copied, sound):  # noqa: F811
    dictionary(lambda data: data + b"word 3\n")(copied)
    done = run("fairseq-generate", copied, "--path", sound, *GENERATE, check=False)
    assert_one_line(done, "holds 144 encoder embeddings, these data have 145")


def test_long_sentences_of_the_training_are_left_out(copied, tmp_path):
    """As fairseq does, with a warning that counts them; those of a validation must be said to be."""
    both("train", LONG, *[SHORT] * 20)(copied)
    words = ("fairseq-train", copied, *TRAIN_FLAGS, *MODEL, "--max-update", "1", "--save-dir", tmp_path / "save")
    assert "1 samples have invalid sizes and will be skipped" in run(*words).stdout
    both("valid", SHORT, LONG)(copied)
    done = run(*(word for word in words if word != "--disable-validation"), "--no-save", check=False)
    assert_one_line(done, "valid.qaa-qab.qaa", "sample #1", "(1201, 1201)", "--skip-invalid-size")


def test_large_data_are_looked_at_in_parts(copied, monkeypatch):
    monkeypatch.setattr(compat, "AT_ONCE", 7)
    prefix = str(copied / INDEX.removesuffix(".idx"))
    compat.check_mapped(prefix, 144)
    tokens = numpy.fromfile(copied / TOKENS, "u2")
    with pytest.raises(UserError, match=f"holds token {tokens.max()}, its dictionary has {tokens.max()}"):
        compat.check_mapped(prefix, int(tokens.max()))
    tokens[-1] = 144
    tokens.tofile(copied / TOKENS)
    with pytest.raises(UserError, match="holds token 144"):
        compat.check_mapped(prefix, 144)
