"""Tests of deepnet_adam against fairseq's adam in float32 and half precision, and of radam against torch's RAdam."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import pytest
import torch
from fairseq import optim
from torch import nn

from deepnet_fairseq.core.probes.base import get_probes
from deepnet_fairseq.plugin.building import from_checkpoint
from deepnet_fairseq.plugin.optimisers import half_precision
from deepnet_fairseq.plugin.optimisers.deepnet_adam import REFUSED, HalfPrecisionOptimizer
from deepnet_fairseq.plugin.probe_record import read_record
from deepnet_fairseq.plugin.probing import TrainingProbes
from deepnet_fairseq.tools.averaging import average
from deepnet_fairseq.tools.export.transformer import fold_checkpoint

from ..support import diverging
from ..support.errors import refused
from ..support.helpers import small
from ..support.observing import assert_nearly_equal, loss_of, net_input, observe
from ..support.optimisers import (
    FP16,
    HALF,
    KINDS,
    LEARNING_RATE,
    OVERFLOWS,
    SHAPES,
    build_optimiser,
    draw_gradients,
    draw_parameters,
    float32_weights,
    largest_difference,
    make_updates,
    model_parameters,
    none_absent,
    optimiser_config,
)

ABSENT = {4: (1,), 5: (1, 2), 20: (0, 3), 21: (0, 1, 2, 3, 4, 5)}  # update -> places of parameters without gradients
# Updates without a step: torch corrects the rate (Liu et al. 2020) only where rho > 5. For beta2 = 0.98 and update t,
# rho = 2 / (1 - beta2) - 1 - 2 t beta2^t / (1 - beta2^t) is 4.92 at t = 5 and 5.88 at t = 6.
RADAM_WAITS = 5


@pytest.fixture(autouse=True)
def flat_parameters_without_a_gpu(monkeypatch):
    """Replace torch.cuda.current_device, which fairseq calls for flat parameters, where there is no GPU."""
    if not torch.cuda.is_available():
        monkeypatch.setattr("torch.cuda.current_device", lambda: None)


def some_absent(update: int) -> tuple[int, ...]:
    """Return the places of the parameters that get no gradient in an update."""
    return ABSENT.get(update, ())


# deepnet_adam in float32


@pytest.mark.parametrize("eps", [1e-8, 1e-2])
def test_updates_equal_those_of_fairseqs_adam(eps):
    """Updates equal fairseq's over 30 steps with warm-up, weight decay, clipping and absent gradients."""
    theirs = draw_parameters()
    ours = draw_parameters()

    expected_norms = make_updates(build_optimiser("adam", theirs, adam_eps=eps), theirs, range(30), some_absent)
    norms = make_updates(build_optimiser("deepnet_adam", ours, adam_eps=eps), ours, range(30), some_absent)

    assert norms == pytest.approx(expected_norms, rel=1e-6)
    assert largest_difference(ours, theirs) < 4e-6
    assert largest_difference(ours, draw_parameters()) > 0.1  # they have changed


def test_an_optimiser_that_keeps_its_whole_state_is_not_sharded():
    optimizer = build_optimiser("deepnet_adam", [nn.Parameter(torch.zeros(3))]).optimizer

    is_sharded_alone = optimizer.is_sharded
    optimizer.shard = object()  # as --zero-sharding os sets it

    assert not is_sharded_alone
    assert optimizer.is_sharded


def test_the_norm_of_no_gradients_is_zero():
    optimizer = build_optimiser("deepnet_adam", [nn.Parameter(torch.zeros(3))])

    assert optimizer.clip_grad_norm(1.0).item() == 0.0


@pytest.mark.parametrize("large", [1000.0, math.nan, math.inf])
def test_gradient_norms_are_exact_in_float32(large):
    """Gradient norms hold float32 precision for many small and a few large values, and report NaN and infinity."""
    many = 2**24  # from which on a sum of ones in float32, one by one, would not grow
    params = [nn.Parameter(torch.zeros(many)), nn.Parameter(torch.zeros(3))]
    optimizer = build_optimiser("deepnet_adam", params)
    optimizer.zero_grad()
    params[0].grad = torch.ones(many)
    params[1].grad = torch.full((3,), large)

    # fairseq passes a function that computes the norm of all processes from the norm of this one
    norm = optimizer.clip_grad_norm(0.0, aggregate_norm_fn=lambda own: 3 * own).item()

    own_norm = math.sqrt(many * 1.0**2 + 3 * large**2)
    expected = 3 * own_norm
    assert norm == pytest.approx(expected, rel=2e-7, nan_ok=True)


