"""Tests of --fp16 and --amp on a CPU: fairseq's trainer, with loss scales and overflows, ends as in float32."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import NamedTuple

import pytest
import torch
from torch import nn

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.plugin.optimisers.half_precision import DeepAMP, gradient_scale
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags
from results.half_precision import FLAGS, TOO_LARGE, train

from ..support.errors import refused
from ..support.helpers import USER_DIR, run
from ..support.logs import TRANSLATE
from ..support.optimisers import optimiser_config

ADAM = ("--optimizer", "deepnet_adam")
RADAM = ("--optimizer", "radam")


class Mode(NamedTuple):
    """Flags of one of fairseq's trainers in half precision, and of an optimiser other than its adam."""

    precision: tuple[str, ...]
    optimizer: tuple[str, ...] = ()


MODES = {
    "fp16": Mode(("--fp16",)),
    "amp": Mode(("--amp",)),
    "amp, deepnet_adam": Mode(("--amp",), ADAM),
    "flat": Mode(("--fp16",), ADAM),
    "not flat": Mode(("--fp16", "--fp16-no-flatten-grads"), ADAM),
    "radam": Mode(("--fp16",), RADAM),
    "radam, not flat": Mode(("--fp16", "--fp16-no-flatten-grads"), RADAM),
    "memory-efficient": Mode(("--memory-efficient-fp16",)),
    "memory-efficient radam": Mode(("--memory-efficient-fp16",), RADAM),
}
# Adam's first steps follow the signs of gradients, which rounding changes near 0. Losses on the way (8 bits, falling by
# 0.3 bits an update) therefore differ by more than the 6e-4 bits of one model in both types.
# Without float32 weights every update is also rounded to 11 bits.
AT_LAST, BETWEEN, EFFICIENT = 4.1e-3, 6.1e-3, 0.03  # bits a token, in a log with three decimals
FIRST_SCALE = 28  # log2 of the loss scale that TOO_LARGE sets

WITH_FLOAT32_PARAMETERS = ("admin", "attn_res", "dlcl", "mhc", "rezero")  # methods, under autocast
IN_DEFAULT_SUITE = [("deepnorm", "fp16")]
CASES = [("deepnorm", mode) for mode in MODES]
CASES += [(method, "fp16") for method in sorted(METHODS) if method != "deepnorm"]
CASES += [(method, "amp") for method in WITH_FLOAT32_PARAMETERS]


@pytest.fixture(scope="module")
def losses_in_float32(data):
    """Provide the losses of a float32 training, by its flags."""
    return cache(lambda *flags: train(data, "--cpu", *flags)[0])


@pytest.mark.parametrize(
    "method, mode", [pytest.param(*case, marks=() if case in IN_DEFAULT_SUITE else pytest.mark.smoke) for case in CASES]
)
def test_losses_in_half_precision_are_those_of_float32(method, mode, losses_in_float32, data, caplog):
    """Overflows of the first scales change only the scale; the log warns that half precision is slow on a CPU."""
    flags = ("--method", method, *METHODS[method].train_flags)
    precision, optimizer = MODES[mode]

    losses, scale, _ = train(data, "--cpu", *flags, *precision, *optimizer, *TOO_LARGE)

    expected = losses_in_float32(*flags, *optimizer)
    differences = [abs(ours - theirs) for ours, theirs in zip(losses, expected, strict=True)]
    is_efficient = "--memory-efficient-fp16" in precision
    assert max(differences) < (EFFICIENT if is_efficient else BETWEEN)
    assert differences[-1] < (EFFICIENT if is_efficient else AT_LAST)
    assert expected[-1] < expected[0] - 0.5
    overflows = FIRST_SCALE - math.log2(scale)
    assert overflows >= 15
    flag = "--amp" if "--amp" in precision else "--fp16"
    assert re.search(rf"WARNING .*{flag} .*CPU", caplog.text)


def test_an_optimiser_without_flat_parameters_is_refused(data):
    with refused("--optimizer adafactor") as caught:
        train(data, "--cpu", "--optimizer", "adafactor", "--fp16", updates=1)

    assert "--fp16-no-flatten-grads" in caught.value.way_out


def test_an_optimiser_that_is_not_memory_efficient_is_refused(data):
    with refused("--memory-efficient-fp16") as caught:
        train(data, "--cpu", "--optimizer", "adagrad", "--memory-efficient-fp16", updates=1)

    assert "--optimizer adagrad" in caught.value.way_out
    assert re.search(r"(?<!\S)--fp16\b", caught.value.way_out)


