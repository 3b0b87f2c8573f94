"""Tests that an update needs few operations and few copies on a GPU, counted on the CPU and the device meta."""

import copy

import pytest
import torch

from deepnet_fairseq import register
from deepnet_fairseq.core import models
from deepnet_fairseq.core.archs import LM, MODEL_NAME
from deepnet_fairseq.core.cache import DecoderCache, EncoderOutput
from deepnet_fairseq.core.methods.branchnorm import RisingBranch
from deepnet_fairseq.core.modules import additive_mask
from deepnet_fairseq.core.slots import Multiply, Shift

from ..support.operations import Operations

ALIGNMENT = 8  # numbers; rows of a mask that begin elsewhere would be copied for the memory-efficient kernel
TINY = {MODEL_NAME: "deepnet_transformer_tiny", LM: "deepnet_lm_tiny"}


@pytest.mark.parametrize("begin", [register, lambda: models.build(TINY[LM], 20)], ids=["fairseq", "the core alone"])
def test_cudnns_attention_is_disabled(begin):
    torch.backends.cuda.enable_cudnn_sdp(True)

    begin()

    assert not torch.backends.cuda.cudnn_sdp_enabled()


def assert_rows_aligned(mask):
    assert mask.stride(-1) == 1
    for stride in mask.stride()[:-1]:
        assert stride % ALIGNMENT == 0


@pytest.mark.parametrize("length", [7, 8, 13])
def test_rows_of_masks_are_aligned(length):
    visible = torch.ones(3, 1, 1, length, dtype=torch.bool)
    visible[1, ..., :2] = False

    mask = additive_mask(visible, torch.float16)

    assert mask.shape == visible.shape
    assert_rows_aligned(mask)
    assert torch.equal(mask == 0, visible)
    assert mask[1, 0, 0, 0] == torch.finfo(torch.float16).min


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masks_have_autocasts_type(dtype):
    """That avoids a copy in each layer, and an overflow of float32's minimum to -inf."""
    nothing_visible = torch.zeros(2, 1, 1, 7, dtype=torch.bool)

    with torch.autocast("cpu", dtype):
        mask = additive_mask(nothing_visible, torch.float32)

    assert mask.dtype == dtype
    assert mask.isfinite().all()
    assert mask.stride(0) == ALIGNMENT


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masks_keep_their_type_where_autocast_does_not_act(dtype):
    """It leaves float64 alone, and is not on for the device meta."""
    nothing_visible = torch.zeros(2, 1, 1, 7, dtype=torch.bool)

    with torch.autocast("cpu", dtype):
        exact = additive_mask(nothing_visible, torch.float64)
        elsewhere = additive_mask(nothing_visible.to("meta"), torch.float32)

    assert exact.dtype == torch.float64
    assert elsewhere.dtype == torch.float32


def test_a_step_of_decoding_copies_nothing_to_the_device():
    """It makes a mask on the device whose rows need no copy."""
    states = torch.empty(3, 5, 64, device="meta")
    embedded = torch.empty(12, 1, 64, device="meta")

    with torch.no_grad(), Operations() as operations:
        cache = DecoderCache(EncoderOutput(states, None, 4), 12)
        x, mask = cache.advance(embedded)

    assert "_to_copy" not in operations.names
    assert x.shape == (3, 4, 64)
    assert mask.shape == (3, 1, 4, 4)
    assert_rows_aligned(mask)


@pytest.fixture
def half_precision_input():
    return torch.linspace(0.5, 2, 10_000).half().requires_grad_()


def with_a_number_beyond_half_precision(module):
    """Move a module's learned number by what float16 cannot tell; return the number."""
    (number,) = module.parameters()
    with torch.no_grad():
        number.add_(1e-4)
    return number


def test_a_learned_factor_costs_one_operation_in_half_precision(half_precision_input):
    """It is applied exactly, and its gradient is summed in float32."""
    x = half_precision_input
    module = Multiply(1.3)
    number = with_a_number_beyond_half_precision(module)

    with Operations() as operations:
        y = module(x)
    y.backward(torch.full_like(y, 100.0))

    assert len(operations) == 1
    assert y.dtype == torch.float16
    assert torch.equal(y, (x.double() * float(number)).half())
    assert number.grad.item() == pytest.approx(100 * x.double().sum().item(), rel=1e-5)
    assert torch.allclose(x.grad.float(), torch.full((10_000,), 100.0 * float(number)), rtol=1e-3)


def test_a_learned_shift_costs_one_operation_in_half_precision(half_precision_input):
    """It is applied exactly, and its gradient is summed in float32."""
    x = half_precision_input
    module = Shift()
    number = with_a_number_beyond_half_precision(module)

    with Operations() as operations:
        y = module(x)
    y.backward(torch.full_like(y, 100.0))

    assert len(operations) == 1
    assert y.dtype == torch.float16
    assert torch.equal(y, (x.double() - float(number)).half())
    assert number.grad.item() == pytest.approx(-100 * 10_000, rel=1e-5)
    assert torch.allclose(x.grad.float(), torch.full((10_000,), 100.0), rtol=1e-3)


def branchnorm_factors(model):
    """Return the factor of every branch."""
    return [module.a.item() for module in model.modules() if isinstance(module, RisingBranch)]


@pytest.mark.parametrize("cast_before", [False, True])  # a cast separates the branches' copies of the factor
@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
def test_branchnorms_factor_is_written_once_a_stack(kind, cast_before):
    model = models.build(TINY[kind], 20, method="branchnorm")
    if cast_before:
        model.set_num_updates(99)
        model.half().float()

    with Operations() as operations:
        model.set_num_updates(99)

    assert operations.names == ["fill_"] * len(model.stacks())
    saved = [value.item() for name, value in model.state_dict().items() if name.endswith(".a")]
    assert saved
    assert saved == pytest.approx([100 / 4000] * len(saved))


@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
def test_a_copy_of_a_branchnorm_model_has_factors_of_its_own(kind):
    model = models.build(TINY[kind], 20, method="branchnorm")
    model.set_num_updates(99)

    copied = copy.deepcopy(model)
    copied.set_num_updates(1999)

    factors = branchnorm_factors(model)
    assert factors
    assert factors == pytest.approx([100 / 4000] * len(factors), abs=1e-6)
    assert branchnorm_factors(copied) == pytest.approx([2000 / 4000] * len(factors), abs=1e-6)
