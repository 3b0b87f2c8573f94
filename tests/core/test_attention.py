"""Tests of attention against its formula, of dropout against its definition, and of modules that replace matrices."""

import pytest
import torch
from torch import nn

from deepnet_fairseq.core.attention import Attention, attention_weights
from deepnet_fairseq.core.initialisation import draw_normal
from deepnet_fairseq.core.modules import Dropout, additive_mask

from ..support.decoded import step_by_step
from ..support.helpers import PAD, batch, small

HEADS = 2
WIDTH = 8


def drawn_attention(source_dim=WIDTH):
    """Build an attention of width 8 in float64 with random weights, for a source of width `source_dim`."""
    module = Attention(WIDTH, HEADS, dropout=0.0, source_dim=source_dim, inner=None, heads=None, bias=True).double()
    torch.manual_seed(0)
    for parameter in module.parameters():
        draw_normal(parameter.data, 0.3)
    return module


def split_heads(y):
    """Split (B, T, C) into heads, (B, heads, T, d)."""
    return y.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def attention_by_formula(module, x, source, visible):
    """Compute softmax(q k / sqrt(d)) v of each head, with -inf where `visible` (B, T, S) is False.

    Returns the output (B, T, C) and the weights (B, heads, T, S).
    """
    q = split_heads(module.q_proj(x))
    k = split_heads(module.k_proj(source))
    v = split_heads(module.v_proj(source))
    products = q @ k.transpose(2, 3) / q.size(-1) ** 0.5
    weights = products.masked_fill(~visible[:, None], float("-inf")).softmax(-1)
    heads = weights @ v
    return module.out_proj(heads.transpose(1, 2).flatten(2)), weights


def gradients_of(output, x, module):
    return torch.autograd.grad(output.square().sum(), [x, *module.parameters()])


def assert_same_output_and_gradients(y, expected, x, module):
    torch.testing.assert_close(y, expected)
    gradients = gradients_of(y, x, module)
    for gradient, expected_gradient in zip(gradients, gradients_of(expected, x, module), strict=True):
        torch.testing.assert_close(gradient, expected_gradient)


def everything(shape):
    return torch.ones(shape, dtype=torch.bool)


def lower_triangle(shape):
    return torch.ones(shape, dtype=torch.bool).tril()


def all_but_padding(shape):
    """Return what a batch of this shape (B, T, S) may look at, if row 1 begins with two tokens of padding."""
    visible = torch.ones(shape, dtype=torch.bool)
    visible[1, :, :2] = False
    return visible


def as_bool(visible):
    return visible[:, None]  # the same for all heads


def as_numbers(visible):
    return additive_mask(visible[:, None], torch.float64)


def no_mask(visible):
    return None


def draw_states(length, width=WIDTH):
    return torch.randn(3, length, width, dtype=torch.float64, requires_grad=True)


every_mask = pytest.mark.parametrize(
    ("what_is_visible", "make_mask"),
    [(everything, no_mask), (lower_triangle, as_bool), (all_but_padding, as_bool), (all_but_padding, as_numbers)],
)


@every_mask
def test_self_attention_is_its_formula(what_is_visible, make_mask):
    """Output, weights and gradients equal the formula's."""
    module = drawn_attention()
    x = draw_states(length=5)
    visible = what_is_visible((3, 5, 5))
    weights = []

    y = module(x, mask=make_mask(visible), alignment=weights)

    expected, expected_weights = attention_by_formula(module, x, x, visible)
    assert_same_output_and_gradients(y, expected, x, module)
    assert torch.allclose(weights[0], expected_weights.float(), atol=1e-6)


@every_mask
def test_cross_attention_is_its_formula(what_is_visible, make_mask):
    """Output, weights and gradients equal the formula's; the source has another length and width."""
    module = drawn_attention(source_dim=6)
    x = draw_states(length=5)
    source = draw_states(length=7, width=6)
    visible = what_is_visible((3, 5, 7))
    weights = []

    y = module(x, source, make_mask(visible), alignment=weights)

    expected, expected_weights = attention_by_formula(module, x, source, visible)
    assert_same_output_and_gradients(y, expected, x, module)
    assert torch.allclose(weights[0], expected_weights.float(), atol=1e-6)


def test_causal_attention_is_its_formula():
    """The module makes the mask by itself."""
    module = drawn_attention()
    x = draw_states(length=5)

    y = module(x, causal=True)

    expected, _ = attention_by_formula(module, x, x, lower_triangle((3, 5, 5)))
    assert_same_output_and_gradients(y, expected, x, module)


def test_arguments_of_fairseqs_attention_are_refused_by_name_in_one_line():
    x = torch.randn(3, 5, WIDTH)

    with pytest.raises(TypeError) as caught:
        drawn_attention()(query=x, key=x, need_weights=False)

    message = str(caught.value)
    assert "\n" not in message
    for argument in ("query", "key", "need_weights"):
        assert argument in message


