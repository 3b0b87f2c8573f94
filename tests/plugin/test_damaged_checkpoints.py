"""Tests of damaged, foreign and malicious checkpoints and data: one line, nothing lost, no code of a file run."""

from __future__ import annotations

import os
import pickle
import shutil

import numpy
import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq.cli import main

from ..conftest import TRAIN_FLAGS
from ..support.broken import Call, check_line, contents, write_sentences
from ..support.diverging import Training
from ..support.errors import assert_one_line, refused
from ..support.helpers import EOS, USER_DIR, run
from ..support.lives import TINY

GENERATE = ("--user-dir", USER_DIR, "--cpu", "--task", "translation", "--max-tokens", "2000")
CODE = Call(os.system, "touch PROOF")  # leaves the file in the current folder
CODE_NAME = "posix.system"  # by which a pickle asks for os.system
WEIGHT = "encoder.layers.0.fc1.weight"


@pytest.fixture(scope="module")
def sound_checkpoint(data, tmp_path_factory):
    """Provide a checkpoint of a 1L-1L model of width 16 after one update."""
    folder = tmp_path_factory.mktemp("sound")
    run("fairseq-train", data, *TRAIN_FLAGS, *TINY, "--max-update", "1", "--save-dir", folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(autouse=True)
def no_code_is_run(tmp_path, monkeypatch):
    """Work in an empty folder, and check that no code of a file left its PROOF there."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "PROOF").exists(), "code of the file was run"


# Writers of a wrong checkpoint: functions of its path and of the path of the sound one.


def changed_state(change, **how):
    """Return a writer of change(state); how: arguments of torch.save."""

    def write(path, sound) -> None:
        state = torch.load(sound, weights_only=False)
        torch.save(change(state), path, **how)

    return write


def changed_bytes(change):
    """Return a writer of change(bytes)."""

    def write(path, sound) -> None:
        path.write_bytes(change(sound.read_bytes()))

    return write


def without(entry: str):
    """Return a writer of the state without one of its entries."""
    return changed_state(lambda state: {name: value for name, value in state.items() if name != entry})


def holding(**entries):
    """Return a writer of the state with other entries."""
    return changed_state(lambda state: state | entries)


def with_weight(name: str, value: torch.Tensor):
    """Return a writer of the state with another weight."""
    return changed_state(lambda state: state | {"model": state["model"] | {name: value}})


def without_embeddings(path, sound) -> None:
    state = torch.load(sound, weights_only=False)
    kept = {name: value for name, value in state["model"].items() if "embed_tokens" not in name}
    torch.save(state | {"model": kept}, path)


def of_a_model(**settings):
    """Return a writer of the state with other settings in the model's section of its config."""

    def change(state):
        state["cfg"]["model"].update(settings)
        return state

    return changed_state(change)


def with_a_flipped_bit(content: bytes) -> bytes:
    """Flip a bit in the numbers of a weight."""
    place = content.index(b"data/2") + 100
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def make_folder(path, sound) -> None:
    path.mkdir()


def write_bare_pickle(path, sound) -> None:
    path.write_bytes(pickle.dumps({"x": CODE}, protocol=2))


old_format_with_code = changed_state(lambda state: state | {"extra_state": CODE}, _use_new_zipfile_serialization=False)

WRONG = {  # case -> writer, what the refusal says
    "empty": (changed_bytes(lambda content: b""), "damaged"),
    "cut": (changed_bytes(lambda content: content[: len(content) // 2]), "damaged"),
    "bit of a weight": (changed_bytes(with_a_flipped_bit), "damaged"),
    "no objects": (changed_bytes(lambda content: b"\x80\x02nonsense"), "damaged"),
    "a folder": (make_folder, "ordinary"),
    "no model": (without("model"), "model"),
    "no extra state": (without("extra_state"), "extra_state"),
    "config is text": (holding(cfg="text"), "config"),
    "os.system": (holding(extra_state=CODE), CODE_NAME),
    "torch.load": (holding(extra_state=Call(torch.load, "/etc/passwd")), "torch.serialization.load"),
    "array of objects": (holding(extra_state=numpy.array([CODE])), "numpy.dtypes.ObjectDType"),
    "bare pickle": (write_bare_pickle, CODE_NAME),
    "format before torch 1.6": (old_format_with_code, CODE_NAME),
    "an infinity": (with_weight(WEIGHT, torch.full((32, 16), float("inf"))), WEIGHT),
    "a NaN in half precision": (with_weight(WEIGHT, torch.full((32, 16), float("nan"), dtype=torch.half)), WEIGHT),
    "stride 0": (with_weight("x", torch.zeros(1).expand(10**12)), "1,000,000,000,000"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_checkpoint_is_refused_in_one_line(case, sound_checkpoint, tmp_path):
    """A wrong checkpoint is refused by the function that all of fairseq's programs open it with."""
    write, fact = WRONG[case]
    path = tmp_path / "wrong.pt"
    write(path, sound_checkpoint)

    with refused(path) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))

    check_line(caught.value)
    assert fact in caught.value.way_out


COMMANDS = {
    "average": lambda sound, wrong: ("average", sound, wrong),
    "export": lambda sound, wrong: ("export", wrong, "--to", "transformer"),
}
REFUSED_BY_COMMANDS = {
    "code": (holding(extra_state=CODE), CODE_NAME),
    "a model of fairseq": (of_a_model(_name="lstm", arch="lstm"), "lstm"),
    "no embeddings": (without_embeddings, ""),
}


@pytest.mark.parametrize("case", REFUSED_BY_COMMANDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_a_wrong_checkpoint_and_change_no_file(command, case, sound_checkpoint, tmp_path):
    write, fact = REFUSED_BY_COMMANDS[case]
    path = tmp_path / "wrong.pt"
    write(path, sound_checkpoint)
    out = tmp_path / "out"
    out.write_bytes(b"what was there")
    before = contents(tmp_path)

    words = [*COMMANDS[command](sound_checkpoint, path), "--out", out]
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])

    check_line(caught.value, str(path), fact)
    assert contents(tmp_path) == before


@pytest.fixture(params=["fairseq-generate", "fairseq-train"])
def program(request, data, tmp_path):
    """Provide the words of a program that reads wrong.pt in tmp_path; the last two are the flag and the file."""
    path = tmp_path / "wrong.pt"
    if request.param == "fairseq-generate":
        return ("fairseq-generate", data, *GENERATE, "--path", path)
    train = ("fairseq-train", data, *TRAIN_FLAGS, *TINY, "--save-dir", tmp_path / "save")
    return (*train, "--restore-file", path)


def test_programs_of_fairseq_name_the_flag_of_a_missing_checkpoint(program):
    flag, path = program[-2:]

    assert_one_line(run(*program, check=False), f"{flag} {path}")


def test_programs_of_fairseq_refuse_a_checkpoint_with_code(program, sound_checkpoint):
    path = program[-1]
    holding(extra_state=CODE)(path, sound_checkpoint)

    assert_one_line(run(*program, check=False), str(path), CODE_NAME)


def test_a_training_refuses_an_optimiser_state_of_text(data, sound_checkpoint, tmp_path):
    path = tmp_path / "wrong.pt"
    holding(last_optimizer_state="text")(path, sound_checkpoint)

    flags = ("--save-dir", tmp_path / "save", "--restore-file", path)
    done = run("fairseq-train", data, *TRAIN_FLAGS, *TINY, *flags, check=False)

    assert_one_line(done, str(path), "--reset-optimizer")


def test_code_in_settings_that_fairseq_evaluates_is_refused(data, sound_checkpoint, tmp_path):
    """Refuses strings that fairseq would pass to eval() unless they are plain values.

    An fconv checkpoint of plain data once ran code in fairseq-generate through its layers.
    """
    code = f"__import__('os').system('touch {tmp_path}/PROOF')"
    model = {
        "_name": "fconv", "arch": "fconv", "encoder_layers": code, "decoder_layers": code, "encoder_embed_dim": 8,
        "decoder_embed_dim": 8, "decoder_out_embed_dim": 8, "max_source_positions": 9,
    }  # fmt: skip

    def change(state):
        state["cfg"]["model"] = model
        return state

    path = tmp_path / "wrong.pt"
    changed_state(change)(path, sound_checkpoint)

    done = run("fairseq-generate", data, *GENERATE, "--path", path, check=False)

    assert_one_line(done, str(path), "encoder_layers")


# Binarised data and dictionaries

LANGUAGES = ("qaa", "qab")
INDEX = "train.qaa-qab.qaa.idx"
TOKENS = "train.qaa-qab.qaa.bin"
TYPE_OFFSET = 17  # of the tokens' type in an index
COUNT_OFFSET = 18  # of the number of sentences, 8 bytes
EMPTY = [EOS]
SHORT = [6] * 10 + [EOS]
LONG = [5] * 1200 + [EOS]  # a batch holds 600 tokens


def cut(path, kept: int) -> None:
    """Keep the first bytes of a file; a negative number leaves out that many."""
    path.write_bytes(path.read_bytes()[:kept])


def overwrite(path, offset: int, content: bytes) -> None:
    """Replace bytes of a file from an offset on."""
    old = path.read_bytes()
    path.write_bytes(old[:offset] + content + old[offset + len(content) :])


def replace_training_data(folder, rows: list[list[int]]) -> None:
    """Write the same sentences, lists of tokens, as training data of both languages."""
    for language in LANGUAGES:
        write_sentences(folder, f"train.qaa-qab.{language}", rows)


def shorten_dictionaries(folder) -> None:
    """Keep the first 50 words of each dictionary, which has four special symbols too."""
    for language in LANGUAGES:
        path = folder / f"dict.{language}.txt"
        words = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(words[:50]))


BROKEN_DATA = {  # case -> change of the folder, file that the refusal names, what it says
    "index short of a byte": (lambda folder: cut(folder / INDEX, -1), INDEX, "truncated"),
    "magic": (lambda folder: overwrite(folder / INDEX, 0, b"XXXX"), INDEX, "index"),
    "type of token is a float": (lambda folder: overwrite(folder / INDEX, TYPE_OFFSET, b"\6"), INDEX, "type 6"),
    "2**60 sentences": (
        lambda folder: overwrite(folder / INDEX, COUNT_OFFSET, (2**60).to_bytes(8, "little")),
        INDEX,
        "1,152,921,504,606,846,976",
    ),
    "half the tokens": (
        lambda folder: cut(folder / TOKENS, (folder / TOKENS).stat().st_size // 2),
        TOKENS,
        "truncated",
    ),
    "token beyond the dictionary": (lambda folder: overwrite(folder / TOKENS, 0, b"\xff\xff"), TOKENS, "65535"),
    "no sentence": (lambda folder: replace_training_data(folder, []), INDEX, "no sentence"),
    "all sentences too long": (
        lambda folder: replace_training_data(folder, [LONG, LONG]),
        "train.qaa-qab",
        "(600, 600)",
    ),
    "dictionary of other data": (shorten_dictionaries, TOKENS, "54"),
}


@pytest.fixture
def copied_data(data, tmp_path):
    """Provide a copy of the binarised data, to be changed."""
    return shutil.copytree(data, tmp_path / "bin")


@pytest.mark.parametrize("case", BROKEN_DATA)
def test_broken_data_are_refused_in_one_line(case, copied_data, tmp_path):
    change, name, fact = BROKEN_DATA[case]
    change(copied_data)

    with refused(copied_data / name) as caught:
        Training(copied_data, tmp_path, *TINY)

    check_line(caught.value)
    assert fact in caught.value.way_out


def test_data_with_empty_lines_are_accepted(copied_data, tmp_path):
    """An empty line is binarised as its end of sentence."""
    replace_training_data(copied_data, [EMPTY] * 20 + [SHORT])

    Training(copied_data, tmp_path, *TINY).step()


def test_a_joined_dictionary_must_be_the_same_in_both_languages(copied_data, tmp_path):
    with open(copied_data / "dict.qaa.txt", "ab") as file:
        file.write(b"word 3\n")

    done = run("fairseq-train", copied_data, *TRAIN_FLAGS, *TINY, "--save-dir", tmp_path / "save", check=False)

    assert_one_line(done, "--share-all-embeddings", "--joined-dictionary")
