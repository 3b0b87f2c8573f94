"""Tests that an update needs few operations and few copies on a GPU, counted on the CPU and the device meta.

`Operations` records the operations of ATen in its context, without those that only make views.
"""

import copy

import pytest
import torch

from deepnet_fairseq import register
from deepnet_fairseq.core import models
from deepnet_fairseq.core.cache import DecoderCache, EncoderOutput
from deepnet_fairseq.core.methods.branchnorm import RisingBranch
from deepnet_fairseq.core.modules import additive_mask
from deepnet_fairseq.core.slots import Multiply, Shift

from ..support.operations import Operations

ALIGNMENT = 8  # numbers; rows of a mask that begin elsewhere would be copied for torch's memory-efficient kernel
VOCAB = 20  # symbols of models here


def build_core_model():
    models.build("deepnet_lm_tiny", VOCAB)


@pytest.mark.parametrize("begin", [register, build_core_model])  # with fairseq, and without it
def test_cudnns_attention_is_disabled(begin):
    """cuDNN needs half a second for each new shape of a batch."""
    torch.backends.cuda.enable_cudnn_sdp(True)

    begin()

    assert not torch.backends.cuda.cudnn_sdp_enabled()


def assert_rows_aligned(mask):
    """Check that the rows of a mask (.., S) begin a multiple of 8 numbers apart, and are whole in memory."""
    assert mask.stride(-1) == 1
    for stride in mask.stride()[:-1]:
        assert stride % ALIGNMENT == 0


@pytest.mark.parametrize("length", [7, 8, 13])
def test_rows_of_masks_are_aligned(length):
    visible = torch.ones(3, 1, 1, length, dtype=torch.bool)

    mask = additive_mask(visible, torch.float16)

    assert_rows_aligned(mask)


@pytest.mark.parametrize("length", [7, 8, 13])
def test_masks_are_zero_at_visible_keys_and_the_lowest_number_elsewhere(length):
    visible = torch.ones(3, 1, 1, length, dtype=torch.bool)
    visible[1, ..., :2] = False

    mask = additive_mask(visible, torch.float16)

    expected = torch.zeros(3, 1, 1, length)
    expected[1, ..., :2] = torch.finfo(torch.float16).min
    assert torch.equal(mask.float(), expected)


every_half_precision = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


@pytest.fixture
def nothing_visible():
    """Provide a bool mask (B, 1, 1, S) of 2 sentences of 7 tokens that hides all of them."""
    return torch.zeros(2, 1, 1, 7, dtype=torch.bool)


@every_half_precision
def test_masks_have_autocasts_type(dtype, nothing_visible):
    """A mask of autocast's type avoids a copy in each layer, and an overflow of float32's minimum to -inf."""
    with torch.autocast("cpu", dtype):
        mask = additive_mask(nothing_visible, torch.float32)

    assert mask.dtype == dtype
    assert mask.isfinite().all()
    assert mask.stride(0) == ALIGNMENT


@every_half_precision
def test_masks_are_float64_under_autocast_where_scores_are(dtype, nothing_visible):
    """Autocast leaves float64 alone."""
    with torch.autocast("cpu", dtype):
        mask = additive_mask(nothing_visible, torch.float64)

    assert mask.dtype == torch.float64


@every_half_precision
def test_masks_on_the_device_meta_have_the_type_of_the_scores(dtype, nothing_visible):
    """Autocast is on for the CPU here, and not for the device meta."""
    with torch.autocast("cpu", dtype):
        mask = additive_mask(nothing_visible.to("meta"), torch.float32)

    assert mask.dtype == torch.float32


def test_a_step_of_decoding_copies_nothing_to_the_device():
    """A step makes its mask on the device, with rows that need no copy."""
    sentences = 3
    source_tokens = 5
    beams = 4
    width = 64
    states = torch.empty(sentences, source_tokens, width, device="meta")
    newest_tokens = torch.empty(sentences * beams, 1, width, device="meta")

    with torch.no_grad(), Operations() as operations:
        cache = DecoderCache(EncoderOutput(states, mask=None, beams=beams), rows=sentences * beams)
        x, mask = cache.advance(newest_tokens)

    assert "_to_copy" not in operations.names
    assert x.shape == (sentences, beams, width)
    assert mask.shape == (sentences, 1, beams, beams)  # each beam has one key so far
    assert_rows_aligned(mask)