def test_output_and_gradient_are_finite_where_a_query_may_look_nowhere():
    module = drawn_attention()
    x = draw_states(length=5)
    nothing_visible = torch.zeros(3, 1, 1, 5, dtype=torch.bool)

    y = module(x, mask=additive_mask(nothing_visible, torch.float64))
    y.sum().backward()

    assert torch.isfinite(y).all()
    assert torch.isfinite(x.grad).all()


def test_alignment_weights_in_half_precision_are_float32_and_do_not_overflow():
    """The product of query and key, 90,000, is beyond float16's 65,504. The query is divided by sqrt(d) first."""
    q = torch.full((1, 1, 1, 4), 150.0).half()  # (B, heads, T, d)
    three_equal_keys = q.expand(1, 1, 3, 4)

    weights = attention_weights(q, three_equal_keys, mask=None)

    assert weights.dtype == torch.float32
    assert torch.allclose(weights, torch.full((3,), 1 / 3))


def test_dropout_draws_from_torchs_generator():
    dropout = Dropout(0.3).train()
    x = torch.ones(70, 50)

    torch.manual_seed(1)
    first = dropout(x)
    torch.manual_seed(1)
    with_the_same_seed = dropout(x)
    next_draw = dropout(x)

    assert torch.equal(with_the_same_seed, first)
    assert not torch.equal(next_draw, first)


def test_dropout_drops_its_share_and_scales_the_rest():
    dropout = Dropout(0.3).train()

    torch.manual_seed(1)
    y = dropout(torch.ones(70, 50))

    share = (y == 0).float().mean().item()
    assert share == pytest.approx(0.3, abs=0.05)
    assert y.unique().tolist() == pytest.approx([0, 1 / (1 - 0.3)], rel=1e-4)


def test_dropouts_gradient_has_the_mask_of_its_output():
    x = torch.ones(70, 50, requires_grad=True)

    y = Dropout(0.3).train()(x)
    y.sum().backward()

    mask = y.detach()  # because x is 1
    assert torch.equal(x.grad, mask)


def test_dropout_does_nothing_in_evaluation():
    x = torch.ones(70, 50)

    assert Dropout(0.3).eval()(x) is x


class Adapter(nn.Module):
    """Low-rank adapter around a matrix, as peft libraries insert it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2)
        self.up = nn.Linear(2, base.out_features)
        self.in_features = base.in_features

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def attentions_of(layer):
    """Return a layer's self-attention, and its cross-attention if it has one."""
    attentions = [layer.self_attn]
    if getattr(layer, "encoder_attn", None):
        attentions.append(layer.encoder_attn)
    return attentions


@pytest.fixture
def adapted_model():
    """Provide a translator of 2-2 layers with an adapter around every query, value and first matrix of a FFN."""
    model = small(2)
    for layer in [*model.encoder.layers, *model.decoder.layers]:
        layer.fc1 = Adapter(layer.fc1)
        for attention in attentions_of(layer):
            attention.q_proj = Adapter(attention.q_proj)
            attention.v_proj = Adapter(attention.v_proj)
    return model


def test_adapters_act_in_decoding_as_in_a_whole_pass(adapted_model):
    """Decoding with a cache takes one token at a time."""
    src, prev = batch()
    real = prev.ne(PAD)

    with torch.no_grad():
        whole = adapted_model(src, None, prev)[0]
        steps = step_by_step(adapted_model, prev, adapted_model.encoder(src))

    torch.testing.assert_close(steps[real], whole[real], atol=1e-5, rtol=1e-5)


def test_every_parameter_of_an_adapter_gets_a_gradient(adapted_model):
    src, prev = batch()
    adapters = [module for module in adapted_model.modules() if isinstance(module, Adapter)]

    adapted_model.train()(src, None, prev)[0].square().mean().backward()

    attentions = 2 * 1 + 2 * 2  # of two encoder layers and of two decoder layers
    feed_forwards = 4
    assert len(adapters) == 2 * attentions + feed_forwards
    for adapter in adapters:
        for parameter in (*adapter.down.parameters(), *adapter.up.parameters()):
            assert parameter.grad.any()


@pytest.fixture
def quantised_model():
    """Provide small(2), a translator of 2-2 layers, in int8 by torch's dynamic quantisation."""
    return torch.ao.quantization.quantize_dynamic(small(2), {nn.Linear}, dtype=torch.qint8)


def test_dynamic_quantisation_finds_every_matrix(quantised_model):
    replaced = []
    for module in quantised_model.modules():
        if "quantized" in type(module).__module__ and hasattr(module, "scale"):
            replaced.append(module)

    in_encoder_layers = 2 * (4 + 2)  # of self-attention and feed-forward
    in_decoder_layers = 2 * (4 + 4 + 2)
    output_projection = 1
    assert len(replaced) == in_encoder_layers + in_decoder_layers + output_projection


def test_a_quantised_models_scores_are_near_those_in_float32(quantised_model):
    src, prev = batch()

    with torch.no_grad():
        quantised = quantised_model(src, None, prev)[0]
        expected = small(2)(src, None, prev)[0]

    assert expected.std() > 0.5
    assert (quantised - expected).abs().max() < 0.5
