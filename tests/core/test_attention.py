"""Tests of attention against its formula, of dropout against its definition, and of modules that replace matrices."""

import pytest
import torch
from torch import nn

from deepnet_fairseq.core.attention import Attention, attention_weights
from deepnet_fairseq.core.initialisation import draw_normal
from deepnet_fairseq.core.modules import Dropout, additive_mask

from ..support.helpers import batch, small

HEADS = 2


def attention(source_dim=8):
    module = Attention(8, HEADS, 0.0, source_dim, None, None, bias=True).double()
    torch.manual_seed(0)
    for parameter in module.parameters():
        draw_normal(parameter.data, 0.3)
    return module


def by_formula(module, x, source, look):
    """Compute softmax(q k / sqrt(d)) v of each head, with -inf where `look` (B, T, S) is False."""

    def split(y):
        return y.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    q, keys, values = split(module.q_proj(x)), split(module.k_proj(source)), split(module.v_proj(source))
    scores = (q @ keys.transpose(2, 3) / q.size(-1) ** 0.5).masked_fill(~look[:, None], float("-inf"))
    return module.out_proj((scores.softmax(-1) @ values).transpose(1, 2).flatten(2)), scores.softmax(-1)


@pytest.mark.parametrize("form", ["causal", "none", "bool", "numbers"])
@pytest.mark.parametrize("source_dim", [None, 6])
def test_attention_is_its_formula(form, source_dim):
    """Output, weights and gradients of self- and cross-attention equal the formula's."""
    module = attention(source_dim or 8)
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    source = None if source_dim is None else torch.randn(3, 7, 6, dtype=torch.float64, requires_grad=True)
    read = x if source is None else source
    look = torch.ones(3, 5, read.size(1), dtype=torch.bool)
    if form == "causal":
        look = look.tril()
        mask = None if source is None else look[:, None]
    else:
        look[1, :, :2] = form == "none"
        mask = {"none": None, "bool": look[:, None], "numbers": additive_mask(look[:, None], torch.float64)}[form]
    weights = []
    causal = form == "causal" and mask is None
    y = module(x, source, mask, causal, alignment=None if causal else weights)
    expected, expected_weights = by_formula(module, x, read, look)
    torch.testing.assert_close(y, expected)
    assert causal or torch.allclose(weights[0], expected_weights.float(), atol=1e-6)
    gradients = [torch.autograd.grad(one.square().sum(), [x, *module.parameters()]) for one in (y, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_arguments_of_fairseq_s_attention_are_refused_in_one_line():
    x = torch.randn(3, 5, 8)
    with pytest.raises(TypeError, match="^attention takes x, source, mask, .* given: query, key, need_weights$"):
        attention()(query=x, key=x, need_weights=False)


def test_a_query_that_may_look_nowhere_gives_numbers():
    module, x = attention(), torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    y = module(x, mask=additive_mask(torch.zeros(3, 1, 1, 5, dtype=torch.bool), torch.float64))
    y.sum().backward()
    assert torch.isfinite(y).all() and torch.isfinite(x.grad).all()


def test_alignment_weights_are_computed_in_float32():
    q = torch.full((1, 1, 1, 4), 100.0).half()
    weights = attention_weights(q, q.expand(1, 1, 3, 4), None)
    assert weights.dtype == torch.float32 and torch.allclose(weights, torch.full((3,), 1 / 3))


def test_dropout_draws_from_the_generator_and_its_gradient_has_the_same_mask():
    dropout, x = Dropout(0.3).train(), torch.ones(70, 50, requires_grad=True)
    torch.manual_seed(1)
    first = dropout(x)
    torch.manual_seed(1)
    assert torch.equal(first, dropout(x))
    assert not torch.equal(first, dropout(x))
    assert first.unique().tolist() == pytest.approx([0, 1 / 0.7], rel=1e-4)
    assert 0.25 < (first == 0).float().mean() < 0.35
    first.sum().backward()
    assert torch.equal(x.grad, first.detach())
    assert dropout.eval()(x) is x


class Adapter(nn.Module):
    """Low-rank adapter around a matrix, as peft libraries insert it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2), nn.Linear(2, base.out_features)
        self.in_features = base.in_features

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def test_adapters_hold_in_training_and_decoding_and_train_in_all_their_parts():
    model = small(2)
    layers = [*model.encoder.layers, *model.decoder.layers]
    for attended in (one for layer in layers for one in (layer.self_attn, getattr(layer, "encoder_attn", None)) if one):
        attended.q_proj, attended.v_proj = Adapter(attended.q_proj), Adapter(attended.v_proj)
    for layer in layers:
        layer.fc1 = Adapter(layer.fc1)
    src, prev = batch()
    whole = model(src, None, prev)[0]
    with torch.no_grad():
        memory, state = model.encoder(src), {}
        steps = [model.decoder(prev[:, : t + 1], memory, incremental_state=state)[0] for t in range(prev.size(1))]
    real = prev.ne(1)
    torch.testing.assert_close(torch.cat(steps, 1)[real], whole[real], atol=1e-5, rtol=1e-5)
    model.train()(src, None, prev)[0].square().mean().backward()
    adapters = [module for module in model.modules() if isinstance(module, Adapter)]
    added = [parameter for one in adapters for part in (one.down, one.up) for parameter in part.parameters()]
    assert len(adapters) == 2 * (2 + 4) + 4
    assert all(parameter.grad.abs().sum() > 0 for parameter in added)


def test_dynamic_quantisation_finds_every_matrix():
    model = small(2)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    matrices = sum(isinstance(module, nn.Linear) for module in model.modules())
    count = sum("quantized" in type(module).__module__ and hasattr(module, "scale") for module in quantised.modules())
    assert count == matrices == 2 * 6 + 2 * 10 + 1
    src, prev = batch()
    with torch.no_grad():
        assert (quantised(src, None, prev)[0] - model(src, None, prev)[0]).abs().max() < 0.5
