"""Tests of damaged, foreign and malicious checkpoints and data: one line, nothing lost, no code of a file run."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy
import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq.cli import main

from ..conftest import TRAIN_FLAGS
from ..support.broken import Call, check_line, write_sentences
from ..support.diverging import Training
from ..support.errors import assert_one_line, refused
from ..support.helpers import EOS, USER_DIR, run
from ..support.lives import TINY
from ..support.prepared import files_in

GENERATE = ("--user-dir", USER_DIR, "--cpu", "--task", "translation", "--max-tokens", "2000")
CODE = Call(os.system, "touch PROOF")  # its unpickling would make the file PROOF in the current folder
CODE_NAME = "posix.system"  # by which a pickle asks for os.system
WEIGHT = "encoder.layers.0.fc1.weight"  # of TINY, (32, 16)
NUMBERS = 10**12  # of a tensor whose only number in the file is repeated by a stride of 0


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


# Writers of a wrong checkpoint: functions of its path and of the path of the sound one. The state is the dict that
# fairseq saves.


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


def without_entry(entry: str):
    """Return a writer of the state without one of its entries."""
    return changed_state(lambda state: {name: value for name, value in state.items() if name != entry})


def with_entries(**entries):
    """Return a writer of the state with other values of some entries."""
    return changed_state(lambda state: state | entries)


def with_weight(name: str, value: torch.Tensor):
    """Return a writer of the state with another weight."""
    return changed_state(lambda state: state | {"model": state["model"] | {name: value}})


def write_without_embeddings(path, sound) -> None:
    state = torch.load(sound, weights_only=False)
    kept = {name: value for name, value in state["model"].items() if "embed_tokens" not in name}
    torch.save(state | {"model": kept}, path)


def with_settings_of_the_model(**settings):
    """Return a writer of the state with other settings in the model's section of its config."""

    def change(state):
        state["cfg"]["model"].update(settings)
        return state

    return changed_state(change)


def cut_in_half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def with_a_flipped_bit(content: bytes) -> bytes:
    """Flip a bit in the numbers of a weight, which follow the name "data/2" in torch's zip archive."""
    place = content.index(b"data/2") + 100
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def make_folder(path, sound) -> None:
    path.mkdir()


def write_bare_pickle(path, sound) -> None:
    path.write_bytes(pickle.dumps({"x": CODE}, protocol=2))


write_old_format_with_code = changed_state(
    lambda state: state | {"extra_state": CODE}, _use_new_zipfile_serialization=False
)
INFINITE = torch.full((32, 16), float("inf"))
HALF_NAN = torch.full((32, 16), float("nan"), dtype=torch.half)


class Wrong(NamedTuple):
    """Wrong checkpoint: how it is written, and the word by which the refusal tells what is wrong."""

    write: Callable
    fact: str


WRONG = {
    "empty": Wrong(changed_bytes(lambda content: b""), "damaged"),
    "cut": Wrong(changed_bytes(cut_in_half), "damaged"),
    "bit of a weight": Wrong(changed_bytes(with_a_flipped_bit), "damaged"),
    "no objects": Wrong(changed_bytes(lambda content: b"\x80\x02nonsense"), "damaged"),  # begins as a pickle
    "a folder": Wrong(make_folder, "no ordinary file"),
    "no model": Wrong(without_entry("model"), "model"),
    "no extra state": Wrong(without_entry("extra_state"), "extra_state"),
    "config is text": Wrong(with_entries(cfg="text"), "config"),
    "os.system": Wrong(with_entries(extra_state=CODE), CODE_NAME),
    "torch.load": Wrong(with_entries(extra_state=Call(torch.load, "/etc/passwd")), "torch.serialization.load"),
    "array of objects": Wrong(with_entries(extra_state=numpy.array([CODE])), "numpy.dtypes.ObjectDType"),
    "bare pickle": Wrong(write_bare_pickle, CODE_NAME),
    "format before torch 1.6": Wrong(write_old_format_with_code, CODE_NAME),
    "an infinity": Wrong(with_weight(WEIGHT, INFINITE), WEIGHT),
    "a NaN in half precision": Wrong(with_weight(WEIGHT, HALF_NAN), WEIGHT),
    "stride 0": Wrong(with_weight("x", torch.zeros(1).expand(NUMBERS)), f"{NUMBERS:,}"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_checkpoint_is_refused_in_one_line(case, sound_checkpoint, tmp_path):
    """A wrong checkpoint is refused by the function that all of fairseq's programs open it with."""
    path = tmp_path / "wrong.pt"
    WRONG[case].write(path, sound_checkpoint)

    with refused(path) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))

    check_line(caught.value)
    assert WRONG[case].fact in caught.value.way_out


