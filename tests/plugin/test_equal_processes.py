"""Tests that several processes, with DDP or ZeRO, train the same model as one process, for all kinds of model."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.plugin.trainer import parse_training_flags

from ..conftest import TRAIN_FLAGS
from ..faults import states
from ..support import ranks
from ..support.lm_trainings import FLAGS, KINDS, make_text

MODEL = (
    "--arch", "deepnet_transformer_tiny", "--encoder-layers", "2", "--decoder-layers", "3", "--encoder-embed-dim", "24",
    "--encoder-ffn-embed-dim", "40", "--encoder-attention-heads", "3", "--dropout", "0", "--max-tokens", "400",
    "--max-update", "12", "--adam-eps", "1e-6",
)  # fmt: skip
MODES = {"ddp": (), "zero": ("--optimizer", "deepnet_adam", "--zero-sharding", "os")}
# The remaining cases are slow.
SOME = [(2, "deepnorm", "ddp", 1), (2, "admin", "zero", 0), (2, "rezero", "zero", 1)]
ALL = [*product((2, 4), ("deepnorm", "admin", "dlcl", "rezero"), MODES, (0, 1))]
CASES = [pytest.param(*case, marks=() if case in SOME else pytest.mark.slow) for case in ALL]


def train(folder, data, world, method, *flags):
    """Train 12 updates of 4 batches each; return their losses and the checkpoint."""
    words = (*TRAIN_FLAGS, *MODEL, "--method", method, *METHODS[method].train_flags, *flags)
    rows = ranks.train(world, folder / "log", data, *words, "--update-freq", 4 // world, "--save-dir", folder)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(folder / "checkpoint_last.pt"))
    return [float(row["loss"]) for row in rows], state


@pytest.fixture(scope="module")
def alone(data, tmp_path_factory):
    """Provide the losses and checkpoint of a training on one process, by method."""
    return cache(lambda method: train(tmp_path_factory.mktemp("alone"), data, 1, method))


@pytest.mark.parametrize("world, method, mode, again", CASES)
def test_losses_weights_and_state_are_those_of_one(alone, world, method, mode, again, data, tmp_path):
    """Losses, weights and optimiser state after 12 float32 updates are those of one process, up to summation order."""
    flags = (*MODES[mode], *["--checkpoint-activations"][:again])
    losses, state = train(tmp_path, data, world, method, *flags)
    expected, one = alone(method)
    assert len(losses) == 12 and losses == pytest.approx(expected, abs=2.1e-3) and expected[-1] < 0.97 * expected[0]
    assert_same(state, one)


def assert_same(state, expected):
    """Check that weights and moments are equal but for the few units whose ReLU lies at its edge."""
    assert state["model"].keys() == expected["model"].keys()
    pairs = [(state["model"][name], value) for name, value in expected["model"].items()]
    actual, others = (one["last_optimizer_state"]["state"] for one in (state, expected))
    assert actual.keys() == others.keys() and others
    for place, entry in others.items():
        assert actual[place]["step"] == entry["step"] == 12
        pairs += [(actual[place][name], entry[name]) for name in ("exp_avg", "exp_avg_sq")]
    for ours, theirs in pairs:
        apart = (ours - theirs).abs().flatten()
        assert ours.shape == theirs.shape and apart.max() < 1e-3 and apart.quantile(0.95) < 1e-4


HALF = {"--fp16": MODES, "--amp": ("ddp",)}


@pytest.mark.smoke
@pytest.mark.parametrize("precision, mode", [(precision, mode) for precision, modes in HALF.items() for mode in modes])
def test_half_precision_is_that_of_one(precision, mode, alone, data, tmp_path):
    """Losses in half precision are those of float32, and weights those of one process.

    Rounded weights may differ by one step of fp16, 2^-10 for weights up to 2.
    """
    models = []
    for world, flags in ((1, ()), (2, MODES[mode])):
        (folder := tmp_path / str(world)).mkdir()
        losses, state = train(folder, data, world, "dlcl", precision, *flags)
        assert losses == pytest.approx(alone("dlcl")[0], abs=2.1e-3)
        models.append(state["model"])
    one, two = models
    for name, value in one.items():
        assert torch.allclose(two[name].float(), value.float(), rtol=0, atol=2**-10), name


@pytest.mark.parametrize(
    "world, mode, later, other",
    [
        (1, "ddp", 2, "zero"),
        pytest.param(2, "zero", 4, "zero", marks=pytest.mark.slow),
        pytest.param(4, "zero", 1, "ddp", marks=pytest.mark.slow),
    ],
)
def test_resumes_on_another_number_in_another_mode(alone, world, mode, later, other, data, tmp_path):
    """A training resumes on another number of processes in another mode: 5 and 7 updates equal 12."""
    first, _ = train(tmp_path, data, world, "rezero", *MODES[mode], "--max-update", 5)
    both, state = train(tmp_path, data, later, "rezero", *MODES[other])
    expected, one = alone("rezero")
    assert len(first) == 5 and both == pytest.approx(expected, abs=2.1e-3)
    assert_same(state, one)


EXACT = [(precision, mode) for precision in ((), ("--bf16",), ("--fp16",)) for mode in MODES]


@pytest.mark.parametrize(
    "precision, mode",
    [pytest.param(*case, marks=() if case == (("--fp16",), "zero") else pytest.mark.slow) for case in EXACT],
)
def test_resumed_on_two_processes_bit_for_bit(precision, mode, data, tmp_path):
    """A training on two processes resumes bit for bit: 3 and 3 updates equal 6 in weights and optimiser state."""
    saved = []
    for name, stops in (("at once", [6]), ("in two", [3, 6])):
        (folder := tmp_path / name).mkdir()
        for stop in stops:
            _, state = train(folder, data, 2, "dlcl", *precision, *MODES[mode], "--max-update", stop)
        saved.append({key: state[key] for key in ("model", "last_optimizer_state", "optimizer_history")})
    assert bool(precision) == ("fp32_params" in saved[1]["last_optimizer_state"])
    assert list(states.differences(*saved)) == []


REFUSED = {
    ("--ddp-backend", "fully_sharded"): "--ddp-backend fully_sharded: not supported; use --zero-sharding os",
    ("--zero-sharding", "os", "--optimizer", "adam"): "--zero-sharding os: with --optimizer deepnet_adam",
    ("--zero-sharding", "os", "--optimizer", "deepnet_adam", "--amp"): "--zero-sharding os: not with --amp",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_what_cannot_be_sharded_is_refused(flags, data, tmp_path, capsys):
    words = [str(data), *TRAIN_FLAGS, "--arch", "deepnet_transformer_tiny", "--save-dir", str(tmp_path / "run")]
    with pytest.raises(SystemExit):
        parse_training_flags([*words, *flags])
    assert f"error: {REFUSED[flags]}" in capsys.readouterr().err


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Provide the text of language models."""
    return make_text(tmp_path_factory.mktemp("text"))


