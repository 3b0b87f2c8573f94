"""Tests of every registered method in fairseq's programs; a new file in core/methods/ is included by itself."""

from __future__ import annotations

import math

import pytest
import torch

from deepnet_fairseq.core.methods import METHODS, get_method

from ..conftest import TRAIN_FLAGS
from ..support.diverging import weights
from ..support.helpers import run
from ..support.logs import TRANSLATE, hypotheses, losses
from ..support.marks import smoke_but

ARCH = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "3", "--decoder-layers", "2")
TEST_SENTENCES = 20
KEPT_IN_FLOAT32 = ("admin", "r_fixup")  # methods with parameters that stay in float32 under half precision
# ends of the names of parameters that these and other methods keep in float32
KEPT_NAMES = (".omega", ".weights.weight", ".shift", ".a")


def flags_of(method: str) -> tuple[str, ...]:
    """Return the flags of a method, with those that it needs, such as a profile of the model."""
    return ("--method", method, *get_method(method).train_flags)


@pytest.mark.parametrize("method", smoke_but(("deepnorm",), sorted(METHODS)))
def test_a_method_trains_and_translates(method, data, tmp_path):
    flags = (*flags_of(method), "--max-update", "12", "--save-dir", tmp_path)

    log = run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, *flags).stdout
    printed = run("fairseq-generate", data, *TRANSLATE, "--path", tmp_path / "checkpoint_last.pt").stdout

    loss_of_update = losses(log)
    assert len(loss_of_update) == 12
    assert min(loss_of_update.values()) < loss_of_update[1] - 0.1
    assert len(hypotheses(printed)) == TEST_SENTENCES


@pytest.mark.parametrize("method", KEPT_IN_FLOAT32)
def test_parameters_kept_in_float32_train_in_a_bf16_model(method, data, tmp_path):
    """The steps of these parameters are finer than bf16: some of their numbers have no equal in bf16."""
    flags = (*flags_of(method), "--bf16", "--max-update", "3", "--save-dir", tmp_path)

    log = run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, *flags).stdout

    assert len(losses(log)) == 3
    state = weights(tmp_path / "checkpoint_last.pt")
    kept = torch.cat([value.flatten() for name, value in state.items() if name.endswith(KEPT_NAMES)])
    assert not torch.equal(kept, kept.bfloat16().float())


@pytest.mark.slow
@pytest.mark.parametrize("precision", [(), ("--bf16",)], ids=["fp32", "bf16"])
def test_a_model_of_1000_layers_trains_and_translates(precision, data, tmp_path):
    """A model of 500 encoder and 500 decoder layers trains, saves, loads and translates on a CPU."""
    arch = ("--arch", "deepnet_transformer_tiny_500_500")
    checkpoint = tmp_path / "checkpoint_last.pt"
    train = (*arch, "--max-update", "20", "--save-dir", tmp_path, *precision)
    translate = (*TRANSLATE, "--max-len-b", "8", "--path", checkpoint, *precision)

    log = run("fairseq-train", data, *TRAIN_FLAGS, *train).stdout
    printed = run("fairseq-generate", data, *translate).stdout

    loss_of_update = losses(log)
    assert sorted(loss_of_update) == list(range(1, 21))
    for loss in loss_of_update.values():
        assert math.isfinite(loss)
    assert loss_of_update[20] < loss_of_update[1]

    state = weights(checkpoint)
    layers = [name for name in state if name.endswith("self_attn.q_proj.weight")]
    assert len(layers) == 1000
    for name, tensor in state.items():
        assert torch.isfinite(tensor).all(), name

    translations = hypotheses(printed)
    assert len(translations) == TEST_SENTENCES
    for log_probability, _tokens in translations.values():
        assert math.isfinite(log_probability)
        assert log_probability <= 0
