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


def test_attention_is_not_cudnns():
    """cuDNN's attention is disabled, both in fairseq and in the core alone."""
    for begin in (register, lambda: models.build("deepnet_lm_tiny", 20)):
        torch.backends.cuda.enable_cudnn_sdp(True)
        begin()
        assert not torch.backends.cuda.cudnn_sdp_enabled()


@pytest.mark.parametrize("length", [7, 8, 13])
def test_masks_need_no_copy(length):
    """Rows of masks begin at multiples of 8 numbers, so that the memory-efficient kernel needs no copy."""
    look = torch.ones(3, 1, 1, length, dtype=torch.bool)
    look[1, ..., :2] = False
    mask = additive_mask(look, torch.float16)
    assert mask.shape == look.shape and mask.stride(-1) == 1 and not any(step % 8 for step in mask.stride()[:-1])
    assert torch.equal(mask == 0, look) and mask[1, 0, 0, 0] == torch.finfo(torch.float16).min


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masks_are_of_the_type_that_autocast_computes_in(dtype):
    """Masks have autocast's type, which avoids a copy in each layer and an overflow of float32's minimum to -inf."""
    look = torch.zeros(2, 1, 1, 7, dtype=torch.bool)
    with torch.autocast("cpu", dtype):
        mask = additive_mask(look, torch.float32)
        exact = additive_mask(look, torch.float64)
    assert mask.dtype == dtype and mask.isfinite().all() and mask.stride(0) == 8
    assert exact.dtype == torch.float64  # autocast leaves float64 alone
    assert additive_mask(look.to("meta"), torch.float32).dtype == torch.float32


def test_a_step_of_decoding_copies_nothing_to_the_device():
    """A decoding step copies nothing to the device, and makes a mask there whose rows need no copy."""
    states = torch.empty(3, 5, 64, device="meta")
    with torch.no_grad(), Operations() as seen:
        cache = DecoderCache(EncoderOutput(states, None, 4), 12)
        x, mask = cache.advance(torch.empty(12, 1, 64, device="meta"))
    assert "_to_copy" not in seen.names
    assert x.shape == (3, 4, 64) and mask.shape == (3, 1, 4, 4) and not any(step % 8 for step in mask.stride()[:-1])


@pytest.mark.parametrize("module", [Multiply(1.3), Shift()])
def test_learned_numbers_cost_no_copies_in_half_precision(module):
    """Learned factors cost one operation in half precision, and their gradient is summed in float32."""
    x = torch.linspace(0.5, 2, 10_000).half().requires_grad_()
    with torch.no_grad():
        for number in module.parameters():
            number.add_(1e-4)  # too small for float16
    with Operations() as seen:
        y = module(x)
    assert len(seen) == 1 and y.dtype == torch.float16
    (number,) = module.parameters()
    exact = x.double() * float(number) if isinstance(module, Multiply) else x.double() - float(number)
    assert torch.equal(y, exact.half())
    y.backward(torch.full_like(y, 100.0))
    expected = 100 * x.double().sum() if isinstance(module, Multiply) else torch.tensor(-1e6)
    assert number.grad.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(
        x.grad.float(), torch.full((10_000,), 100.0 * (float(number) if expected > 0 else 1)), rtol=1e-3
    )


@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
def test_branchnorms_number_is_written_once_a_stack(kind):
    """BranchNorm's factor is written once for each stack, also after a cast, which separates its copies."""
    model = models.build(
        "deepnet_transformer_tiny" if kind == MODEL_NAME else "deepnet_lm_tiny", 20, method="branchnorm"
    )
    for _ in range(2):
        with Operations() as seen:
            model.set_num_updates(99)
        assert seen.names == ["fill_"] * len(model.stacks())
        factors = [value.item() for name, value in model.state_dict().items() if name.endswith(".a")]
        assert factors == pytest.approx([100 / 4000] * len(factors)) and factors
        model.half().float()
    copied = copy.deepcopy(model)
    copied.set_num_updates(1999)
    numbers = [{round(r.a.item(), 6) for r in of.modules() if isinstance(r, RisingBranch)} for of in (model, copied)]
    assert numbers == [{0.025}, {0.5}]
