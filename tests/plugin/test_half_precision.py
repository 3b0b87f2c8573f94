"""Tests of --fp16 and --amp on a CPU: fairseq's trainer, with loss scales and overflows, ends as in float32."""

from __future__ import annotations

import math
import re
from functools import cache

import pytest
import torch
from torch import nn

from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.optimisers.half_precision import DeepAMP, gradient_scale
from deepnet_fairseq.plugin.trainer import build_trainer, parse_training_flags
from results.half_precision import FLAGS, TOO_LARGE, train

from ..support.helpers import USER_DIR, run
from ..support.logs import TRANSLATE
from ..support.optimisers import optimiser_config

MODES = {  # flags of fairseq's half-precision trainers
    "fp16": ("--fp16",),
    "amp": ("--amp",),
    "amp, deepnet_adam": ("--amp", "--optimizer", "deepnet_adam"),
    "flat": ("--fp16", "--optimizer", "deepnet_adam"),
    "not flat": ("--fp16", "--optimizer", "deepnet_adam", "--fp16-no-flatten-grads"),
    "radam": ("--fp16", "--optimizer", "radam"),
    "radam, not flat": ("--fp16", "--optimizer", "radam", "--fp16-no-flatten-grads"),
    "memory-efficient": ("--memory-efficient-fp16",),
    "memory-efficient radam": ("--memory-efficient-fp16", "--optimizer", "radam"),
}
# Adam's first steps follow the signs of gradients, which rounding changes near 0. Losses on the way (8 bits, falling by
# 0.3 bits an update) therefore differ by more than the 6e-4 bits of one model in both types.
# Without float32 weights every update is also rounded to 11 bits.
AT_LAST, BETWEEN, EFFICIENT = 4.1e-3, 6.1e-3, 0.03  # bits a token, in a log with three decimals
DEFAULT = [("deepnorm", "fp16"), ("deepnorm", "amp")]


@pytest.fixture(scope="module")
def in_float32(data):
    """Provide the losses of a float32 training, by its flags."""
    return cache(lambda *flags: train(data, "--cpu", *flags)[0])


AUTOCAST = ("admin", "attn_res", "dlcl", "mhc", "rezero")  # methods with parameters that stay in float32
ALL = [("deepnorm", mode) for mode in MODES]
ALL += [(name, "fp16") for name in sorted(METHODS) if name != "deepnorm"] + [(name, "amp") for name in AUTOCAST]


@pytest.mark.parametrize(
    "method, mode", [pytest.param(*case, marks=() if case in DEFAULT else pytest.mark.smoke) for case in ALL]
)
def test_losses_are_those_of_float32(method, mode, in_float32, data, caplog):
    """Losses in half precision are those of float32; overflows of the first scales change only the scale.

    A line of the log says that half precision is slow on a CPU.
    """
    half, flags = MODES[mode], ("--method", method, *METHODS[method].train_flags)
    optimizer = half[half.index("--optimizer") :][:2] if "--optimizer" in half else ()
    losses, scale, _ = train(data, "--cpu", *flags, *half, *TOO_LARGE)
    expected = in_float32(*flags, *optimizer)
    apart = [abs(ours - theirs) for ours, theirs in zip(losses, expected, strict=True)]
    efficient = "--memory-efficient-fp16" in half
    assert max(apart) < (EFFICIENT if efficient else BETWEEN) and apart[-1] < (EFFICIENT if efficient else AT_LAST)
    assert expected[-1] < expected[0] - 0.5
    assert 28 - math.log2(scale) >= 15  # number of overflows
    assert "on a CPU: what a GPU would compute" in caplog.text


@pytest.mark.parametrize(
    "flag, optimizer, said",
    [("fp16", "adafactor", "add --fp16-no-flatten-grads"), ("memory-efficient-fp16", "adagrad", "take --fp16")],
)
def test_an_optimiser_that_cannot_is_named(flag, optimizer, said, data):
    with pytest.raises(UserError, match=f"--optimizer {optimizer}: .*{said}"):
        train(data, "--cpu", "--optimizer", optimizer, f"--{flag}", updates=1)


