"""Checkpoints that are broken, of another kind, or made to do harm: one line, no code run, nothing lost."""

import os

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError

from .conftest import TRAIN_FLAGS
from .support import broken
from .support.broken import bare_pickle, calling, changed, check_line, flipped, holding, record_of, rewritten
from .support.helpers import USER_DIR, run
from .test_bad_input import assert_one_line

DAMAGED, OTHER, CODE = "damaged", "not a checkpoint of fairseq", "refused, it asks to load"
WIDTHS = {"layers": 1, "embed-dim": 16, "ffn-embed-dim": 16, "attention-heads": 1}
MODEL = ("--arch", "deepnet_transformer_tiny") + tuple(
    str(word) for stack in ("encoder", "decoder") for name, n in WIDTHS.items() for word in (f"--{stack}-{name}", n)
)
GENERATE = ("--user-dir", USER_DIR, "--cpu", "--task", "translation", "--max-tokens", "2000")


@pytest.fixture(scope="session")
def sound(data, tmp_path_factory):
    """Of a 1L-1L model of width 16, after an update."""
    folder = tmp_path_factory.mktemp("sound")
    run("fairseq-train", data, *TRAIN_FLAGS, *MODEL, "--max-update", "1", "--save-dir", folder)
    return folder / "checkpoint_last.pt"


def section(name, **values):
    """Settings of a section of the config."""
    return changed(lambda state: state["cfg"][name].update(values))


def without(key):
    return changed(lambda state: {name: value for name, value in state.items() if name != key})


def filled(value, **kind):
    return broken.with_weight(lambda weight: weight.fill_(value).to(**kind) if kind else weight.fill_(value))


WRONG = {
    "empty": (rewritten(lambda data: b""), DAMAGED),
    "empty zip": (rewritten(lambda data: b"PK\x05\x06" + bytes(18)), DAMAGED),
    "cut": (rewritten(lambda data: data[: len(data) // 2]), DAMAGED),
    "bit of a weight": (flipped(b"data/2", 100), DAMAGED),
    "bit of the pickle": (flipped(b"data.pkl", 300), DAMAGED),
    "no pickle": (record_of("data.pkl", None), DAMAGED),
    "pickle of a dict": (record_of("data.pkl", b"\x80\x02}."), "it lacks 'best_loss'"),
    "string of 2**60 bytes": (record_of("data.pkl", b"\x80\x04\x8d" + (2**60).to_bytes(8, "little") + b"x."), DAMAGED),
    "record missing": (record_of("data/0", None), DAMAGED),
    "record of 4 GiB": (broken.declared_length, DAMAGED),
    "tensor of 2**58 numbers": (broken.huge_storage, DAMAGED),
    "os.system": (calling(os.system, "touch PROOF"), f"{CODE} posix.system"),
    "import": (calling(__import__, "antigravity"), f"{CODE} __import__"),
    "torch.load": (calling(torch.load, "/etc/passwd"), f"{CODE} torch.serialization.load"),
    "array of objects": (broken.numpy_object, f"{CODE} numpy.dtypes.ObjectDType"),
    "bare pickle": (bare_pickle(os.system, "touch PROOF"), f"{CODE} posix.system"),
    "bare pickle, protocol 4": (bare_pickle(os.system, "touch PROOF", protocol=4), DAMAGED),
    "format before torch 1.6": (broken.in_legacy_format, f"{CODE} posix.system"),
    "weights in a list": (changed(lambda state: state | {"model": list(state["model"].values())}), OTHER),
    "a weight of whole numbers": (broken.with_weight(lambda weight: weight.long()), OTHER),
    "a weight is sparse": (broken.with_weight(lambda weight: weight.to_sparse()), OTHER),
    "an infinity": (filled(float("inf")), "not finite"),
    "a NaN in half precision": (filled(float("nan"), dtype=torch.float16), "not finite"),
    "config is text": (holding(cfg="text"), "no config of a model"),
    "depth is text": (section("model", encoder_layers="many"), "encoder_layers"),
    "depth of 10**9": (section("model", encoder_layers=10**9), "1000000000 encoder layers, it has 1"),
    "empty history": (holding(optimizer_history=[]), DAMAGED),
    "updates below 0": (changed(lambda s: s["optimizer_history"][-1].update(num_updates=-5)), "update is no number"),
    "no extra state": (without("extra_state"), OTHER),
    "epoch is text": (changed(lambda s: s["extra_state"]["train_iterator"].update(epoch="x")), "epoch"),
}


@pytest.mark.parametrize("case", WRONG)
def test_opening(case, sound, tmp_path):
    """By the function with which every program opens one."""
    write, says = WRONG[case]
    path = tmp_path / "wrong.pt"
    write(path, sound)
    with broken.little_memory(), pytest.raises(UserError) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
    check_line(caught.value, str(path), says)
    assert [file.name for file in tmp_path.iterdir()] == ["wrong.pt"], "code of the file was run"


OTHERS = {"another model": (section("model", _name="lstm", arch="lstm"), "holds a lstm")}


@pytest.mark.parametrize("command", ["average", "export", "generate"])
@pytest.mark.parametrize("case", ["os.system", "an infinity", "another model"])
def test_commands(case, command, data, sound, tmp_path):
    """Of `deepnet`; those of fairseq are in test_bad_input.py. What was there stays as it was."""
    if (case, command) == ("another model", "generate"):
        return  # fairseq translates with models of its own
    write, says = (WRONG | OTHERS)[case]
    path, out = tmp_path / "wrong.pt", tmp_path / "out"
    write(path, sound)
    if command == "average":
        out.write_bytes(b"what was there")
    before = broken.contents(tmp_path)
    words = {
        "average": (sound, path, "--out", out),
        "export": (path, "--to", "transformer", "--out", out),
        "generate": (data, *GENERATE, "--directions", "qaa-qab", "--out", out, "--path", path),
    }
    with pytest.raises((SystemExit, UserError)) as caught:
        main([command, *map(str, words[command])])
    check_line(caught.value, str(path), says)
    after = broken.contents(tmp_path)
    assert {name: held for name, held in after.items() if not name.endswith(".log")} == before


PLACES = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("place", PLACES)
def test_no_file(place, tmp_path):
    path = tmp_path / "wrong.pt"
    PLACES[place](path)
    with pytest.raises(SystemExit) as caught:
        main(["export", str(path), "--to", "transformer", "--out", str(tmp_path / "out")])
    check_line(caught.value, str(path), "is no ordinary file" if place != "a link to itself" else "")


RESUMED = {
    "optimiser's state is text": holding(last_optimizer_state="text"),
    "of another criterion": changed(lambda s: s["optimizer_history"][-1].update(criterion_name="Other")),
}


@pytest.mark.parametrize("case", RESUMED)
def test_training_that_cannot_go_on(case, data, sound, tmp_path):
    path = tmp_path / "wrong.pt"
    RESUMED[case](path, sound)
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
    assert not (tmp_path / "PROOF").exists()
