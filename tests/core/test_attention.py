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
    """Build an attention in float64 of width 8, which reads a source of another width if one is given."""
    module = Attention(WIDTH, HEADS, 0.0, source_dim, None, None, bias=True).double()
    torch.manual_seed(0)
    for parameter in module.parameters():
        draw_normal(parameter.data, 0.3)
    return module


def split_heads(y):
    return y.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def attention_by_formula(module, x, source, visible):
    """Compute softmax(q k / sqrt(d)) v of each head, with -inf where `visible` (B, T, S) is False.

    Returns the output and the weights of each head.
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


def padded_at_the_beginning(shape):
    """Return what a batch of this shape (B, T, S) may look at, if row 1 begins with two tokens of padding."""
    visible = torch.ones(shape, dtype=torch.bool)
    visible[1, :, :2] = False
    return visible


@pytest.mark.parametrize("form", ["causal", "none", "bool", "numbers"])
@pytest.mark.parametrize("source_dim", [None, 6])
def test_attention_is_its_formula(form, source_dim):
    """Output, weights and gradients of self- and cross-attention equal the formula's, for every form of a mask."""
    module = drawn_attention(source_dim or WIDTH)
    x = torch.randn(3, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    source = None
    if source_dim is not None:
        source = torch.randn(3, 7, source_dim, dtype=torch.float64, requires_grad=True)
    read = x if source is None else source
    shape = (3, 5, read.size(1))

    if form == "causal":
        visible = torch.ones(shape, dtype=torch.bool).tril()
        mask = None if source is None else visible[:, None]
    elif form == "none":
        visible = torch.ones(shape, dtype=torch.bool)
        mask = None
    else:
        visible = padded_at_the_beginning(shape)
        mask = visible[:, None] if form == "bool" else additive_mask(visible[:, None], torch.float64)
    by_flag = form == "causal" and source is None  # the module makes that mask, and returns no weights
    weights = []

    y = module(x, source, mask, causal=by_flag, alignment=None if by_flag else weights)
    expected, expected_weights = attention_by_formula(module, x, read, visible)

    torch.testing.assert_close(y, expected)
    if not by_flag:
        assert torch.allclose(weights[0], expected_weights.float(), atol=1e-6)
    gradients = gradients_of(y, x, module)
    for gradient, expected_gradient in zip(gradients, gradients_of(expected, x, module), strict=True):
        torch.testing.assert_close(gradient, expected_gradient)


def test_arguments_of_fairseqs_attention_are_refused_in_one_line():
    x = torch.randn(3, 5, WIDTH)

    with pytest.raises(TypeError, match="^[^\n]*query, key, need_weights$"):
        drawn_attention()(query=x, key=x, need_weights=False)


def test_a_query_that_may_look_nowhere_gives_numbers():
    """Output and gradient are finite."""
    module = drawn_attention()
    x = torch.randn(3, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    nothing_visible = torch.zeros(3, 1, 1, 5, dtype=torch.bool)

    y = module(x, mask=additive_mask(nothing_visible, torch.float64))
    y.sum().backward()

    assert torch.isfinite(y).all()
    assert torch.isfinite(x.grad).all()


def test_alignment_weights_are_computed_in_float32():
    """The product of these queries and keys is beyond float16's range."""
    q = torch.full((1, 1, 1, 4), 100.0).half()
    keys = q.expand(1, 1, 3, 4)

    weights = attention_weights(q, keys, None)

    assert weights.dtype == torch.float32
    assert torch.allclose(weights, torch.full((3,), 1 / 3))


def test_dropout_draws_from_torchs_generator():
    dropout = Dropout(0.3).train()
    x = torch.ones(70, 50)

    torch.manual_seed(1)
    first = dropout(x)
    torch.manual_seed(1)
    again = dropout(x)
    another = dropout(x)

    assert torch.equal(first, again)
    assert not torch.equal(first, another)


def test_dropout_drops_its_share_and_scales_the_rest():
    torch.manual_seed(1)
    y = Dropout(0.3).train()(torch.ones(70, 50))

    assert y.unique().tolist() == pytest.approx([0, 1 / 0.7], rel=1e-4)
    assert 0.25 < (y == 0).float().mean() < 0.35


def test_dropouts_gradient_has_the_mask_of_its_output():
    x = torch.ones(70, 50, requires_grad=True)

    y = Dropout(0.3).train()(x)
    y.sum().backward()

    assert torch.equal(x.grad, y.detach())


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
    src, prev = batch()
    real = prev.ne(PAD)

    with torch.no_grad():
        whole = adapted_model(src, None, prev)[0]
        steps = step_by_step(adapted_model, prev, adapted_model.encoder(src))

    torch.testing.assert_close(steps[real], whole[real], atol=1e-5, rtol=1e-5)


def test_adapters_train_in_all_their_parts(adapted_model):
    src, prev = batch()
    adapters = [module for module in adapted_model.modules() if isinstance(module, Adapter)]

    adapted_model.train()(src, None, prev)[0].square().mean().backward()

    attentions = 2 + 2 * 2  # two encoder layers have one, two decoder layers two
    assert len(adapters) == 2 * attentions + 4
    for adapter in adapters:
        for part in (adapter.down, adapter.up):
            for parameter in part.parameters():
                assert parameter.grad.abs().sum() > 0


def test_dynamic_quantisation_finds_every_matrix():
    model = small(2)
    matrices = [module for module in model.modules() if isinstance(module, nn.Linear)]
    src, prev = batch()

    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)

    replaced = []
    for module in quantised.modules():
        if "quantized" in type(module).__module__ and hasattr(module, "scale"):
            replaced.append(module)
    in_encoder_layers = 2 * 6
    in_decoder_layers = 2 * 10
    assert len(matrices) == in_encoder_layers + in_decoder_layers + 1  # and the projection to the vocabulary
    assert len(replaced) == len(matrices)
    with torch.no_grad():
        difference = quantised(src, None, prev)[0] - model(src, None, prev)[0]
    assert difference.abs().max() < 0.5
