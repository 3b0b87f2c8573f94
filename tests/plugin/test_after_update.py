"""Tests of Method.after_update, which reaches float32 weights, model and checkpoint, with nGPT as example."""

from __future__ import annotations

import pytest

from ..conftest import TRAIN_FLAGS
from ..support import ranks
from ..support.diverging import TINY, weights
from ..support.helpers import ROOT

NGPT = ("--user-dir", ROOT / "scripts" / "ngpt", "--method", "ngpt", "--max-update", 3)
OURS = ("--optimizer", "deepnet_adam")
ZERO = (*OURS, "--zero-sharding", "os")
FLOAT32, HALF = 1e-6, 4e-3  # largest differences of a length from 1
CASES = {  # name -> processes, flags, tolerance
    "float32": (1, (), FLOAT32),
    "fp16": (1, ("--fp16", "--optimizer", "adam"), HALF),
    "bf16": (1, ("--bf16", *OURS), HALF),
    "ZeRO": (2, ZERO, FLOAT32),
    "ZeRO in fp16": (2, ("--fp16", *ZERO), HALF),
}


def train_ngpt(data, folder, *flags, processes: int = 1, check: bool = True) -> None:
    """Make three updates of an nGPT model; the output goes to FOLDER/log."""
    words = (*TRAIN_FLAGS, *TINY, *NGPT, "--save-dir", folder, *flags)
    ranks.train(processes, folder / "log", data, *words, check=check)


@pytest.mark.parametrize("case", CASES)
def test_weights_of_ngpt_stay_on_the_sphere(case, data, tmp_path):
    """The weights of every feature in the ffn keep length 1: rows of fc1, and columns of fc2."""
    processes, flags, tolerance = CASES[case]

    train_ngpt(data, tmp_path, *flags, processes=processes)

    matrices = {name: weight for name, weight in weights(tmp_path / "checkpoint_last.pt").items() if "fc" in name}
    assert matrices
    for name, weight in matrices.items():
        features = 0 if "fc2" in name else 1
        lengths = weight.float().norm(dim=features)
        assert (lengths - 1).abs().max() < tolerance, name


def test_weights_without_a_float32_copy_are_refused(data, tmp_path):
    train_ngpt(data, tmp_path, "--memory-efficient-fp16", check=False)

    assert "error: --memory-efficient-fp16" in (tmp_path / "log").read_text()
