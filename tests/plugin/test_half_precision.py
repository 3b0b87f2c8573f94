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
from ..support.logs import TRANSLATE, hypotheses
from ..support.optimisers import optimiser_config

ADAM = ("--optimizer", "deepnet_adam")
RADAM = ("--optimizer", "radam")


class Mode(NamedTuple):
    """A way to train in half precision: flags, and the largest differences from the losses of float32 (bits a token).

    Losses are logged with three decimals. results/half_precision.md has differences of up to 0.005 on the way and 0.001
    at update 25: Adam's first steps follow the signs of gradients, which rounding changes near 0.
    """

    precision: tuple[str, ...]
    optimizer: tuple[str, ...] = ()  # fairseq's adam
    on_the_way: float = 6.1e-3
    at_last: float = 4.1e-3


def memory_efficient(optimizer: tuple[str, ...] = ()) -> Mode:
    """Return the mode without float32 weights, which rounds every update of a weight to the 11 bits of fp16."""
    return Mode(("--memory-efficient-fp16",), optimizer, on_the_way=0.03, at_last=0.03)


NOT_FLAT = ("--fp16", "--fp16-no-flatten-grads")
MODES = {
    "fp16": Mode(("--fp16",)),
    "amp": Mode(("--amp",)),
    "amp, deepnet_adam": Mode(("--amp",), ADAM),
    "fp16, deepnet_adam": Mode(("--fp16",), ADAM),
    "fp16 not flat, deepnet_adam": Mode(NOT_FLAT, ADAM),
    "fp16, radam": Mode(("--fp16",), RADAM),
    "fp16 not flat, radam": Mode(NOT_FLAT, RADAM),
    "memory-efficient": memory_efficient(),
    "memory-efficient, radam": memory_efficient(RADAM),
}
WITH_FLOAT32_PARAMETERS = ("admin", "attn_res", "dlcl", "mhc", "rezero")  # some methods with FullPrecision slots
IN_DEFAULT_SUITE = ("deepnorm", "fp16")
METHODS_AND_MODES = [("deepnorm", mode) for mode in MODES]
METHODS_AND_MODES += [(method, "fp16") for method in sorted(METHODS) if method != "deepnorm"]
METHODS_AND_MODES += [(method, "amp") for method in WITH_FLOAT32_PARAMETERS]
FIRST_SCALE = 28  # log2 of the loss scale that TOO_LARGE sets
OVERFLOWS = 15  # at least: results/half_precision.md counts 18 to 20


@pytest.fixture(scope="module")
def losses_in_float32(data):
    """Provide a function of flags that trains in float32, once for the same flags, and returns the 25 losses."""
    return cache(lambda *flags: train(data, "--cpu", *flags)[0])


@pytest.mark.parametrize(
    "method, mode",
    [
        pytest.param(*case, marks=() if case == IN_DEFAULT_SUITE else pytest.mark.smoke)
        for case in METHODS_AND_MODES
    ],
)  # fmt: skip
def test_losses_in_half_precision_are_those_of_float32(method, mode, losses_in_float32, data):
    """The first batches overflow, which halves the loss scale and changes no loss."""
    flags = ("--method", method, *METHODS[method].train_flags)
    precision, optimizer, on_the_way, at_last = MODES[mode]

    losses, scale, _trainer = train(data, "--cpu", *flags, *precision, *optimizer, *TOO_LARGE)

    expected = losses_in_float32(*flags, *optimizer)
    differences = [abs(ours - theirs) for ours, theirs in zip(losses, expected, strict=True)]
    assert max(differences) < on_the_way
    assert differences[-1] < at_last
    assert expected[-1] < expected[0] - 0.5, "the training learns nothing"
    assert FIRST_SCALE - math.log2(scale) >= OVERFLOWS


@pytest.mark.parametrize("flag", ["--fp16", "--amp"])
def test_half_precision_on_a_cpu_is_warned_of(flag, data, caplog):
    train(data, "--cpu", flag, updates=1)

    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [warning for warning in warnings if flag in warning and "CPU" in warning]


def test_an_optimiser_without_flat_parameters_is_refused(data):
    with refused("--optimizer adafactor") as caught:
        train(data, "--cpu", "--optimizer", "adafactor", "--fp16", updates=1)

    assert "--fp16-no-flatten-grads" in caught.value.way_out


def test_an_optimiser_that_is_not_memory_efficient_is_refused(data):
    with refused("--memory-efficient-fp16") as caught:
        train(data, "--cpu", "--optimizer", "adagrad", "--memory-efficient-fp16", updates=1)

    assert "--optimizer adagrad" in caught.value.way_out
    assert re.search(r"(?<!\S)--fp16\b", caught.value.way_out)  # a word of its own: the flag to take instead