COMMANDS = {  # name -> words of the command, but --out
    "average": lambda sound, wrong: ("average", sound, wrong),
    "export": lambda sound, wrong: ("export", wrong, "--to", "transformer"),
}
REFUSED_BY_COMMANDS = {
    "code": Wrong(with_entries(extra_state=CODE), CODE_NAME),
    "a model of fairseq": Wrong(with_settings_of_the_model(_name="lstm", arch="lstm"), "lstm"),
    "no embeddings": Wrong(write_without_embeddings, ""),  # the two commands name different tensors
}


@pytest.mark.parametrize("case", REFUSED_BY_COMMANDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_a_wrong_checkpoint_and_change_no_file(command, case, sound_checkpoint, tmp_path):
    path = tmp_path / "wrong.pt"
    REFUSED_BY_COMMANDS[case].write(path, sound_checkpoint)
    out = tmp_path / "out"
    out.write_bytes(b"what was there")
    before = files_in(tmp_path)

    words = [*COMMANDS[command](sound_checkpoint, path), "--out", out]
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])

    check_line(caught.value, str(path), REFUSED_BY_COMMANDS[case].fact)
    assert files_in(tmp_path) == before


class Program(NamedTuple):
    """Program of fairseq that is to read the file `path`, which is not there yet."""

    words: tuple
    flag: str  # that takes the file
    path: Path


@pytest.fixture(params=["fairseq-generate", "fairseq-train"])
def program(request, data, tmp_path) -> Program:
    """Provide fairseq-generate with --path, and fairseq-train with --restore-file."""
    path = tmp_path / "wrong.pt"
    if request.param == "fairseq-generate":
        flag = "--path"
        words = ("fairseq-generate", data, *GENERATE)
    else:
        flag = "--restore-file"
        words = ("fairseq-train", data, *TRAIN_FLAGS, *TINY, "--save-dir", tmp_path / "save")
    return Program((*words, flag, path), flag, path)


def test_programs_of_fairseq_name_the_flag_of_a_missing_checkpoint(program):
    done = run(*program.words, check=False)

    assert_one_line(done, f"{program.flag} {program.path}")


def test_programs_of_fairseq_refuse_a_checkpoint_with_code(program, sound_checkpoint):
    with_entries(extra_state=CODE)(program.path, sound_checkpoint)

    done = run(*program.words, check=False)

    assert_one_line(done, str(program.path), CODE_NAME)


def test_a_training_refuses_an_optimiser_state_of_text(data, sound_checkpoint, tmp_path):
    path = tmp_path / "wrong.pt"
    with_entries(last_optimizer_state="text")(path, sound_checkpoint)
    flags = ("--save-dir", tmp_path / "save", "--restore-file", path)

    done = run("fairseq-train", data, *TRAIN_FLAGS, *TINY, *flags, check=False)

    assert_one_line(done, str(path), "--reset-optimizer")


def test_code_in_settings_that_fairseq_evaluates_is_refused(data, sound_checkpoint, tmp_path):
    """fairseq's fconv passes its layers to eval(): code in their place once ran in fairseq-generate."""
    code = f"__import__('os').system('touch {tmp_path}/PROOF')"
    fconv = {
        "_name": "fconv", "arch": "fconv", "encoder_layers": code, "decoder_layers": code, "encoder_embed_dim": 8,
        "decoder_embed_dim": 8, "decoder_out_embed_dim": 8, "max_source_positions": 9,
    }  # fmt: skip

    def change(state):
        state["cfg"]["model"] = fconv
        return state

    path = tmp_path / "wrong.pt"
    changed_state(change)(path, sound_checkpoint)

    done = run("fairseq-generate", data, *GENERATE, "--path", path, check=False)

    assert_one_line(done, str(path), "encoder_layers")


# Binarised data and dictionaries