NUMBERS = 10_000
OUTPUT_GRADIENT = 100.0  # of each number; a sum of NUMBERS of them is beyond float16's range


@pytest.fixture
def half_precision_input():
    """Provide 10,000 numbers from 0.5 to 2 in float16."""
    return torch.linspace(0.5, 2, NUMBERS).half().requires_grad_()


def with_a_number_beyond_half_precision(module):
    """Return a module with 1.3001 for its one learned number; the nearest number in float16 is 1.2998."""
    (number,) = module.parameters()
    with torch.no_grad():
        number.fill_(1.3001)
    return module


def test_a_learned_factor_costs_one_operation_in_half_precision(half_precision_input):
    """The factor is applied exactly, and its gradient is summed in float32."""
    x = half_precision_input
    multiply = with_a_number_beyond_half_precision(Multiply())
    (factor,) = multiply.parameters()

    with Operations() as operations:
        y = multiply(x)
    y.backward(torch.full_like(y, OUTPUT_GRADIENT))

    assert len(operations) == 1
    assert y.dtype == torch.float16
    assert torch.equal(y, (x.double() * factor.item()).half())
    assert factor.grad.item() == pytest.approx(OUTPUT_GRADIENT * x.double().sum().item(), rel=1e-5)
    assert torch.allclose(x.grad.float(), torch.full((NUMBERS,), OUTPUT_GRADIENT * factor.item()), rtol=1e-3)


def test_a_learned_shift_costs_one_operation_in_half_precision(half_precision_input):
    """A shift computes x - b. The number b is applied exactly, and its gradient is summed in float32."""
    x = half_precision_input
    shift = with_a_number_beyond_half_precision(Shift())
    (b,) = shift.parameters()

    with Operations() as operations:
        y = shift(x)
    y.backward(torch.full_like(y, OUTPUT_GRADIENT))

    assert len(operations) == 1
    assert y.dtype == torch.float16
    assert torch.equal(y, (x.double() - b.item()).half())
    assert b.grad.item() == pytest.approx(-OUTPUT_GRADIENT * NUMBERS, rel=1e-5)
    assert torch.allclose(x.grad.float(), torch.full((NUMBERS,), OUTPUT_GRADIENT), rtol=1e-3)


# BranchNorm multiplies branches by min(t / T, 1) in update t, T = 4000

every_stack_count = pytest.mark.parametrize("arch", ["deepnet_transformer_tiny", "deepnet_lm_tiny"])  # two stacks, one


def branchnorm_factors(model):
    """Return the factor of every branch."""
    return [module.a.item() for module in model.modules() if isinstance(module, RisingBranch)]


@pytest.mark.parametrize("cast_before", [False, True])  # a cast separates the branches' copies of the factor
@every_stack_count
def test_branchnorms_factor_is_written_once_a_stack(arch, cast_before):
    model = models.build(arch, VOCAB, method="branchnorm")
    if cast_before:
        model.set_num_updates(99)
        model.half().float()

    with Operations() as operations:
        model.set_num_updates(99)

    assert operations.names == ["fill_"] * len(model.stacks())


@every_stack_count
def test_branchnorms_factor_is_saved_for_every_branch(arch):
    model = models.build(arch, VOCAB, method="branchnorm")

    model.set_num_updates(99)

    saved = [value.item() for name, value in model.state_dict().items() if name.endswith(".a")]
    assert len(saved) == len(branchnorm_factors(model))
    assert saved == pytest.approx([100 / 4000] * len(saved))


@every_stack_count
def test_a_copy_of_a_branchnorm_model_has_factors_of_its_own(arch):
    model = models.build(arch, VOCAB, method="branchnorm")
    model.set_num_updates(99)

    copied = copy.deepcopy(model)
    copied.set_num_updates(1999)

    factors = branchnorm_factors(model)
    factors_of_copy = branchnorm_factors(copied)
    assert factors
    assert factors == pytest.approx([100 / 4000] * len(factors), abs=1e-6)
    assert factors_of_copy == pytest.approx([2000 / 4000] * len(factors), abs=1e-6)
