"""Checkpoints whose tensors share memory, and the moving average of the weights."""

from __future__ import annotations

import argparse
import copy

import pytest
import torch
from fairseq import utils
from fairseq.models.ema.ema import EMA

from .support.helpers import small


def test_views_stay_views():
    """In half precision, and so copied: two tensors and a tie are still one memory, in float32, in any container."""
    buffer = torch.arange(24.0).bfloat16()
    first, second = buffer[:16].view(4, 4), buffer[16:].view(2, 4).t()
    moved = utils.move_to_cpu({"model": {"a": first, "tie": first}, "state": [(second, 3)], "none": None})
    a, tie, other = moved["model"]["a"], moved["model"]["tie"], moved["state"][0][0]
    assert torch.equal(a, first.float()) and torch.equal(other, second.float()) and other.stride() == second.stride()
    assert len({tensor.untyped_storage().data_ptr() for tensor in (a, tie, other)}) == 1
    assert tie.data_ptr() == a.data_ptr() and moved["none"] is None and moved["state"][0][1] == 3


def test_a_small_view_drags_nothing_along():
    moved = utils.move_to_cpu({"a": torch.zeros(1000).half()[:10], "b": torch.zeros(0).half()})
    assert moved["a"].untyped_storage().nbytes() == 40 and moved["b"].dtype == torch.float32


def test_full_precision_is_not_copied():
    value = torch.ones(3)
    assert utils.move_to_cpu([value])[0].data_ptr() == value.data_ptr()


@pytest.mark.parametrize("precise", [True, False], ids=["ema_fp32", "as the model"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", ["deepnorm", "admin"])
def test_the_moving_average_is_fairseqs(method, dtype, precise):
    """Bit for bit, through the updates before it starts and after."""
    cfg = argparse.Namespace(
        ema_decay=0.7, ema_fp32=precise, ema_seed_model=None, ema_start_update=2, ema_update_freq=1
    )
    model = small(2, method=method).to(dtype)
    ours, theirs = EMA(model, cfg), EMA(model, cfg)
    generator = torch.Generator().manual_seed(0)
    for update in range(1, 6):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn(parameter.shape, generator=generator).to(dtype) * 0.1
        ours.step(model, update)
        theirs._set_decay(ours.get_decay())
        EMA._step_internal.__wrapped__(theirs, model, update)
    for ema in (ours, theirs):
        assert ema.fp32_params.keys() == (model.state_dict().keys() if precise else set())
    expected = theirs.get_model().state_dict() | {f"fp32.{k}": v for k, v in theirs.fp32_params.items()}
    found = ours.get_model().state_dict() | {f"fp32.{k}": v for k, v in ours.fp32_params.items()}
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    assert not torch.equal(found["decoder.layers.0.fc1.weight"], model.state_dict()["decoder.layers.0.fc1.weight"])


def test_another_models_average_takes_fairseqs_way():
    """An average without one of the model's tensors is what fairseq makes of it."""
    cfg = argparse.Namespace(ema_decay=0.5, ema_fp32=True, ema_seed_model=None, ema_start_update=0, ema_update_freq=1)
    model = small(1)
    ema = EMA(model, cfg)
    del ema.fp32_params["decoder.layers.0.fc1.weight"]
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.data.fill_(1.0)
    ema.step(other, 1)
    kept = ema.get_model().state_dict()
    assert torch.allclose(
        kept["encoder.layers.0.fc1.weight"], 0.5 * (model.state_dict()["encoder.layers.0.fc1.weight"] + 1)
    )