def gates_clipped(data, limit, *mode):
    """Return the gradients of GPAS's gates, those of the mean loss, when all gradients are clipped."""
    flags = (str(data), *FLAGS, "--cpu", "--method", "gpas", "--gpas-clip", str(limit), "--optimizer", "adam", *mode)
    trainer, seen = build_trainer(parse_training_flags(flags)), []
    gates = [parameter for name, parameter in trainer.model.named_parameters() if name.endswith(".g")]
    clip = trainer.optimizer.clip_grad_norm

    def look(*args, **kwargs):
        scale = gradient_scale(trainer.optimizer)
        seen.append(torch.stack([gate.grad for gate in gates]) * scale)
        return clip(*args, **kwargs)

    trainer.optimizer.clip_grad_norm = look
    trainer.begin_epoch(1)
    trainer.train_step([next(trainer.get_train_iterator(1).next_epoch_itr(shuffle=False))])
    return seen[0]


OURS = ("--optimizer", "deepnet_adam")
OTHERS = [(), ("--amp",), ("--amp", *OURS), ("--fp16", *OURS), ("--memory-efficient-fp16",)]


@pytest.mark.parametrize("mode", [("--fp16",), *(pytest.param(mode, marks=pytest.mark.smoke) for mode in OTHERS)])
def test_gates_of_gpas_are_clipped_apart(mode, data):
    """GPAS's gates are clipped apart, by one norm of the mean loss's gradient, whatever the loss scale."""
    free, clipped = (gates_clipped(data, limit, *mode) for limit in (100, 0.01))
    assert len(free) == 6 and 0.01 < free.norm() < 10
    assert torch.allclose(clipped, free * (0.01 / free.norm()), rtol=1e-4)


@pytest.mark.smoke
@pytest.mark.parametrize("method", sorted(METHODS))
def test_hundred_layers_stay_finite(method, data):
    """Methods at 100L-100L stay finite in fp16; a value that is not finite would raise."""
    deep = ("--encoder-layers", "100", "--decoder-layers", "100", "--max-tokens", "150")
    train(data, "--cpu", "--method", method, *METHODS[method].train_flags, *MODES["flat"], *deep, updates=2)


@pytest.mark.smoke
def test_translations_in_half_precision(data, tmp_path):
    """Scores of translations in half precision equal those of float32, for a model that was trained in fp16."""
    model = ("--user-dir", USER_DIR, *FLAGS, "--cpu", "--fp16", "--max-update", "12", "--save-dir", tmp_path)
    run("fairseq-train", data, *model)
    scores = []
    for flags in ((), ("--fp16",), ("--bf16",)):
        out = run("fairseq-generate", data, *TRANSLATE, "--path", tmp_path / "checkpoint_last.pt", *flags).stdout
        scores.append([float(score) for score in re.findall(r"^H-\d+\t(\S+)", out, re.MULTILINE)])
    expected, fp16, bf16 = scores
    assert len(expected) == 20
    assert fp16 == pytest.approx(expected, abs=5e-3) and bf16 == pytest.approx(expected, abs=0.05)


def test_adam_sees_the_gradient_that_amp_has_scaled():
    """Adam receives gradients that AMP has unscaled once, and --amp-scale-window works.

    fairseq's own AMP optimiser divides by the scale twice and fails on the flag.
    """
    cfg = optimiser_config("adam", {"amp": True, "fp16_init_scale": 128, "amp_scale_window": 7})
    parameter, gradient, seen = nn.Parameter(torch.zeros(4)), torch.tensor([1.0, -2.0, 3.0, 0.0]), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda.amp, "GradScaler", lambda **given: torch.amp.GradScaler("cpu", **given))
        optimizer = DeepAMP.build_optimizer(cfg, [parameter])
    assert optimizer.scaler.get_growth_interval() == 7
    optimizer.optimizer.register_step_pre_hook(lambda *_: seen.append(parameter.grad.clone()))
    for factor in (1.0, float("inf"), 1.0):  # the second update overflows
        optimizer.zero_grad()
        optimizer.backward((parameter * gradient * factor).sum())
        optimizer.clip_grad_norm(0.0)
        optimizer.step()
    assert len(seen) == 2 and all(torch.equal(one, gradient) for one in seen)
    assert optimizer.scaler.get_scale() == 64
