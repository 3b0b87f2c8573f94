"""Tests of dropout from 16 random bits; no other file tests core/cpu_dropout.py."""

import pytest
import torch

from deepnet_fairseq.core import modules

cpu_dropout = pytest.importorskip("deepnet_fairseq.core.cpu_dropout")


def test_the_package_uses_it():
    assert modules.drop is cpu_dropout.dropout


@pytest.mark.parametrize("p", [0.001, 0.4, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_are_dropped_with_their_probability_and_the_mean_is_kept(p, dtype):
    torch.manual_seed(0)
    drawn = cpu_dropout.mask(torch.empty(1000, 1001, dtype=dtype), p)
    assert drawn.dtype == dtype and len(drawn.unique()) == 2
    share, n = (drawn == 0).double().mean(), drawn.numel()
    assert abs(share - p) < 5 * (p * (1 - p) / n) ** 0.5 + 0.5 / 2**16
    assert float(drawn.max()) == pytest.approx(1 / (1 - p), rel=1e-4 if dtype == torch.float32 else 1e-2)
    neighbours = torch.corrcoef(torch.stack([drawn.flatten()[:-1].float(), drawn.flatten()[1:].float()]))[0, 1]
    assert abs(neighbours) < 5 / n**0.5  # four numbers come from one random draw