def gradients_of_gates_when_clipped(data, limit: float, *flags: str) -> torch.Tensor:
    """Return the mean loss's gradients of GPAS's gates, (6,), in the first update, once they are clipped to `limit`.

    limit: the norm of all gates' gradients together is at most this; flags: of the precision and the optimiser.
    """
    words = [str(data), *FLAGS, "--cpu", "--method", "gpas", "--gpas-clip", str(limit), "--optimizer", "adam", *flags]
    trainer = build_trainer(parse_training_flags(words))
    gates = [parameter for name, parameter in trainer.model.named_parameters() if name.endswith(".g")]
    seen = []
    clip_all_gradients = trainer.optimizer.clip_grad_norm  # which the trainer calls after the gates' clipping

    def note_gradients_and_clip_all(*args, **kwargs):
        scale = gradient_scale(trainer.optimizer)
        seen.append(torch.stack([gate.grad for gate in gates]) * scale)
        return clip_all_gradients(*args, **kwargs)

    trainer.optimizer.clip_grad_norm = note_gradients_and_clip_all
    trainer.begin_epoch(1)
    batch = next(trainer.get_train_iterator(1).next_epoch_itr(shuffle=False))
    trainer.train_step([batch])
    return seen[0]


OTHER_MODES = [(), ("--amp",), ("--amp", *ADAM), ("--fp16", *ADAM), ("--memory-efficient-fp16",)]


@pytest.mark.parametrize("mode", [("--fp16",), *(pytest.param(mode, marks=pytest.mark.smoke) for mode in OTHER_MODES)])
def test_gates_of_gpas_are_clipped_by_their_own_norm(mode, data):
    """The norm is that of the mean loss's gradients, whatever the loss scale is."""
    limit = 0.01
    never_reached = 100.0
    unclipped = gradients_of_gates_when_clipped(data, never_reached, *mode)

    clipped = gradients_of_gates_when_clipped(data, limit, *mode)

    norm = unclipped.norm()
    assert len(unclipped) == 6  # a gate for each layer of 3L-3L
    assert norm > limit
    assert norm < 10  # far from never_reached, though loss scales are above 100
    assert torch.allclose(clipped, unclipped * (limit / norm), rtol=1e-4)


@pytest.mark.smoke
@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_hundred_layers_stay_finite_in_fp16(method, data):
    """A batch that overflows is repeated with a smaller scale; fairseq raises an error if the scale gets too small."""
    hundred_layers = ("--encoder-layers", "100", "--decoder-layers", "100", "--max-tokens", "150")
    flags = ("--cpu", "--method", method, *METHODS[method].train_flags, "--fp16", *ADAM, *hundred_layers)

    losses, _scale, _trainer = train(data, *flags, updates=2)

    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)


@pytest.fixture(scope="module")
def scores_of_translations(data, tmp_path_factory):
    """Provide a function of flags, such as --fp16, that returns the scores of 20 translations by fairseq-generate.

    The model was trained in fp16 for 12 updates.
    """
    folder = tmp_path_factory.mktemp("fp16")
    flags = ("--user-dir", USER_DIR, *FLAGS, "--cpu", "--fp16", "--max-update", "12", "--save-dir", folder)
    run("fairseq-train", data, *flags)

    @cache
    def translate(*precision) -> list[float]:
        done = run("fairseq-generate", data, *TRANSLATE, "--path", folder / "checkpoint_last.pt", *precision)
        return [score for _sentence, (score, _tokens) in sorted(hypotheses(done.stdout).items())]

    return translate


@pytest.mark.smoke
@pytest.mark.parametrize("precision, tolerance", [("--fp16", 5e-3), ("--bf16", 0.05)])  # bf16 has 8 bits, fp16 11
def test_scores_of_translations_in_half_precision_are_those_of_float32(precision, tolerance, scores_of_translations):
    in_float32 = scores_of_translations()

    scores = scores_of_translations(precision)

    assert len(in_float32) == 20  # the test set
    assert scores == pytest.approx(in_float32, abs=tolerance)


class Optimised(NamedTuple):
    """A parameter and its optimiser."""

    parameter: nn.Parameter
    optimizer: DeepAMP


@pytest.fixture
def amp_on_a_cpu(monkeypatch) -> Optimised:
    """Provide four zeros with Adam under --amp, whose loss scale is 128 at first, with --amp-scale-window 7."""
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", lambda **given: torch.amp.GradScaler("cpu", **given))
    cfg = optimiser_config("adam", {"amp": True, "fp16_init_scale": 128, "amp_scale_window": 7})
    parameter = nn.Parameter(torch.zeros(4))
    return Optimised(parameter, DeepAMP.build_optimizer(cfg, [parameter]))


def test_the_scale_of_amp_grows_after_amp_scale_window_updates(amp_on_a_cpu):
    """fairseq's own AMP optimiser fails on --amp-scale-window."""
    assert amp_on_a_cpu.optimizer.scaler.get_growth_interval() == 7


def test_adam_sees_gradients_that_amp_has_unscaled_once(amp_on_a_cpu):
    """fairseq's own AMP optimiser divides by the scale twice."""
    parameter, optimizer = amp_on_a_cpu
    gradient = torch.tensor([1.0, -2.0, 3.0, 0.0])
    seen_by_adam = []
    optimizer.optimizer.register_step_pre_hook(lambda *_: seen_by_adam.append(parameter.grad.clone()))

    for factor in (1.0, float("inf"), 1.0):  # the second update overflows: Adam is not called
        optimizer.zero_grad()
        optimizer.backward((parameter * gradient * factor).sum())
        optimizer.clip_grad_norm(0.0)  # 0: without a limit
        optimizer.step()

    assert len(seen_by_adam) == 2
    assert torch.equal(seen_by_adam[0], gradient)
    assert torch.equal(seen_by_adam[1], gradient)
    assert optimizer.scaler.get_scale() == 128 / 2