LANGUAGES = ("qaa", "qab")
INDEX = "train.qaa-qab.qaa.idx"
TOKENS = "train.qaa-qab.qaa.bin"
# an index begins with 9 bytes of magic, 8 of the version, 1 of the tokens' type, and 8 of the number of sentences
TYPE_OFFSET = 9 + 8
COUNT_OFFSET = TYPE_OFFSET + 1
HUGE = 2**60  # sentences
EMPTY = [EOS]  # tokens of a sentence, as the next two
SHORT = [6] * 10 + [EOS]
LONG = [5] * 1200 + [EOS]  # a batch holds 600 tokens, --max-tokens of TRAIN_FLAGS
KEPT_WORDS = 50  # of a dictionary
SPECIALS = 4  # <s>, <pad>, </s> and <unk>, which every dictionary has beside its words


def cut(path, kept: int) -> None:
    """Keep the first bytes of a file; a negative number leaves out that many."""
    path.write_bytes(path.read_bytes()[:kept])


def overwrite(path, offset: int, content: bytes) -> None:
    """Replace bytes of a file from an offset on."""
    old = path.read_bytes()
    path.write_bytes(old[:offset] + content + old[offset + len(content) :])


def drop_half_of_the_tokens(folder) -> None:
    path = folder / TOKENS
    cut(path, path.stat().st_size // 2)


def replace_training_data(folder, rows: list[list[int]]) -> None:
    """Write the same sentences, lists of tokens, as training data of both languages."""
    for language in LANGUAGES:
        write_sentences(folder, f"train.qaa-qab.{language}", rows)


def shorten_dictionaries(folder) -> None:
    """Keep the first KEPT_WORDS of each dictionary."""
    for language in LANGUAGES:
        path = folder / f"dict.{language}.txt"
        words = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(words[:KEPT_WORDS]))


class BrokenData(NamedTuple):
    """Change of a folder of data, the file that the refusal names, and the word by which it tells what is wrong."""

    change: Callable
    file: str
    fact: str


BROKEN_DATA = {
    "index short of a byte": BrokenData(lambda folder: cut(folder / INDEX, -1), INDEX, "truncated"),
    "magic": BrokenData(lambda folder: overwrite(folder / INDEX, 0, b"XXXX"), INDEX, "no index of binarised data"),
    "type of token is a float": BrokenData(
        lambda folder: overwrite(folder / INDEX, TYPE_OFFSET, b"\6"),  # fairseq's number of numpy.float64
        INDEX,
        "type 6",
    ),
    "2**60 sentences": BrokenData(
        lambda folder: overwrite(folder / INDEX, COUNT_OFFSET, HUGE.to_bytes(8, "little")), INDEX, f"{HUGE:,}"
    ),
    "half the tokens": BrokenData(drop_half_of_the_tokens, TOKENS, "truncated"),
    "token beyond the dictionary": BrokenData(
        lambda folder: overwrite(folder / TOKENS, 0, b"\xff\xff"),  # a token has two bytes
        TOKENS,
        "65535",
    ),
    "no sentence": BrokenData(lambda folder: replace_training_data(folder, []), INDEX, "sentence"),
    "all sentences too long": BrokenData(
        lambda folder: replace_training_data(folder, [LONG, LONG]), "train.qaa-qab", "600"
    ),
    "dictionary of other data": BrokenData(shorten_dictionaries, TOKENS, str(KEPT_WORDS + SPECIALS)),
}


@pytest.fixture
def copied_data(data, tmp_path):
    """Provide a copy of the binarised data, to be changed."""
    return shutil.copytree(data, tmp_path / "bin")


@pytest.mark.parametrize("case", BROKEN_DATA)
def test_broken_data_are_refused_in_one_line(case, copied_data, tmp_path):
    broken = BROKEN_DATA[case]
    broken.change(copied_data)

    with refused(copied_data / broken.file) as caught:
        Training(copied_data, tmp_path, *TINY)

    check_line(caught.value)
    assert broken.fact in caught.value.way_out


def test_data_with_empty_lines_are_trained_on(copied_data, tmp_path):
    """An empty line is binarised as its end of sentence."""
    replace_training_data(copied_data, [EMPTY] * 20 + [SHORT])
    training = Training(copied_data, tmp_path, *TINY)

    training.step()

    assert training.trainer.get_num_updates() == 1


def test_a_joined_dictionary_must_be_the_same_in_both_languages(copied_data, tmp_path):
    with open(copied_data / "dict.qaa.txt", "ab") as file:
        file.write(b"word 3\n")  # a word and its count

    done = run("fairseq-train", copied_data, *TRAIN_FLAGS, *TINY, "--save-dir", tmp_path / "save", check=False)

    assert_one_line(done, "--share-all-embeddings", "--joined-dictionary")
