"""Tests of dropout from 16 random bits; no other file tests core/cpu_dropout.py."""

import pytest
import torch

from deepnet_fairseq.core import modules

cpu_dropout = pytest.importorskip("deepnet_fairseq.core.cpu_dropout")

STANDARD_DEVIATIONS = 5  # that a mean may be off
RESOLUTION = 0.5 / 2**16  # error of a probability in 16 bits


def test_the_package_uses_it():
    assert modules.drop is cpu_dropout.dropout


@pytest.fixture
def drawn_mask(p, dtype):
    """Provide a mask of a million numbers."""
    torch.manual_seed(0)
    return cpu_dropout.mask(torch.empty(1000, 1001, dtype=dtype), p)


every_probability = pytest.mark.parametrize("p", [0.001, 0.4, 0.9])
every_precision = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@every_probability
@every_precision
def test_numbers_are_dropped_with_their_probability(p, dtype, drawn_mask):
    share = (drawn_mask == 0).double().mean()

    deviation = (p * (1 - p) / drawn_mask.numel()) ** 0.5
    assert abs(share - p) < STANDARD_DEVIATIONS * deviation + RESOLUTION


@every_probability
@every_precision
def test_the_rest_is_scaled_so_that_the_mean_is_kept(p, dtype, drawn_mask):
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2

    assert drawn_mask.dtype == dtype
    assert len(drawn_mask.unique()) == 2
    assert float(drawn_mask.max()) == pytest.approx(1 / (1 - p), rel=tolerance)


@every_probability
@every_precision
def test_neighbours_are_dropped_independently(p, dtype, drawn_mask):
    """Four numbers come from one random draw."""
    numbers = drawn_mask.flatten().float()

    correlation = torch.corrcoef(torch.stack([numbers[:-1], numbers[1:]]))[0, 1]

    assert abs(correlation) < STANDARD_DEVIATIONS / numbers.numel() ** 0.5
