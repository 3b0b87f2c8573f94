"""The combination of layers: its gradient, its memory, and that it keeps nothing between passes."""

import pytest
import torch

from deepnet_fairseq.methods.dlcl import WeightedSum

from .support.helpers import batch, logits, small


def test_gradient_by_finite_differences():
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(size, generator=generator, dtype=torch.float64) for size in ((3,), *[(2, 4, 5)] * 3)]
    assert torch.autograd.gradcheck(WeightedSum.apply, [tensor.requires_grad_() for tensor in tensors])


def kept_for_backward(layers):
    """Bytes of distinct activations that the graph of one forward pass holds on to."""
    model = small(layers, method="dlcl").train()
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    src, prev = batch()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        scores = model(src, None, prev)[0]
    assert scores.requires_grad
    return sum(held.values())


def test_memory_grows_linearly_with_depth():
    ten, twenty, forty = (kept_for_backward(layers) for layers in (10, 20, 40))
    assert forty - twenty == pytest.approx(2 * (twenty - ten), rel=0.02)


def test_a_failed_pass_leaves_nothing_behind():
    model = small(3, method="dlcl")
    expected = logits(model, *batch())
    handle = model.decoder.layers[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        logits(model, *batch())
    handle.remove()
    assert torch.equal(logits(model, *batch()), expected)


def test_half_precision_adds_up_in_float32():
    """1,000 outputs of weight 1/1,000 each; added up in float16 they give 0.98."""
    states = [torch.ones(1, 1, 4, dtype=torch.float16) for _ in range(1000)]
    total = WeightedSum.apply(torch.full((1000,), 1e-3), *states)
    assert total.dtype == torch.float16 and torch.allclose(total.float(), torch.ones(4), atol=1e-3)
