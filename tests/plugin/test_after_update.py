"""Tests of Method.after_update, which reaches float32 weights, model and checkpoint, with nGPT as example."""

from __future__ import annotations

import pytest
import torch

from ..conftest import TRAIN_FLAGS
from ..support import ranks
from ..support.diverging import TINY, weights
from ..support.helpers import ROOT

ZERO = ("--optimizer", "deepnet_adam", "--zero-sharding", "os")
CASES = [(1, ()), (1, ("--fp16", "--optimizer", "adam")), (1, ("--bf16", *ZERO[:2])), (2, ZERO), (2, ("--fp16", *ZERO))]


def train(world, data, folder, *flags, **kwargs):
    ngpt = ("--user-dir", ROOT / "scripts" / "ngpt", "--method", "ngpt", "--max-update", 3, "--save-dir", folder)
    ranks.train(world, folder / "log", data, *TRAIN_FLAGS, *TINY, *ngpt, *flags, **kwargs)


@pytest.mark.parametrize(("world", "flags"), CASES)
def test_weights_stay_on_the_sphere(world, flags, data, tmp_path):
    train(world, data, tmp_path, *flags)
    ffn = {name: weight.float() for name, weight in weights(tmp_path / "checkpoint_last.pt").items() if "fc" in name}
    lengths = torch.cat([weight.norm(dim=0 if "fc2" in name else 1) for name, weight in ffn.items()])
    assert (lengths - 1).abs().max() < (4e-3 if {"--fp16", "--bf16"} & {*flags} else 1e-6)


def test_weights_without_a_float32_copy_are_refused(data, tmp_path):
    train(1, data, tmp_path, "--memory-efficient-fp16", check=False)
    assert "error: --memory-efficient-fp16, -bf16: not with a method" in (tmp_path / "log").read_text()
