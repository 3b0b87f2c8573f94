"""Tests of every registered method in fairseq's programs; a new file in core/methods/ is included by itself."""

import math
import re

import pytest
import torch

from deepnet_fairseq.core.methods import METHODS, get_method

from ..conftest import TRAIN_FLAGS
from ..support.helpers import USER_DIR, run
from .test_fairseq_programs import losses

ARCH = ("--arch", "deepnet_transformer_tiny", "--encoder-layers", "3", "--decoder-layers", "2")
TRANSLATE = ("--user-dir", USER_DIR, "--cpu", "--beam", "2", "--max-len-a", "0", "--max-len-b", "5")
FLOAT32 = ("admin", "r_fixup")  # methods whose parameters stay in float32 under half precision


def flags_of(method):
    return ("--method", method, *get_method(method).train_flags)


# The default suite runs one method to save time; CI runs all.
@pytest.mark.parametrize(
    "method", [name if name == "deepnorm" else pytest.param(name, marks=pytest.mark.smoke) for name in sorted(METHODS)]
)
def test_trains_and_translates(method, data, tmp_path):
    train = ("fairseq-train", data, *TRAIN_FLAGS, *ARCH, *flags_of(method), "--save-dir", tmp_path)
    curve = losses(run(*train, "--max-update", "12").stdout)
    assert len(curve) == 12 and min(curve.values()) < curve[1] - 0.1
    printed = run("fairseq-generate", data, *TRANSLATE, "--path", tmp_path / "checkpoint_last.pt").stdout
    assert len(re.findall(r"^H-\d+\t", printed, re.MULTILINE)) == 20


@pytest.mark.parametrize("method", FLOAT32)
def test_bf16_training_with_float32_numbers(method, data, tmp_path):
    """Parameters kept in float32 train in a bf16 model, in steps that are finer than bf16."""
    train = ("fairseq-train", data, *TRAIN_FLAGS, *ARCH, *flags_of(method), "--bf16", "--save-dir", tmp_path)
    curve = losses(run(*train, "--max-update", "3").stdout)
    assert len(curve) == 3
    state = torch.load(tmp_path / "checkpoint_last.pt")["model"]
    names = (".omega", ".weights.weight", ".shift", ".a")
    kept = torch.cat([value.flatten() for name, value in state.items() if name.endswith(names)])
    assert not torch.equal(kept, kept.bfloat16().float())


@pytest.mark.slow
@pytest.mark.parametrize("precision", [(), ("--bf16",)], ids=["fp32", "bf16"])
def test_500_500(precision, data, tmp_path):
    """A model of 1,000 layers trains, saves, loads and translates on a CPU."""
    flags = (*TRAIN_FLAGS, "--arch", "deepnet_transformer_tiny_500_500", "--max-update", "20", "--save-dir", tmp_path)
    trained = losses(run("fairseq-train", data, *flags, *precision).stdout)
    assert sorted(trained) == list(range(1, 21))
    assert all(math.isfinite(loss) for loss in trained.values())
    assert trained[20] < trained[1]

    path = tmp_path / "checkpoint_last.pt"
    state = torch.load(path)["model"]
    assert sum(name.endswith("self_attn.q_proj.weight") for name in state) == 1000
    assert all(torch.isfinite(tensor).all() for tensor in state.values())

    generate = ("--path", path, "--user-dir", USER_DIR, "--cpu", "--beam", "2", "--max-len-a", "0", "--max-len-b", "8")
    printed = run("fairseq-generate", data, *generate, *precision).stdout
    assert len(re.findall(r"^H-\d+\t-\d", printed, re.MULTILINE)) == 20
