"""Checkpoints that are broken, of another kind, or made to do harm: one line, no code run, nothing lost."""

import os
from pathlib import Path

import pytest
import torch

from .hostile import checkpoints as made
from .hostile.rooms import GENERATE, TRAIN, a_sound_checkpoint, refused, the_programs  # noqa: F401

DAMAGED, OTHER, CODE = "damaged", "not a checkpoint of fairseq", "refused, it asks to load"
TOUCH = f"touch {made.CANARY}"
NAN, INF = float("nan"), float("inf")


def section(name, **values):
    """Settings of a section of the config."""
    return made.changed(lambda state: state["cfg"][name].update(values))


def without(key):
    return made.changed(lambda state: {name: value for name, value in state.items() if name != key})


def holding(**values):
    return made.changed(lambda state: state | values)


def last_updates(value):
    return made.changed(lambda state: state["optimizer_history"][-1].update(num_updates=value))


def one_number(value):
    def write(weight):
        weight[3, 5] = value
        return weight

    return made.with_weight(write)


BYTES = {
    "empty": (made.bytes_of(b""), DAMAGED),
    "text": (made.bytes_of(b"not a checkpoint\n" * 50), DAMAGED),
    "zeros": (made.bytes_of(bytes(4096)), DAMAGED),
    "noise": (made.bytes_of(bytes(range(256)) * 16), DAMAGED),
    "empty zip": (made.bytes_of(b"PK\x05\x06" + bytes(18)), DAMAGED),
    **{f"cut at {share}": (made.cut(share), DAMAGED) for share in (0.01, 0.3, 0.6, 0.9, 0.999, 0.99999)},
    "bit of a weight": (made.flipped(b"data/2", 100), DAMAGED),
    "bit of the pickle": (made.flipped(b"data.pkl", 300), DAMAGED),
    "bit of the directory": (made.flipped(b"PK\x01\x02", 44), DAMAGED),
    "no pickle": (made.record_of("data.pkl", None), DAMAGED),
    "empty pickle": (made.record_of("data.pkl", b""), DAMAGED),
    "pickle of a dict": (made.record_of("data.pkl", b"\x80\x02}."), "it lacks 'best_loss'"),
    "pickle of a list": (made.record_of("data.pkl", b"\x80\x02]."), OTHER),
    "pickle that ends": (made.record_of("data.pkl", b"\x80\x02}q\x00(X\x05"), DAMAGED),
    "string of 2**60 bytes": (made.claiming(2**60), DAMAGED),
    "record missing": (made.record_of("data/0", None), DAMAGED),
    "record short": (made.record_of("data/0", b"xx"), DAMAGED),
    "record of 4 GiB": (made.declared_length, DAMAGED),
    "tensor of 2**58 numbers": (made.huge_storage, DAMAGED),
    "array of 2**60 bytes": (made.numpy_memory, DAMAGED),
}
PICKLES = {
    "os.system": (made.modern(os.system, TOUCH), f"{CODE} posix.system"),
    "eval": (made.modern(eval, f"open('{made.CANARY}', 'w')"), f"{CODE} eval"),
    "exec": (made.modern(exec, f"open('{made.CANARY}', 'w')"), f"{CODE} exec"),
    "open": (made.modern(open, made.CANARY, "w"), f"{CODE} io.open"),
    "import": (made.modern(__import__, "antigravity"), f"{CODE} __import__"),
    "torch.load": (made.modern(torch.load, "/etc/passwd"), f"{CODE} torch.serialization.load"),
    "array of objects": (made.numpy_object, f"{CODE} numpy.dtypes.ObjectDType"),
    "bare pickle": (made.legacy(os.system, TOUCH), f"{CODE} posix.system"),
    "bare pickle, protocol 0": (made.legacy(os.system, TOUCH, protocol=0), DAMAGED),
    "bare pickle, protocol 4": (made.legacy(os.system, TOUCH, protocol=4), DAMAGED),
    "format before torch 1.6": (made.in_legacy_format, f"{CODE} posix.system"),
}
CONTENT = {
    "no weights": (without("model"), OTHER),
    "weights None": (holding(model=None), OTHER),
    "weights empty": (holding(model={}), OTHER),
    "weights in a list": (made.changed(lambda state: state | {"model": list(state["model"].values())}), OTHER),
    "names are numbers": (made.changed(lambda s: s | {"model": dict(enumerate(s["model"].values()))}), OTHER),
    "a weight is text": (made.with_weight(lambda weight: "text"), OTHER),
    "a weight of whole numbers": (made.with_weight(lambda weight: weight.long()), OTHER),
    "a weight is complex": (made.with_weight(lambda weight: weight.to(torch.complex64)), OTHER),
    "a weight is sparse": (made.with_weight(lambda weight: weight.to_sparse()), OTHER),
    "a weight without memory": (made.with_weight(lambda weight: weight.to("meta")), OTHER),
    "a NaN": (one_number(NAN), "not finite"),
    "an infinity": (one_number(INF), "not finite"),
    "both infinities": (made.with_weight(lambda w: w.index_fill_(0, torch.tensor([0]), INF).neg_()), "not finite"),
    "a NaN in half precision": (made.with_weight(lambda w: w.fill_(NAN).half()), "not finite"),
    "no config": (without("cfg"), "no config of a model"),
    "config None": (holding(cfg=None), "no config of a model"),
    "config is text": (holding(cfg="text"), "no config of a model"),
    "config without a model": (made.changed(lambda s: s["cfg"].pop("model") and None), "no config of a model"),
    "config of another model": (section("model", _name="lstm", arch="lstm"), "holds a lstm"),
    "depth is text": (section("model", encoder_layers="many"), "encoder_layers"),
    "depth of 10**9": (section("model", encoder_layers=10**9), "1000000000 encoder layers, it has 1"),
    "depth below 0": (section("model", decoder_layers=-1), "-1 decoder layers"),
    "width of 2**40": (section("model", encoder_embed_dim=2**40), "1099511627776"),
    "no history": (without("optimizer_history"), OTHER),
    "empty history": (holding(optimizer_history=[]), DAMAGED),
    "history is text": (holding(optimizer_history="text"), OTHER),
    "updates are text": (last_updates("many"), "update is no number"),
    "updates below 0": (last_updates(-5), "update is no number"),
    "no extra state": (without("extra_state"), OTHER),
    "extra state is a list": (holding(extra_state=[1]), OTHER),
    "epoch is text": (made.changed(lambda s: s["extra_state"]["train_iterator"].update(epoch="x")), "epoch"),
}
WRONG = BYTES | PICKLES | CONTENT


