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

ARCH = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "3", "--decoder-layers", "2")
TEST_SENTENCES = 20
KEPT_IN_FLOAT32 = ("admin", "r_fixup")  # methods whose parameters stay in float32 under half precision
KEPT_NAMES = (".omega", ".weights.weight", ".shift", ".a")  # ends of the names of these parameters


def flags_of(method: str) -> tuple[str, ...]:
    return ("--method", method, *get_method(method).train_flags)


# The default suite runs one method to save time; CI runs all.
@pytest.mark.parametrize(
    "method", [name if name == "deepnorm" else pytest.param(name, marks=pytest.mark.smoke) for name in sorted(METHODS)]
)
def test_a_method_trains_and_translates(method, data, tmp_path):
    flags = (*flags_of(method), "--max-update", "12", "--save-dir", tmp_path)

    curve = losses(run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, *flags).stdout)
    translations = run("fairseq-generate", data, *TRANSLATE, "--path", tmp_path / "checkpoint_last.pt").stdout

    assert len(curve) == 12
    assert min(curve.values()) < curve[1] - 0.1
    assert len(hypotheses(translations)) == TEST_SENTENCES


@pytest.mark.parametrize("method", KEPT_IN_FLOAT32)
def test_parameters_kept_in_float32_train_in_a_bf16_model(method, data, tmp_path):
    """Parameters kept in float32 train in a bf16 model, in steps that are finer than bf16."""
    flags = (*flags_of(method), "--bf16", "--max-update", "3", "--save-dir", tmp_path)

    curve = losses(run("fairseq-train", data, *TRAIN_FLAGS, *ARCH, *flags).stdout)

    assert len(curve) == 3
    state = weights(tmp_path / "checkpoint_last.pt")
    kept = torch.cat([value.flatten() for name, value in state.items() if name.endswith(KEPT_NAMES)])
    assert not torch.equal(kept, kept.bfloat16().float())


@pytest.mark.slow
@pytest.mark.parametrize("precision", [(), ("--bf16",)], ids=["fp32", "bf16"])
def test_a_model_of_1000_layers_trains_and_translates(precision, data, tmp_path):
    """A model of 1,000 layers trains, saves, loads and translates on a CPU."""
    flags = ("--arch", "deepnet_transformer_tiny_500_500", "--max-update", "20", "--save-dir", tmp_path, *precision)

    trained = losses(run("fairseq-train", data, *TRAIN_FLAGS, *flags).stdout)

    assert sorted(trained) == list(range(1, 21))
    assert all(math.isfinite(loss) for loss in trained.values())
    assert trained[20] < trained[1]

    path = tmp_path / "checkpoint_last.pt"
    state = weights(path)
    assert sum(name.endswith("self_attn.q_proj.weight") for name in state) == 1000
    assert all(torch.isfinite(tensor).all() for tensor in state.values())

    translate = (*TRANSLATE, "--max-len-b", "8", "--path", path, *precision)
    translations = hypotheses(run("fairseq-generate", data, *translate).stdout)
    assert len(translations) == TEST_SENTENCES
    for score, _tokens in translations.values():
        assert math.isfinite(score)
        assert score <= 0