def clipped_gradients_of_gates(data, limit, *mode) -> torch.Tensor:
    """Return the gradients of GPAS's gates, those of the mean loss, when they are clipped to a norm of `limit`."""
    method = ("--method", "gpas", "--gpas-clip", str(limit))
    trainer = build_trainer(parse_training_flags([str(data), *FLAGS, "--cpu", *method, "--optimizer", "adam", *mode]))
    gates = [parameter for name, parameter in trainer.model.named_parameters() if name.endswith(".g")]
    original = trainer.optimizer.clip_grad_norm
    seen = []

    def note_gradients_and_clip_all(*args, **kwargs):
        scale = gradient_scale(trainer.optimizer)
        seen.append(torch.stack([gate.grad for gate in gates]) * scale)
        return original(*args, **kwargs)

    trainer.optimizer.clip_grad_norm = note_gradients_and_clip_all
    trainer.begin_epoch(1)
    batch = next(trainer.get_train_iterator(1).next_epoch_itr(shuffle=False))
    trainer.train_step([batch])
    return seen[0]


OTHER_MODES = [(), ("--amp",), ("--amp", *ADAM), ("--fp16", *ADAM), ("--memory-efficient-fp16",)]


@pytest.mark.parametrize("mode", [("--fp16",), *(pytest.param(mode, marks=pytest.mark.smoke) for mode in OTHER_MODES)])
def test_gates_of_gpas_are_clipped_by_their_own_norm(mode, data):
    """GPAS's gates are clipped apart, by one norm of the mean loss's gradient, whatever the loss scale."""
    limit = 0.01
    free = clipped_gradients_of_gates(data, 100, *mode)

    clipped = clipped_gradients_of_gates(data, limit, *mode)

    assert len(free) == 6  # one for each layer of 3L-3L
    assert limit < free.norm() < 10
    assert torch.allclose(clipped, free * (limit / free.norm()), rtol=1e-4)


@pytest.mark.smoke
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_hundred_layers_stay_finite_in_fp16(method, data):
    """Methods train at 100L-100L; a value that is not finite would raise."""
    deep = ("--encoder-layers", "100", "--decoder-layers", "100", "--max-tokens", "150")
    flags = ("--cpu", "--method", method, *METHODS[method].train_flags, "--fp16", *ADAM, *deep)

    losses, _, _ = train(data, *flags, updates=2)

    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)


@pytest.fixture(scope="module")
def scores_of_translations(data, tmp_path_factory):
    """Provide a function of flags that returns the scores of translations by a model that was trained in fp16."""
    folder = tmp_path_factory.mktemp("fp16")
    flags = ("--user-dir", USER_DIR, *FLAGS, "--cpu", "--fp16", "--max-update", "12", "--save-dir", folder)
    run("fairseq-train", data, *flags)

    @cache
    def translate(*precision) -> list[float]:
        command = ("fairseq-generate", data, *TRANSLATE, "--path", folder / "checkpoint_last.pt")
        output = run(*command, *precision).stdout
        return [float(score) for score in re.findall(r"^H-\d+\t(\S+)", output, re.MULTILINE)]

    return translate


@pytest.mark.smoke
@pytest.mark.parametrize("precision, tolerance", [("--fp16", 5e-3), ("--bf16", 0.05)])
def test_scores_of_translations_in_half_precision_are_those_of_float32(precision, tolerance, scores_of_translations):
    expected = scores_of_translations()

    scores = scores_of_translations(precision)

    assert len(expected) == 20
    assert scores == pytest.approx(expected, abs=tolerance)


@pytest.fixture
def amp_on_a_cpu(monkeypatch):
    """Provide a parameter of four zeros and DeepAMP for it, with a first loss scale of 128."""
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", lambda **given: torch.amp.GradScaler("cpu", **given))
    cfg = optimiser_config("adam", {"amp": True, "fp16_init_scale": 128, "amp_scale_window": 7})
    parameter = nn.Parameter(torch.zeros(4))
    return parameter, DeepAMP.build_optimizer(cfg, [parameter])


def test_the_scale_of_amp_grows_after_amp_scale_window_updates(amp_on_a_cpu):
    """fairseq's own AMP optimiser fails on the flag."""
    _, optimizer = amp_on_a_cpu

    assert optimizer.scaler.get_growth_interval() == 7


def test_adam_sees_gradients_that_amp_has_unscaled_once(amp_on_a_cpu):
    """fairseq's own AMP optimiser divides by the scale twice."""
    parameter, optimizer = amp_on_a_cpu
    gradient = torch.tensor([1.0, -2.0, 3.0, 0.0])
    seen = []
    optimizer.optimizer.register_step_pre_hook(lambda *_: seen.append(parameter.grad.clone()))

    for factor in (1.0, float("inf"), 1.0):  # the second update overflows
        optimizer.zero_grad()
        optimizer.backward((parameter * gradient * factor).sum())
        optimizer.clip_grad_norm(0.0)
        optimizer.step()

    assert len(seen) == 2
    assert torch.equal(seen[0], gradient)
    assert torch.equal(seen[1], gradient)
    assert optimizer.scaler.get_scale() == 64