OF_ONE_STACK = [(kind, mode) for kind in KINDS for mode in MODES]
DEFAULT = [("causal", "ddp"), ("masked", "zero")]


@pytest.mark.parametrize(
    "kind, mode", [pytest.param(*case, marks=() if case in DEFAULT else pytest.mark.slow) for case in OF_ONE_STACK]
)
def test_language_models_on_two_processes(kind, mode, text, tmp_path):
    """Language models on two processes have the losses, weights and moments of one, with the same masked tokens."""
    results = []
    for world, flags in ((1, ()), (2, MODES[mode])):
        if kind == "causal" and mode == "ddp":
            flags = (*flags, "--criterion", "chunked_cross_entropy")
        (folder := tmp_path / str(world)).mkdir()
        words = (*FLAGS, *KINDS[kind], "--disable-validation", "--max-update", 12, "--update-freq", 2 // world, *flags)
        losses = [float(row["loss"]) for row in ranks.train(world, folder / "log", text, *words, "--save-dir", folder)]
        results.append((losses, checkpoint_utils.load_checkpoint_to_cpu(str(folder / "checkpoint_last.pt"))))
    (expected, one), (losses, state) = results
    assert len(losses) == 12 and losses == pytest.approx(expected, abs=2.1e-3) and expected[-1] < expected[0]
    assert_same(state, one)
