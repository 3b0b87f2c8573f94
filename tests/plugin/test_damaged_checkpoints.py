"""Tests of damaged, foreign and malicious checkpoints and data: one line, nothing lost, no code of a file run."""

import os
import pickle
import shutil

import numpy
import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError

from ..conftest import TRAIN_FLAGS
from ..support.broken import Call, check_line, contents, sentences
from ..support.diverging import Training
from ..support.errors import assert_one_line
from ..support.helpers import USER_DIR, run
from ..support.lives import TINY

DAMAGED, OTHER, CODE = "damaged", "not a checkpoint of fairseq", "refused, it asks to load"
GENERATE = ("--user-dir", USER_DIR, "--cpu", "--task", "translation", "--max-tokens", "2000")
TOUCH = Call(os.system, "touch PROOF")  # leaves the file in the current folder


@pytest.fixture(scope="session")
def sound(data, tmp_path_factory):
    """Provide a checkpoint of a 1L-1L model of width 16 after one update."""
    folder = tmp_path_factory.mktemp("sound")
    run("fairseq-train", data, *TRAIN_FLAGS, *TINY, "--max-update", "1", "--save-dir", folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Work in an empty folder, and check that no code of a file left its PROOF there."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "PROOF").exists(), "code of the file was run"


def changed(change, **how):
    """Return a writer of the sound checkpoint after change(state); the functions below return writers too."""

    def write(path, sound) -> None:
        state = torch.load(sound, weights_only=False)
        torch.save(change(state) or state, path, **how)

    return write


def holding(**values):
    return changed(lambda state: state | values)


def section(name, **values):
    """Return a writer that changes settings in a section of the config."""
    return changed(lambda state: state["cfg"][name].update(values))


def filled(value, **kind):
    """Return a writer that fills a weight of the first layer with a value."""

    def change(state):
        state["model"]["encoder.layers.0.fc1.weight"] = torch.full((32, 16), value, **kind)

    return changed(change)


def rewritten(change):
    """Return a writer that changes the file's bytes by change(bytes)."""
    return lambda path, sound: path.write_bytes(change(sound.read_bytes()))


def a_bit(content: bytes) -> bytes:
    place = content.index(b"data/2") + 100
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


WRONG = {
    "empty": (rewritten(lambda data: b""), DAMAGED),
    "cut": (rewritten(lambda data: data[: len(data) // 2]), DAMAGED),
    "bit of a weight": (rewritten(a_bit), DAMAGED),
    "a folder": (lambda path, sound: path.mkdir(), "is no ordinary file"),
    "no model": (changed(lambda s: {name: s[name] for name in s if name != "model"}), OTHER),
    "no objects": (rewritten(lambda data: b"\x80\x02nonsense"), DAMAGED),
    "os.system": (holding(extra_state=TOUCH), f"{CODE} posix.system"),
    "torch.load": (holding(extra_state=Call(torch.load, "/etc/passwd")), f"{CODE} torch.serialization.load"),
    "array of objects": (holding(extra_state=numpy.array([TOUCH])), f"{CODE} numpy.dtypes.ObjectDType"),
    "bare pickle": (lambda path, sound: path.write_bytes(pickle.dumps({"x": TOUCH}, 2)), f"{CODE} posix.system"),
    "format before torch 1.6": (
        changed(lambda state: state | {"extra_state": TOUCH}, _use_new_zipfile_serialization=False),
        f"{CODE} posix.system",
    ),
    "an infinity": (filled(float("inf")), "not finite"),
    "stride 0": (
        changed(lambda s: s["model"].update(x=torch.zeros(1).expand(10**12))),
        "x unfolds to 1,000,000,000,000",
    ),
    "a NaN in half precision": (filled(float("nan"), dtype=torch.float16), "not finite"),
    "config is text": (holding(cfg="text"), "no config of a model"),
    "no extra state": (changed(lambda s: {name: s[name] for name in s if name != "extra_state"}), OTHER),
}


@pytest.mark.parametrize("case", WRONG)
def test_opening(case, sound, tmp_path):
    """A wrong checkpoint is refused in one line by the function that all of fairseq's programs open it with."""
    write, says = WRONG[case]
    path = tmp_path / "wrong.pt"
    write(path, sound)
    with pytest.raises(UserError) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    check_line(caught.value, str(path), says)


def lacking(path, sound) -> None:
    """Write a checkpoint without embeddings."""
    state = torch.load(sound, weights_only=False)
    weights = {name: value for name, value in state["model"].items() if "embed_tokens" not in name}
    torch.save(state | {"model": weights}, path)


def test_commands(sound, tmp_path):
    """Commands refuse a wrong checkpoint in one line and leave all files as they were."""
    path, out = tmp_path / "wrong.pt", tmp_path / "out"
    out.write_bytes(b"what was there")
    for write, says in (
        WRONG["os.system"],
        (section("model", _name="lstm", arch="lstm"), "holds a lstm"),
        (lacking, ""),
    ):
        write(path, sound)
        before = contents(tmp_path)
        for words in (("average", sound, path), ("export", path, "--to", "transformer")):
            with pytest.raises(SystemExit) as caught:
                main([*map(str, words), "--out", str(out)])
            check_line(caught.value, str(path), says)
            assert contents(tmp_path) == before


def test_programs_of_fairseq(data, sound, tmp_path):
    """fairseq's programs refuse a checkpoint that is missing, would run code, or has text as optimiser state."""
    path = tmp_path / "wrong.pt"
    generate = ("fairseq-generate", data, *GENERATE, "--path", path)
    train = ("fairseq-train", data, *TRAIN_FLAGS, *TINY, "--save-dir", tmp_path / "save", "--restore-file", path)
    for program in (generate, train):
        assert_one_line(run(*program, check=False), str(path), "no such file or folder")
    WRONG["os.system"][0](path, sound)
    for program in (generate, train):
        assert_one_line(run(*program, check=False), str(path), f"{CODE} posix.system")
    holding(last_optimizer_state="text")(path, sound)
    assert_one_line(run(*train, check=False), str(path), "cannot go on with its training", "--reset-optimizer")


def test_strings_for_eval_are_plain_values(data, sound, tmp_path):
    """Refuses strings that fairseq would pass to eval() unless they are plain values.

    An fconv checkpoint of plain data once ran code in fairseq-generate through its layers.
    """
    code, path = f"__import__('os').system('touch {tmp_path}/PROOF')", tmp_path / "wrong.pt"
    layers = {"_name": "fconv", "arch": "fconv", "encoder_layers": code, "decoder_layers": code}
    widths = {"encoder_embed_dim": 8, "decoder_embed_dim": 8, "decoder_out_embed_dim": 8}
    changed(lambda s: s["cfg"].update(model=layers | widths | {"max_source_positions": 9}))(path, sound)
    assert_one_line(run("fairseq-generate", data, *GENERATE, "--path", path, check=False), "is no plain value")


# Binarised data and dictionaries.

INDEX, TOKENS = "train.qaa-qab.qaa.idx", "train.qaa-qab.qaa.bin"
TYPE, COUNT = 17, 18  # offsets in an index of the token type and the number of sentences
EOS = 2
LONG, SHORT = [5] * 1200 + [EOS], [6] * 10 + [EOS]


def file_changed(name: str, change):
    """Return a function that changes the bytes of the file `name` of a folder by change(bytes)."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def put(name: str, offset: int, content: bytes):
    return file_changed(name, lambda data: data[:offset] + content + data[offset + len(content) :])


def both_sides(change):
    """Return a function that changes both languages of a folder; change: language -> function of a folder."""
    return lambda folder: [change(lang)(folder) for lang in ("qaa", "qab")] and None


def dictionary(change):
    return both_sides(lambda lang: file_changed(f"dict.{lang}.txt", change))


def both(split, *rows):
    return both_sides(lambda lang: sentences(f"{split}.qaa-qab.{lang}", *rows))


BROKEN = {  # case -> file and words of the refusal
    "index short of a byte": (file_changed(INDEX, lambda data: data[:-1]), INDEX, "truncated"),
    "magic": (put(INDEX, 0, b"XXXX"), INDEX, "no index of binarised data"),
    "type of token is a float": (put(INDEX, TYPE, b"\6"), INDEX, "tokens of type 6"),
    "2**60 sentences": (put(INDEX, COUNT, (2**60).to_bytes(8, "little")), INDEX, "1,152,921,504,606,846,976"),
    "half the tokens": (file_changed(TOKENS, lambda data: data[: len(data) // 2]), TOKENS, "truncated"),
    "token beyond the dictionary": (put(TOKENS, 0, b"\xff\xff"), TOKENS, "holds token 65535"),
    "no sentence": (both("train"), INDEX, "holds no sentence"),
    "all sentences too long": (both("train", LONG, LONG), "train.qaa-qab", "longer than (600, 600)"),
    "dictionary of other data": (dictionary(lambda d: b"".join(d.splitlines(True)[:50])), TOKENS, "dictionary has 54"),
}


@pytest.fixture
def copied(data, tmp_path):
    return shutil.copytree(data, tmp_path / "bin")


@pytest.mark.parametrize("case", BROKEN)
def test_opening_data(case, copied, tmp_path):
    change, name, says = BROKEN[case]
    change(copied)
    with pytest.raises(UserError) as caught:
        Training(copied, tmp_path, *TINY)
    check_line(caught.value, str(copied), name, says)


def test_opening_sound_data(copied, tmp_path):
    """Sound data with an empty line, which is binarised as its end of sentence, are accepted."""
    both("train", *[[EOS]] * 20, SHORT)(copied)
    Training(copied, tmp_path, *TINY).step()


def test_training_on_broken_data(copied, tmp_path):
    file_changed("dict.qaa.txt", lambda data: data + b"word 3\n")(copied)
    done = run("fairseq-train", copied, *TRAIN_FLAGS, *TINY, "--save-dir", tmp_path / "save", check=False)
    assert_one_line(done, "--share-all-embeddings", "two dictionaries")
