"""Tests that several processes, with DDP or ZeRO, train the same model as one process, for all kinds of model.

DDP adds up the processes' gradients; ZeRO (--zero-sharding os) also divides the optimiser's state among them.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import NamedTuple

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
    "--adam-eps", "1e-6",  # larger than fairseq's, so that rounding in tiny gradients makes no steps
)  # fmt: skip
UPDATES = 12
BATCHES_AN_UPDATE = 4  # over all processes
MODES = {"ddp": (), "zero": ("--optimizer", "deepnet_adam", "--zero-sharding", "os")}
RECOMPUTING = ("--checkpoint-activations",)
LOSS_TOLERANCE = 2.1e-3  # losses are logged with three decimals


class Trained(NamedTuple):
    losses: list[float]  # of each update
    state: dict  # checkpoint


def train(folder, words, processes: int, updates: int) -> Trained:
    """Train in a folder, from its checkpoint if it has one, until there are so many updates.

    words: data and flags of fairseq-train. The losses are read from the folder's log, which
    also holds those of earlier trainings in the folder.
    """
    folder.mkdir(exist_ok=True)
    flags = ("--max-update", updates, "--save-dir", folder)
    rows = ranks.train(processes, folder / "log", *words, *flags)
    state = checkpoint_utils.load_checkpoint_to_cpu(str(folder / "checkpoint_last.pt"))
    return Trained([float(row["loss"]) for row in rows], state)


def train_translator_on(folder, data, method: str, *flags, processes: int, updates: int = UPDATES) -> Trained:
    """Train as `train` does, by updates of four batches each, however many processes there are."""
    update_freq = ("--update-freq", BATCHES_AN_UPDATE // processes)
    words = (*TRAIN_FLAGS, *MODEL, "--method", method, *METHODS[method].train_flags, *update_freq, *flags)
    return train(folder, (data, *words), processes, updates)


@pytest.fixture(scope="module")
def train_alone(data, tmp_path_factory):
    """Provide a function method -> training on one process, made once for each method."""

    def train_once(method: str) -> Trained:
        return train_translator_on(tmp_path_factory.mktemp("alone"), data, method, processes=1)

    return cache(train_once)


def assert_same_losses(losses: list[float], expected: list[float]) -> None:
    assert len(losses) == UPDATES
    assert losses == pytest.approx(expected, abs=LOSS_TOLERANCE)


def assert_same_tensors(tensor: torch.Tensor, expected: torch.Tensor) -> None:
    """Check that two tensors are equal but for rounding, which a few units multiply whose ReLU is near 0."""
    assert tensor.shape == expected.shape
    differences = (tensor - expected).abs().flatten()
    assert differences.max() < 1e-3
    assert differences.quantile(0.95) < 1e-4


def assert_same_state(state: dict, expected: dict) -> None:
    """Check that the weights and the moments of two checkpoints are equal as `assert_same_tensors` says."""
    assert state["model"].keys() == expected["model"].keys()
    for name, weight in expected["model"].items():
        assert_same_tensors(state["model"][name], weight)

    moments = state["last_optimizer_state"]["state"]
    expected_moments = expected["last_optimizer_state"]["state"]
    assert expected_moments
    assert moments.keys() == expected_moments.keys()
    for place, entry in expected_moments.items():
        assert entry["step"] == UPDATES
        assert moments[place]["step"] == UPDATES
        for name in ("exp_avg", "exp_avg_sq"):
            assert_same_tensors(moments[place][name], entry[name])


# Translators in float32

# (processes, method, mode, recomputing): those of the default suite, those of the smoke tests; the others are slow
IN_DEFAULT_SUITE = [(2, "deepnorm", "ddp", RECOMPUTING)]
IN_SMOKE = [(2, "admin", "zero", ()), (2, "rezero", "zero", RECOMPUTING)]
ALL = [*product((2, 4), ("deepnorm", "admin", "dlcl", "rezero"), MODES, ((), RECOMPUTING))]


def marked(case: tuple):
    """Return a case of ALL as a parameter with its mark."""
    if case in IN_DEFAULT_SUITE:
        return pytest.param(*case)
    mark = pytest.mark.smoke if case in IN_SMOKE else pytest.mark.slow
    return pytest.param(*case, marks=mark)


@pytest.mark.parametrize("processes, method, mode, recomputing", [marked(case) for case in ALL])
def test_several_processes_train_the_model_of_one(train_alone, processes, method, mode, recomputing, data, tmp_path):
    """Losses, weights and optimiser state after 12 float32 updates are those of one process, up to summation order."""
    one = train_alone(method)

    several = train_translator_on(tmp_path, data, method, *MODES[mode], *recomputing, processes=processes)

    assert one.losses[-1] < 0.97 * one.losses[0]  # it learns
    assert_same_losses(several.losses, one.losses)
    assert_same_state(several.state, one.state)


@pytest.mark.parametrize(
    "processes, mode, later_processes, later_mode",
    [
        pytest.param(1, "ddp", 2, "zero", marks=pytest.mark.smoke),
        pytest.param(2, "zero", 4, "zero", marks=pytest.mark.slow),
        pytest.param(4, "zero", 1, "ddp", marks=pytest.mark.slow),
    ],
)
def test_a_training_resumes_on_another_number_of_processes(
    train_alone, processes, mode, later_processes, later_mode, data, tmp_path
):
    """A training resumes on another number of processes, in the same mode or another: 5 and 7 updates equal 12."""
    first = train_translator_on(tmp_path, data, "rezero", *MODES[mode], processes=processes, updates=5)
    resumed = train_translator_on(tmp_path, data, "rezero", *MODES[later_mode], processes=later_processes)

    uninterrupted = train_alone("rezero")
    assert len(first.losses) == 5
    assert_same_losses(resumed.losses, uninterrupted.losses)  # the log in the folder holds those of all 12 updates
    assert_same_state(resumed.state, uninterrupted.state)


# Half precision

HALF = [("--fp16", "ddp"), ("--fp16", "zero"), ("--amp", "ddp")]


@pytest.mark.smoke
@pytest.mark.parametrize("precision, mode", HALF)
def test_two_processes_in_half_precision_train_the_model_of_one(precision, mode, train_alone, data, tmp_path):
    """Losses are those of float32 to the decimals of the log, and weights those of one process to the last place."""
    in_float32 = train_alone("dlcl")

    one = train_translator_on(tmp_path / "one", data, "dlcl", precision, processes=1)
    two = train_translator_on(tmp_path / "two", data, "dlcl", precision, *MODES[mode], processes=2)

    assert_same_losses(one.losses, in_float32.losses)
    assert_same_losses(two.losses, in_float32.losses)
    last_place = 2**-10  # of fp16, for weights up to 2
    for name, weight in one.state["model"].items():
        other = two.state["model"][name]
        assert torch.allclose(other.float(), weight.float(), rtol=0, atol=last_place), name


@pytest.mark.parametrize(
    "precision, mode",
    [
        pytest.param((), "ddp", marks=pytest.mark.slow),
        pytest.param((), "zero", marks=pytest.mark.slow),
        pytest.param(("--bf16",), "ddp", marks=pytest.mark.slow),
        pytest.param(("--bf16",), "zero", marks=pytest.mark.slow),
        pytest.param(("--fp16",), "ddp", marks=pytest.mark.slow),
        pytest.param(("--fp16",), "zero", marks=pytest.mark.smoke),
    ],
)
def test_a_training_on_two_processes_resumes_bit_for_bit(precision, mode, data, tmp_path):
    """A training on two processes resumes bit for bit: 3 and 3 updates equal 6 in weights and optimiser state."""
    flags = (*precision, *MODES[mode])

    at_once = train_translator_on(tmp_path / "at once", data, "dlcl", *flags, processes=2, updates=6)
    train_translator_on(tmp_path / "in two", data, "dlcl", *flags, processes=2, updates=3)
    in_two = train_translator_on(tmp_path / "in two", data, "dlcl", *flags, processes=2, updates=6)

    compared = ("model", "last_optimizer_state", "optimizer_history")
    state = {key: in_two.state[key] for key in compared}
    expected = {key: at_once.state[key] for key in compared}
    has_float32_weights = "fp32_params" in state["last_optimizer_state"]
    assert has_float32_weights == bool(precision)
    assert list(states.differences(state, expected)) == []


# Refusals


class Refusal(NamedTuple):
    """Flags that are refused, the flag that the line names at its beginning, and the other flag in the line."""

    flags: tuple[str, ...]
    subject: str
    other_flag: str


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(("--ddp-backend", "fully_sharded"), "--ddp-backend fully_sharded", "--zero-sharding os"),
        Refusal(("--zero-sharding", "os", "--optimizer", "adam"), "--zero-sharding os", "--optimizer deepnet_adam"),
        Refusal(("--zero-sharding", "os", "--optimizer", "deepnet_adam", "--amp"), "--zero-sharding os", "--amp"),
    ],
    ids=lambda refusal: " ".join(refusal.flags),
)
def test_settings_that_cannot_be_sharded_are_refused(refusal, data, tmp_path, capsys):
    words = [str(data), *TRAIN_FLAGS, "--arch", "deepnet_transformer_tiny", "--save-dir", str(tmp_path / "run")]

    with pytest.raises(SystemExit):
        parse_training_flags([*words, *refusal.flags])

    _, _, line = capsys.readouterr().err.partition("error: ")
    assert line.startswith(f"{refusal.subject}: ")
    assert refusal.other_flag in line.removeprefix(refusal.subject)


# Language models


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Provide a folder with the binarised text of language models."""
    return make_text(tmp_path_factory.mktemp("text"))


