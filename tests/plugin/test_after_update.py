"""Tests of Method.after_update, which changes the weights after each update, with nGPT as example.

The change has to reach the model, the optimiser's float32 copy of weights in half precision, and the checkpoint.
nGPT divides rows or columns of weight matrices by their length (Loshchilov et al. 2024, section 2).
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from ..conftest import TRAIN_FLAGS
from ..support import ranks
from ..support.diverging import TINY, weights
from ..support.helpers import ROOT
from ..support.marks import smoke_but

NGPT = ("--user-dir", ROOT / "scripts" / "ngpt", "--method", "ngpt", "--max-update", 3)
OURS = ("--optimizer", "deepnet_adam")
ZERO = (*OURS, "--zero-sharding", "os")
FLOAT32 = 1e-6  # largest difference of a length from 1
HALF = 4e-3  # largest difference of a length from 1, of weights in half precision


class Case(NamedTuple):
    processes: int
    flags: tuple[str, ...]
    tolerance: float


CASES = {
    "float32": Case(1, (), FLOAT32),
    "fp16": Case(1, ("--fp16", "--optimizer", "adam"), HALF),
    "bf16": Case(1, ("--bf16", *OURS), HALF),
    "ZeRO": Case(2, ZERO, FLOAT32),
    "ZeRO in fp16": Case(2, ("--fp16", *ZERO), HALF),
}


def train_ngpt(data, folder, *flags, processes: int = 1, check: bool = True) -> None:
    """Make three updates of an nGPT model; the output goes to FOLDER/log."""
    words = (*TRAIN_FLAGS, *TINY, *NGPT, "--save-dir", folder, *flags)
    ranks.train(processes, folder / "log", data, *words, check=check)


@pytest.mark.parametrize("name", smoke_but(("float32", "fp16"), CASES))
def test_weights_of_ngpt_stay_on_the_sphere(name, data, tmp_path):
    """Each feature of a feed-forward network's hidden layer has weights of length 1, in fc1 and in fc2.

    The shape of fc1 is (features, width), that of fc2 (width, features).
    """
    case = CASES[name]
    train_ngpt(data, tmp_path, *case.flags, processes=case.processes)

    by_address = weights(tmp_path / "checkpoint_last.pt")
    matrices = {address: weight for address, weight in by_address.items() if "fc" in address}
    assert matrices
    for address, weight in matrices.items():
        dimension_of_width = 0 if "fc2" in address else 1
        lengths = weight.float().norm(dim=dimension_of_width)
        assert (lengths - 1).abs().max() < case.tolerance, address


def test_weights_without_a_float32_copy_are_refused(data, tmp_path):
    train_ngpt(data, tmp_path, "--memory-efficient-fp16", check=False)

    assert "error: --memory-efficient-fp16" in (tmp_path / "log").read_text()
