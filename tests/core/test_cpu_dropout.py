"""Tests of dropout on a CPU, which draws 16 random bits for a number; skipped in a package without core/cpu_dropout.py.

Statistics of random numbers may be off by five standard deviations, and a probability by its rounding to 16 bits.
"""

import pytest
import torch

from deepnet_fairseq.core import modules

cpu_dropout = pytest.importorskip("deepnet_fairseq.core.cpu_dropout")

STANDARD_DEVIATIONS = 5
ROUNDING = 0.5 / 2**16


def test_dropout_of_the_package_is_this_one():
    assert modules.drop is cpu_dropout.dropout


@pytest.fixture
def mask(p, dtype):
    """Provide a mask of a million numbers: 0 with probability p, else 1 / (1 - p)."""
    torch.manual_seed(0)
    return cpu_dropout.mask(torch.empty(1000, 1001, dtype=dtype), p)


every_probability = pytest.mark.parametrize("p", [0.001, 0.4, 0.9])
every_precision = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@every_probability
@every_precision
def test_numbers_are_dropped_with_their_probability(p, dtype, mask):
    share = (mask == 0).double().mean()

    deviation = (p * (1 - p) / mask.numel()) ** 0.5  # of the share of a million independent draws
    assert abs(share - p) < STANDARD_DEVIATIONS * deviation + ROUNDING


@every_probability
@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
def test_the_rest_is_scaled_so_that_the_mean_is_kept(p, dtype, rounding, mask):
    assert mask.dtype == dtype
    assert mask.unique().tolist() == pytest.approx([0, 1 / (1 - p)], rel=rounding)


@every_probability
@every_precision
def test_neighbours_are_dropped_independently(p, dtype, mask):
    """Four numbers come from one random draw of 64 bits."""
    numbers = mask.flatten().float()
    pairs = torch.stack([numbers[:-1], numbers[1:]])

    correlation = torch.corrcoef(pairs)[0, 1]

    deviation = numbers.numel() ** -0.5  # of the correlation of a million independent pairs
    assert abs(correlation) < STANDARD_DEVIATIONS * deviation


def test_probability_that_rounds_to_1_leaves_a_finite_scale():
    torch.manual_seed(0)
    numbers = cpu_dropout.mask(torch.empty(1000), p=1 - 1e-6)

    assert numbers.isfinite().all()
    assert numbers.count_nonzero() <= 5  # 0.015 are expected