def test_probes_read_the_gradients_of_the_mean_loss(tmp_path):
    """fairseq sums losses over tokens, and divides the gradients by the number of tokens.

    The probes look before that division is applied.
    """
    tokens = 64
    model = small(2)
    inputs = net_input()
    optimizer = build_optimiser("deepnet_adam", list(model.parameters()))
    probes = TrainingProbes(model, get_probes("gradient_norm"), 1, tmp_path, {"method": "deepnorm"})

    optimizer.zero_grad()
    probes.before_batch(0)
    (loss_of(model, inputs) * tokens).backward()
    optimizer.multiply_grads(1 / tokens)
    probes.see_gradients(half_precision.gradient_scale(optimizer))
    probes.end_update(made=True)

    norms = read_record(tmp_path / "probes.jsonl").rows[0]["gradient_norm"]
    expected = observe(small(2), [inputs])["gradient_norm"]  # of the loss without the factor
    assert_nearly_equal(norms, expected, tolerance=1e-4)


# deepnet_adam in half precision


class Trained(NamedTuple):
    optimizer: Any
    params: list[nn.Parameter]
    norms: list[float | str]  # of the gradients of each update; the error's message where they overflow


def trained_in_half_precision(name: str, kind: str) -> Trained:
    """Make 30 updates, with clipping, overflows and a growing loss scale, in which parameter 4 has no gradient.

    name: adam or deepnet_adam; kind: a precision and layout of support.optimisers.HALF
    """
    params = model_parameters(kind)
    optimizer = build_optimiser(name, params, kind)
    norms = make_updates(optimizer, params, range(30), absent=lambda update: (4,))
    return Trained(optimizer, params, norms)


@pytest.fixture
def by_fairseq(kind) -> Trained:
    """Provide parameters trained by fairseq's adam; a parameter without a gradient counts as one with gradient 0."""
    trained = trained_in_half_precision("adam", kind)
    assert type(trained.optimizer) is half_precision.DeepFP16
    return trained


@pytest.fixture
def by_deepnet_adam(kind) -> Trained:
    """Provide parameters trained by deepnet_adam."""
    trained = trained_in_half_precision("deepnet_adam", kind)
    assert type(trained.optimizer) is HalfPrecisionOptimizer
    return trained


@pytest.mark.parametrize("kind", HALF)
def test_gradient_norms_in_half_precision_equal_fairseqs(kind, by_fairseq, by_deepnet_adam):
    for norm, expected in zip(by_deepnet_adam.norms, by_fairseq.norms, strict=True):
        if isinstance(expected, str):  # an overflow
            assert norm == expected
        else:
            assert norm == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in HALF if "fp16" in kind])
def test_overflows_and_loss_scales_equal_fairseqs(kind, by_fairseq, by_deepnet_adam):
    overflows = [update for update, norm in enumerate(by_deepnet_adam.norms) if isinstance(norm, str)]

    assert overflows == list(OVERFLOWS)
    assert by_deepnet_adam.optimizer.scaler.loss_scale == by_fairseq.optimizer.scaler.loss_scale


@pytest.mark.parametrize("kind", HALF)
def test_float32_weights_equal_fairseqs(kind, by_fairseq, by_deepnet_adam):
    expected = float32_weights(by_fairseq.optimizer, by_fairseq.params)
    actual = float32_weights(by_deepnet_adam.optimizer, by_deepnet_adam.params)

    assert largest_difference(actual, expected) < 3e-6
    assert largest_difference(by_deepnet_adam.params, model_parameters(kind)) > 0.05  # they have changed


@pytest.mark.parametrize("kind", HALF)
def test_model_weights_are_the_rounded_float32_weights(kind, by_deepnet_adam):
    in_float32 = float32_weights(by_deepnet_adam.optimizer, by_deepnet_adam.params)

    for weight, param in zip(in_float32, by_deepnet_adam.params, strict=True):
        assert torch.equal(weight.to(param.dtype), param)


# States of the optimisers


class Handover(NamedTuple):
    """Parameters and optimiser state after a training that a second optimiser has taken over."""

    params: list[nn.Parameter]
    state: dict