@pytest.mark.parametrize("case", WRONG)
def test_average(case, programs, sound, tmp_path):
    """All of them by the program that starts fastest; the others open checkpoints by the same function."""
    write, says = WRONG[case]
    path, out = tmp_path / "wrong.pt", tmp_path / "mean.pt"
    write(path, sound)
    out.write_bytes(b"what was there")
    refused(programs, tmp_path, ("deepnet", "average", sound, path, "--out", out), str(path), says)


def commands(data, path, room):
    """Every other program that opens a checkpoint."""
    out = room / "out"
    return {
        "resume": ("fairseq-train", data, *TRAIN, "--restore-file", path, "--save-dir", room / "save"),
        "finetune": ("fairseq-train", data, *TRAIN, "--finetune-from-model", path, "--save-dir", room / "save"),
        "generate": ("fairseq-generate", data, "--path", path, *GENERATE),
        "validate": ("fairseq-validate", data, "--path", path, *GENERATE),
        "interactive": ("fairseq-interactive", data, "--path", path, *GENERATE),
        "directions": ("deepnet", "generate", data, *GENERATE, "--directions", "qaa-qab", "--out", out, "--path", path),
        "export": ("deepnet", "export", path, "--to", "transformer", "--out", out),
    }


PROGRAMS = tuple(commands("", "", Path()))
EVERYWHERE = [(program, "os.system") for program in PROGRAMS]
EVERYWHERE += [(program, case) for program in ("resume", "generate", "export") for case in ("a NaN", "depth of 10**9")]


@pytest.mark.parametrize("program, case", EVERYWHERE)
def test_every_program(program, case, programs, data, sound, tmp_path):
    write, says = WRONG[case]
    path = tmp_path / "wrong.pt"
    write(path, sound)
    refused(programs, tmp_path, commands(data, path, tmp_path)[program], str(path), says)


PLACES = {
    "a folder": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("program", ["resume", "generate", "export"])
def test_no_file(place, program, programs, data, tmp_path):
    path = tmp_path / "wrong.pt"
    PLACES[place](path)
    says = "is no ordinary file" if place != "a link to itself" else ""
    refused(programs, tmp_path, commands(data, path, tmp_path)[program], str(path), says)


RESUMED = {
    "optimiser's state of another shape": holding(last_optimizer_state={"state": {}, "param_groups": []}),
    "optimiser's state is text": holding(last_optimizer_state="text"),
    "of another optimiser": made.changed(lambda s: s["optimizer_history"][-1].update(optimizer_name="FairseqNAG")),
    "of another criterion": made.changed(lambda s: s["optimizer_history"][-1].update(criterion_name="Other")),
    "schedule is text": made.changed(lambda s: s["optimizer_history"][-1].update(lr_scheduler_state="text")),
}


@pytest.mark.parametrize("case", RESUMED)
def test_training_that_cannot_go_on(case, programs, data, sound, tmp_path):
    path = tmp_path / "wrong.pt"
    RESUMED[case](path, sound)
    words = commands(data, path, tmp_path)["resume"]
    refused(programs, tmp_path, words, str(path), "cannot go on with its training", "--reset-optimizer")


def test_strings_for_eval_are_plain_values(programs, data, sound, tmp_path):
    """An fconv's layers are read by eval(): a checkpoint of plain data alone ran code in fairseq-generate."""
    code = f"__import__('os').system('{TOUCH}')"
    path = tmp_path / "wrong.pt"
    layers = {"_name": "fconv", "arch": "fconv", "encoder_layers": code, "decoder_layers": code}
    widths = {"encoder_embed_dim": 8, "decoder_embed_dim": 8, "decoder_out_embed_dim": 8}
    made.changed(lambda s: s["cfg"].update(model=layers | widths | {"max_source_positions": 9}))(path, sound)
    refused(programs, tmp_path, commands(data, path, tmp_path)["generate"], "is no plain value")
