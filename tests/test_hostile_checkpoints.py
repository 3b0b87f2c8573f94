"""Checkpoints that are broken, of another kind, or made to do harm: one line, no code run, nothing lost."""

import os
import pickle
import zipfile

import numpy
import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError

from .conftest import TRAIN_FLAGS
from .support.broken import Call, check_line, contents
from .support.helpers import USER_DIR, run
from .test_bad_input import assert_one_line

DAMAGED, OTHER, CODE = "damaged", "not a checkpoint of fairseq", "refused, it asks to load"
WIDTHS = {"layers": 1, "embed-dim": 16, "ffn-embed-dim": 16, "attention-heads": 1}
MODEL = ("--arch", "deepnet_transformer_tiny") + tuple(
    str(word) for stack in ("encoder", "decoder") for name, n in WIDTHS.items() for word in (f"--{stack}-{name}", n)
)
GENERATE = ("--user-dir", USER_DIR, "--cpu", "--task", "translation", "--max-tokens", "2000")
TOUCH = Call(os.system, "touch PROOF")  # in the current folder


@pytest.fixture(scope="session")
def sound(data, tmp_path_factory):
    """Of a 1L-1L model of width 16, after an update."""
    folder = tmp_path_factory.mktemp("sound")
    run("fairseq-train", data, *TRAIN_FLAGS, *MODEL, "--max-update", "1", "--save-dir", folder)
    return folder / "checkpoint_last.pt"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Where code of a file would leave its proof."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "PROOF").exists(), "code of the file was run"


def changed(change, **how):
    """A writer of the sound checkpoint after change(state); so are those below."""

    def write(path, sound) -> None:
        state = torch.load(sound, weights_only=False)
        torch.save(change(state) or state, path, **how)

    return write


def holding(**values):
    return changed(lambda state: state | values)


def section(name, **values):
    """Settings of a section of the config."""
    return changed(lambda state: state["cfg"][name].update(values))


def filled(value, **kind):
    """A weight of the first layer."""

    def change(state):
        state["model"]["encoder.layers.0.fc1.weight"] = torch.full((16, 16), value, **kind)

    return changed(change)


def rewritten(change):
    """change: bytes -> bytes, of the whole file."""
    return lambda path, sound: path.write_bytes(change(sound.read_bytes()))


def a_bit(content: bytes) -> bytes:
    place = content.index(b"data/2") + 100
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def with_pickle(content: bytes):
    """The archive with other objects."""

    def write(path, sound) -> None:
        with zipfile.ZipFile(sound) as old, zipfile.ZipFile(path, "w") as new:
            for info in old.infolist():
                new.writestr(info, content if info.filename.endswith("/data.pkl") else old.read(info))

    return write


WRONG = {
    "empty": (rewritten(lambda data: b""), DAMAGED),
    "cut": (rewritten(lambda data: data[: len(data) // 2]), DAMAGED),
    "bit of a weight": (rewritten(a_bit), DAMAGED),
    "pickle of a dict": (with_pickle(b"\x80\x02}."), "it lacks 'best_loss'"),
    "string of 2**60 bytes": (with_pickle(b"\x80\x04\x8d" + (2**60).to_bytes(8, "little") + b"x."), DAMAGED),
    "os.system": (holding(extra_state=TOUCH), f"{CODE} posix.system"),
    "torch.load": (holding(extra_state=Call(torch.load, "/etc/passwd")), f"{CODE} torch.serialization.load"),
    "array of objects": (holding(extra_state=numpy.array([TOUCH])), f"{CODE} numpy.dtypes.ObjectDType"),
    "bare pickle": (lambda path, sound: path.write_bytes(pickle.dumps({"x": TOUCH}, 2)), f"{CODE} posix.system"),
    "format before torch 1.6": (
        changed(lambda state: state | {"extra_state": TOUCH}, _use_new_zipfile_serialization=False),
        f"{CODE} posix.system",
    ),
    "weights in a list": (changed(lambda state: state | {"model": list(state["model"].values())}), OTHER),
    "an infinity": (filled(float("inf")), "not finite"),
    "a NaN in half precision": (filled(float("nan"), dtype=torch.float16), "not finite"),
    "config is text": (holding(cfg="text"), "no config of a model"),
    "no extra state": (changed(lambda s: {name: s[name] for name in s if name != "extra_state"}), OTHER),
}


@pytest.mark.parametrize("case", WRONG)
def test_opening(case, sound, tmp_path):
    """By the function with which every program opens one."""
    write, says = WRONG[case]
    path = tmp_path / "wrong.pt"
    write(path, sound)
    with pytest.raises(UserError) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    check_line(caught.value, str(path), says)


@pytest.mark.parametrize("command", ["average", "export", "generate"])
def test_commands(command, data, sound, tmp_path):
    """Of `deepnet`; those of fairseq are in test_bad_input.py. What was there stays as it was."""
    path, out = tmp_path / "wrong.pt", tmp_path / "out"
    cases = [WRONG["os.system"], (section("model", _name="lstm", arch="lstm"), "holds a lstm")]
    for write, says in cases[: 1 if command == "generate" else 2]:  # fairseq translates with models of its own
        write(path, sound)
        if command == "average":
            out.write_bytes(b"what was there")
        before = contents(tmp_path)
        words = {
            "average": (sound, path, "--out", out),
            "export": (path, "--to", "transformer", "--out", out),
            "generate": (data, *GENERATE, "--directions", "qaa-qab", "--out", out, "--path", path),
        }
        with pytest.raises((SystemExit, UserError)) as caught:
            main([command, *map(str, words[command])])
        check_line(caught.value, str(path), says)
        after = contents(tmp_path)
        assert {name: held for name, held in after.items() if not name.endswith(".log")} == before


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_no_file(make, tmp_path):
    path = tmp_path / "wrong.pt"
    make(path)
    with pytest.raises(SystemExit) as caught:
        main(["export", str(path), "--to", "transformer", "--out", str(tmp_path / "out")])
    check_line(caught.value, str(path), "is no ordinary file")


def test_training_that_cannot_go_on(data, sound, tmp_path):
    """The optimiser's state is text, or of another criterion."""
    path = tmp_path / "wrong.pt"
    for change in (
        holding(last_optimizer_state="text"),
        changed(lambda state: state["optimizer_history"][-1].update(criterion_name="Other")),
    ):
        change(path, sound)
        words = (*TRAIN_FLAGS, *MODEL, "--max-update", "1", "--restore-file", path, "--save-dir", tmp_path / "save")
        done = run("fairseq-train", data, *words, check=False)
        assert_one_line(done, str(path), "cannot go on with its training", "--reset-optimizer")


def test_strings_for_eval_are_plain_values(data, sound, tmp_path):
    """An fconv's layers are read by eval(): a checkpoint of plain data alone ran code in fairseq-generate."""
    code, path = f"__import__('os').system('touch {tmp_path}/PROOF')", tmp_path / "wrong.pt"
    layers = {"_name": "fconv", "arch": "fconv", "encoder_layers": code, "decoder_layers": code}
    widths = {"encoder_embed_dim": 8, "decoder_embed_dim": 8, "decoder_out_embed_dim": 8}
    changed(lambda s: s["cfg"].update(model=layers | widths | {"max_source_positions": 9}))(path, sound)
    assert_one_line(run("fairseq-generate", data, "--path", path, *GENERATE, check=False), "is no plain value")