def trained_in_two_halves(first: str, second: str, kind: str) -> Handover:
    """Make 12 updates with an optimiser and, from its state, 12 with another; in float32 some gradients are absent."""
    missing = some_absent if kind == "fp32" else none_absent
    params = model_parameters(kind)
    optimizer = build_optimiser(first, params, kind)
    make_updates(optimizer, params, range(12), missing)
    state = optimizer.state_dict()

    optimizer = build_optimiser(second, params, kind)
    optimizer.load_state_dict(state, {"lr": LEARNING_RATE})
    make_updates(optimizer, params, range(12, 24), missing)
    return Handover(params, optimizer.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_fairseqs_state_has_an_entry_for_each_parameter(kind):
    """With --fp16 all parameters are one flat parameter, with one entry. In fp16 the state also has the loss scale."""
    params, state = trained_in_two_halves("adam", "adam", kind)

    entries = 1 if kind == "fp16" else len(params)
    assert len(state["state"]) == entries
    assert ("loss_scale" in state) == ("fp16" in kind)


def assert_same_states(actual: dict, expected: dict, tolerance: float) -> None:
    """Check that two states of optimisers have the same entries and steps, and moments up to the tolerance."""
    assert actual.keys() == expected.keys()
    for key in expected.keys() - {"state", "fp32_params"}:
        assert actual[key] == expected[key]

    assert list(actual["state"]) == list(expected["state"])
    for place, expected_entry in expected["state"].items():
        entry = actual["state"][place]
        assert entry.keys() == expected_entry.keys()
        assert type(entry["step"]) is int
        assert entry["step"] == expected_entry["step"]
        for moment in ("exp_avg", "exp_avg_sq"):
            assert largest_difference([entry[moment]], [expected_entry[moment]]) < tolerance


@pytest.mark.parametrize(("first", "second"), [("adam", "deepnet_adam"), ("deepnet_adam", "adam")])
@pytest.mark.parametrize("kind", KINDS)
def test_state_moves_between_adam_and_deepnet_adam(kind, first, second):
    """12 updates with one optimiser and 12 with the other give the weights and the state of 24 with adam."""
    expected = trained_in_two_halves("adam", "adam", kind)

    trained = trained_in_two_halves(first, second, kind)

    if kind == "fp32":
        weight_tolerance = 2e-6
        moment_tolerance = 1e-6
    else:  # a difference in the last place
        weight_tolerance = 2e-2
        moment_tolerance = 1e-3
    assert largest_difference(trained.params, expected.params) < weight_tolerance
    assert_same_states(trained.state, expected.state, moment_tolerance)


# shapes of the parameters of other models; the last of SHAPES is (40, 16)
ONE_LESS = SHAPES[:-1]
ONE_TRANSPOSED = [*SHAPES[:-1], (16, 40)]
ONE_IN_ALL = [(5,)]
OTHER_MODELS = [
    ("fp32", ONE_LESS),
    ("fp32", ONE_TRANSPOSED),
    ("fp32", ONE_IN_ALL),
    ("bf16", ONE_LESS),
    ("bf16", ONE_TRANSPOSED),
    ("bf16", ONE_IN_ALL),
    ("fp16", ONE_LESS),  # the state is of one flat tensor, of which only the length can tell
]


@pytest.mark.parametrize(("kind", "shapes"), OTHER_MODELS)
def test_the_state_of_another_model_is_refused_as_a_whole(kind, shapes):
    dtype, _ = KINDS[kind]
    optimizer = build_optimiser("deepnet_adam", draw_parameters(dtype), kind)
    other_params = draw_parameters(dtype, shapes)
    other_optimizer = build_optimiser("deepnet_adam", other_params, kind)
    make_updates(other_optimizer, other_params, range(2))

    with refused("optimiser state") as caught:
        optimizer.load_state_dict(other_optimizer.state_dict())

    assert "--reset-optimizer" in caught.value.way_out
    assert optimizer.state_dict()["state"] == {}  # no part was taken over


@pytest.mark.parametrize(("section", "key"), REFUSED)
def test_settings_without_a_meaning_for_deepnet_adam_are_refused(section, key):
    """REFUSED has each setting of fairseq's config (section, key) that adam follows and deepnet_adam does not."""
    cfg = optimiser_config("deepnet_adam")
    cfg[section][key] = True

    with refused() as caught:
        optim.build_optimizer(cfg.optimizer, draw_parameters())

    assert caught.value.subject == f"--{key.replace('_', '-')}"
    _, named, reason = caught.value.way_out.partition("--optimizer deepnet_adam")
    assert named
    assert reason.strip(": ")


# Checkpoints of deepnet_adam


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def precision(request) -> str:
    """Run the test on a checkpoint of float32, and on one of --bf16."""
    return request.param


@pytest.fixture(scope="module")
def checkpoint(precision, data, tmp_path_factory):
    """Provide checkpoint_last.pt of a 2L-2L model after two updates of deepnet_adam."""
    folder = tmp_path_factory.mktemp("deepnet_adam")
    flags = ("--optimizer", "deepnet_adam", "--max-update", "2")
    if precision == "bf16":
        flags += ("--bf16",)
    diverging.train(data, folder, *diverging.TINY, *flags)
    return folder / "checkpoint_last.pt"


def test_a_checkpoint_stores_each_tensor_once(checkpoint, precision):
    model, _ = from_checkpoint(str(checkpoint))
    parameters = sum(param.numel() for param in model.parameters())
    copies = 4 if precision == "bf16" else 3  # the weights, two moments, and with bf16 the float32 weights
    config_and_log = 100_000  # bytes

    # 4 bytes a number; a tensor that is stored twice would make it a third or a quarter larger
    assert checkpoint.stat().st_size < 1.25 * 4 * copies * parameters + config_and_log


def test_the_average_of_equal_checkpoints_is_the_checkpoint(checkpoint, tmp_path):
    average([checkpoint, checkpoint], tmp_path / "mean.pt")

    trained = diverging.weights(checkpoint)
    mean, _ = from_checkpoint(str(tmp_path / "mean.pt"))
    for name, param in mean.named_parameters():
        assert largest_difference([param], [trained[name]]) == 0


def test_an_averaged_checkpoint_folds_into_the_stock_transformer(checkpoint, tmp_path):
    average([checkpoint, checkpoint], tmp_path / "mean.pt")

    folded = fold_checkpoint(str(tmp_path / "mean.pt"))

    assert folded.difference < 1e-4  # of the scores of both models


# radam


def test_radam_equals_torchs_once_its_rate_is_known():
    """radam equals torch's RAdam from update 6 on.

    Until then radam only decays the weights, as the code of Admin's authors does, and torch takes steps by the momentum
    alone. The test begins each update with radam's parameters in both.
    """
    weight_decay = 0.1
    params = draw_parameters(torch.float64)
    twins = draw_parameters(torch.float64)
    ours = build_optimiser("radam", params)
    theirs = torch.optim.RAdam(
        twins, LEARNING_RATE, (0.9, 0.98), weight_decay=weight_decay, decoupled_weight_decay=True
    )

    for update in range(1, 13):
        decayed = [param.detach() * (1 - LEARNING_RATE * weight_decay) for param in params]
        for param, twin, gradient in zip(params, twins, draw_gradients(params, update), strict=True):
            twin.data.copy_(param.data)
            param.grad = gradient.double()
            twin.grad = gradient.double()

        ours.step()
        theirs.step()

        expected = twins if update > RADAM_WAITS else decayed
        assert largest_difference(params, expected) < 1e-12
        assert ours.get_lr() == LEARNING_RATE


@pytest.fixture
def half_precision_radam() -> Trained:
    """Provide fp16 parameters after updates 20 to 31 of radam with --memory-efficient-fp16."""
    params = draw_parameters(torch.float16)
    optimizer = half_precision.build_optimizer(optimiser_config("radam", FP16), params)
    norms = make_updates(optimizer, params, range(20, 32))
    return Trained(optimizer, params, norms)


def test_radam_in_half_precision_stays_close_to_float32(half_precision_radam):
    params = [nn.Parameter(param.detach().float()) for param in draw_parameters(torch.float16)]

    make_updates(build_optimiser("radam", params), params, range(20, 32))

    updates = 12
    rounding = 2**-10  # of an fp16 weight from 2 to 4: half of the last place
    assert largest_difference(half_precision_radam.params, params) < 4e-3 + updates * rounding


def test_radam_in_half_precision_keeps_float32_moments(half_precision_radam):
    states = half_precision_radam.optimizer.optimizer.state

    assert states
    for state in states.values():
        assert {moment.dtype for moment in state.values()} == {torch.float32}


def test_radam_in_half_precision_resumes_bit_for_bit(half_precision_radam):
    optimizer, params, _ = half_precision_radam
    twins = [nn.Parameter(param.detach().clone()) for param in params]
    resumed = half_precision.build_optimizer(optimiser_config("radam", FP16), twins)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    make_updates(optimizer, params, range(32, 36))
    make_updates(resumed, twins, range(32, 36))

    assert largest_difference(params, twins) == 0