def train_language_model_on(folder, text, kind: str, *flags, processes: int) -> Trained:
    """Train a model, "causal" or "masked", by updates of two batches each, on one or two processes."""
    update_freq = ("--update-freq", 2 // processes)
    words = (*FLAGS, *KINDS[kind], "--disable-validation", *update_freq, *flags)
    return train(folder, (text, *words), processes, UPDATES)


@pytest.mark.parametrize(
    "kind, mode",
    [
        pytest.param("causal", "ddp", marks=pytest.mark.smoke),
        pytest.param("causal", "zero", marks=pytest.mark.slow),
        pytest.param("masked", "ddp", marks=pytest.mark.slow),
        pytest.param("masked", "zero", marks=pytest.mark.smoke),
    ],
)
def test_two_processes_train_the_language_model_of_one(kind, mode, text, tmp_path):
    """Losses, weights and moments are those of one process; masked models have to mask the same tokens for that.

    One of the four trains by the chunked loss.
    """
    criterion = ("--criterion", "chunked_cross_entropy") if (kind, mode) == ("causal", "ddp") else ()

    one = train_language_model_on(tmp_path / "one", text, kind, *criterion, processes=1)
    two = train_language_model_on(tmp_path / "two", text, kind, *MODES[mode], *criterion, processes=2)

    assert one.losses[-1] < one.losses[0]
    assert_same_losses(two.losses, one.losses)
    assert_same_state(two.state, one.state)
