"""Tests of methods whose layers read more than one stream, each against its paper's formulas."""

from __future__ import annotations

import math

import pytest
import torch

from deepnet_fairseq.core.archs import LM, MODEL_NAME
from deepnet_fairseq.core.initialisation import branch_weights
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.methods.mhc import Write, sinkhorn
from deepnet_fairseq.core.slots import BRANCHES, Site

from ..support import observing
from ..support.single_stacks import EVERY, batch, inputs, noisy_model, scores, small


def gradients(model, loss) -> dict[str, torch.Tensor]:
    """Compute the gradients of the parameters that the loss depends on, by name."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    grads = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(trained, grads, strict=True) if gradient is not None}


def embedding(decoder, tokens):
    """Compute what the first layer reads."""
    return decoder.embed(tokens, decoder.positions(tokens))[0]


def branch(layer, sublayer, x):
    """Compute a branch f(x) of a layer of a causal language model, from q, k, v or fc1 to out or fc2."""
    if sublayer == "ffn":
        return layer.fc2(layer.fc1(x).relu())
    return layer.self_attn(x, causal=True)


def layer_norm(x, norm):
    """Compute LayerNorm by its formula with the numbers of a module."""
    centred = x - x.mean(-1, keepdim=True)
    std = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return centred / std * norm.weight + norm.bias


def variance_share(part, whole):
    """Compute Var(part) / Var(whole), which the probe branch_dependency reports."""
    return (part.var() / whole.var()).item()


def assert_states_and_features(model, tokens, states, features):
    """Check the hidden states of every layer, as tuples of streams, and the decoder's output."""
    with torch.no_grad():
        output, extra = model.decoder(tokens, features_only=True, return_all_hiddens=True)

    assert torch.allclose(output, features, atol=1e-5)
    for state, streams in zip(extra["inner_states"], states, strict=True):
        assert torch.allclose(state.transpose(0, 1), torch.cat(streams, -1), atol=1e-5)


def assert_branch_dependencies(model, tokens, expected):
    """Check the values of the probe branch_dependency, by site."""
    held = {"src_tokens": tokens, "src_lengths": None}
    values = observing.observe(
        model, [tokens], "branch_dependency", loss=lambda model, tokens: model(tokens)[0].sum(), held=held
    )
    assert values["branch_dependency"] == pytest.approx(expected, rel=1e-3)


DENSE = [(1, 1), (2, 1), (1, 3), (2, 2), (4, 5)]  # dilation and period; (4, 5) is the paper's choice for depth 48


def denseformer(dilation, period):
    fields = {"dlcl_plain": True, "dlcl_init": "last", "dlcl_dilation": dilation, "dlcl_period": period}
    return noisy_model(LM, 7, method="dlcl", **fields)


def denseformer_by_formula(decoder, tokens, dilation, period):
    x = embedding(decoder, tokens)
    outputs = [x]
    for l, layer in enumerate(decoder.layers, 1):
        y = layer(x, None)
        outputs.append(y)
        if l % period == 0:
            weights = decoder.mixer.weights.weight[l]
            x = sum(weights[j] * outputs[j] for j in range(l, -1, -dilation))
        else:
            x = y
    return decoder.output_layer(decoder.layer_norm(x))


@pytest.mark.parametrize("dilation, period", DENSE)
def test_denseformers_scores_and_gradients_are_its_formulas(dilation, period):
    """DenseFormer's layer l + 1 reads sum_j A_lj y_j over j = l, l - k, .. where p divides l > 0, else y_l."""
    model = denseformer(dilation, period)
    tokens = batch()[:, :-1]

    actual = model(tokens)[0]
    expected = denseformer_by_formula(model.decoder, tokens, dilation, period)
    ours = gradients(model, actual.square().mean())
    theirs = gradients(model, expected.square().mean())

    assert torch.allclose(actual, expected, atol=1e-5)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert torch.allclose(ours[name], gradient, atol=1e-5), name


@pytest.mark.parametrize("dilation, period", DENSE)
def test_denseformer_does_not_normalise_outputs(dilation, period):
    norms = denseformer(dilation, period).decoder.mixer.norms

    assert not any(isinstance(norm, torch.nn.LayerNorm) for norm in norms)


@pytest.mark.parametrize("s", [1.0, 0.25])
def test_resi_dual_is_its_formula(s):
    """ResiDual computes x' = LN(x + f), r' = r + s f and ends with x + LN(r)."""
    model = noisy_model(LM, method="resi_dual", resi_dual_scale=s)
    tokens = batch()[1:]
    decoder = model.decoder
    end = decoder.ending.norm
    shares = {}

    with torch.no_grad():
        x = embedding(decoder, tokens)
        r = s * x
        states = [(x, r)]
        for layer in decoder.layers:
            for sublayer, site in layer.sites.items():
                f = branch(layer, sublayer, x)
                shares[str(site)] = variance_share(f, x + f)
                x = layer_norm(x + f, layer.residual[sublayer].norm)
                r = r + s * f
            states.append((x, r))

    assert_states_and_features(model, tokens, states, x + layer_norm(r, end))
    assert_branch_dependencies(model, tokens, shares)


def test_resi_duals_last_norm_has_a_smaller_eps():
    decoder = small(LM, method="resi_dual").decoder

    assert decoder.ending.norm.eps == 1e-7
    assert decoder.layers[0].residual["ffn"].norm.eps == 1e-5


def test_siamese_norm_is_its_formula():
    """SiameseNorm computes o = f(LN(x + LN(y))), x' = LN(x + o / sqrt(2l)), y' = y + o, as in its paper."""
    model = noisy_model(LM, 3, method="siamese_norm")
    tokens = batch()[1:]
    decoder = model.decoder
    shares = {}

    def merge(module, x, y):
        return layer_norm(x + layer_norm(y, module.inner), module.outer)

    with torch.no_grad():
        y = embedding(decoder, tokens)
        x = layer_norm(y, decoder.beginning.norm)
        states = [(x, y)]
        for l, layer in enumerate(decoder.layers, 1):
            for sublayer, site in layer.sites.items():
                o = branch(layer, sublayer, merge(layer.before[sublayer], x, y))
                scaled = o / math.sqrt(2 * l)
                shares[str(site)] = variance_share(scaled, x + scaled)
                x = layer_norm(x + scaled, layer.residual[sublayer].norm)
                y = y + o
            states.append((x, y))
        features = merge(decoder.ending, x, y)

    assert_states_and_features(model, tokens, states, features)
    assert_branch_dependencies(model, tokens, shares)


@pytest.mark.parametrize(
    ("depths", "site", "branches"),
    [
        *(((18, 18), Site("decoder", 12, sublayer, 8, 2), 36) for sublayer in BRANCHES),  # 3 a layer
        ((18, 18), Site("encoder", 18, "ffn", 8, 2), 36),  # 2 a layer
        ((0, 8), Site("decoder", 8, "ffn", 8, 2), 16),  # a language model's decoder has no cross-attention
    ],
)
def test_siamese_norm_divides_by_the_root_of_the_branches_so_far(depths, site, branches):
    residual = METHODS["siamese_norm"](*depths).residual(site)

    assert residual.a == pytest.approx(1 / math.sqrt(branches))


def test_b2t_is_its_formula():
    """B2T's second branch of a layer gives LN(entry + x + f(x)), with entry the layer's input."""
    model = noisy_model(LM, method="b2t")
    tokens = batch()[1:]
    decoder = model.decoder
    shares = {}

    with torch.no_grad():
        x = embedding(decoder, tokens)
        states = [(x,)]
        for layer in decoder.layers:
            entry = x
            f = branch(layer, "self_attn", x)
            shares[str(layer.sites["self_attn"])] = variance_share(f, x + f)
            x = layer_norm(x + f, layer.self_attn_layer_norm)
            f = branch(layer, "ffn", x)
            shares[str(layer.sites["ffn"])] = variance_share(f, entry + x + f)
            x = layer_norm(entry + x + f, layer.final_layer_norm)
            states.append((x,))

    assert_states_and_features(model, tokens, states, x)
    assert_branch_dependencies(model, tokens, shares)


def test_b2ts_rescaling_multiplies_matrices_and_no_bias():
    """B2T's rescaling multiplies all matrices of branches by N^(-1/2), N the layers of the stack."""
    fields = {"method": "b2t", "encoder_layers": 4, "decoder_layers": 9}
    gains = {"encoder": 1 / 2, "decoder": 1 / 3}
    plain = branch_weights(small(MODEL_NAME, **fields, b2t_rescale=False))
    rescaled = branch_weights(small(MODEL_NAME, **fields, b2t_rescale=True))

    for before, after in zip(plain, rescaled, strict=True):
        gain = gains[before.site.stack]
        assert torch.allclose(after.linear.weight, gain * before.linear.weight)
        assert torch.equal(after.linear.bias, before.linear.bias)


def test_b2ts_gain_is_listed_among_its_coefficients():
    method = METHODS["b2t"](100, 6, rescale=True)

    assert method.coefficients("encoder") == {"gain": pytest.approx(0.1)}


def maps_by_formula(maps, streams):
    """Compute the maps b + a phi X / rms(X) of streams X (.., n, C), each in its shape."""
    flat = streams.flatten(-2)
    rms = (flat.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    products = torch.einsum("...w,mw->...m", flat / rms, maps.weight)

    computed = []
    first = 0
    for shape, a in zip(maps.shapes, maps.a, strict=True):
        own = slice(first, first + shape.numel())
        first = own.stop
        computed.append((maps.bias[own] + a * products[..., own]).unflatten(-1, shape))
    return computed


def doubly_stochastic(logits):
    """Normalise columns, then rows, to sum 1, 20 times."""
    h = logits.exp()
    for _ in range(20):
        h = h / h.sum(-2, keepdim=True)
        h = h / h.sum(-1, keepdim=True)
    return h


@pytest.mark.parametrize("n", [1, 4])
def test_mhc_is_its_formula(n):
    """mHC computes X' = H_res X + H_post f(LN(H_pre X)) from n copies of the embedding."""
    model = noisy_model(LM, method="mhc", mhc_streams=n)
    tokens = batch()[1:]
    decoder = model.decoder
    shares = {}

    def read_streams(module, streams):
        (pre,) = maps_by_formula(module.h, streams)
        read = torch.einsum("btn,btnc->btc", pre.squeeze(-2).sigmoid(), streams)
        return layer_norm(read, module.norm)

    with torch.no_grad():
        streams = torch.stack([embedding(decoder, tokens)] * n, -2)
        states = [streams.unbind(-2)]
        for layer in decoder.layers:
            for sublayer, site in layer.sites.items():
                post, res = maps_by_formula(layer.residual[sublayer].h, streams)
                h_post = 2 * post.squeeze(-1).sigmoid()
                h_res = doubly_stochastic(res)
                f = branch(layer, sublayer, read_streams(layer.before[sublayer], streams))
                written = torch.einsum("btn,btc->btnc", h_post, f)
                streams = torch.einsum("btmn,btnc->btmc", h_res, streams) + written
                shares[str(site)] = variance_share(written, streams)
            states.append(streams.unbind(-2))
        features = read_streams(decoder.ending, streams)

    assert_states_and_features(model, tokens, states, features)
    assert_branch_dependencies(model, tokens, shares)


@pytest.mark.parametrize("width", [0.1, 1.0, 3.0])  # standard deviation of the logits
@pytest.mark.parametrize("n", [2, 4, 8])
def test_sinkhorns_rows_sum_to_one_and_its_columns_nearly(n, width):
    generator = torch.Generator().manual_seed(0)
    h = sinkhorn(width * torch.randn(50, n, n, generator=generator))

    assert (h >= 0).all()
    assert torch.allclose(h.sum(-1), torch.ones(50, n), atol=1e-5)
    assert (h.sum(-2) - 1).abs().max() < 0.05


@pytest.mark.parametrize("n", [2, 4, 8])
def test_mhcs_first_residual_map_is_nearly_the_identity(n):
    """The bias is 4 on the diagonal and -4 elsewhere, so that numbers apart from it are e^-8 of those on it."""
    bias = Write(8, n).h.bias[n:].detach().view(n, n)
    apart = math.exp(-8)
    row_sum = 1 + (n - 1) * apart
    unnormalised = torch.eye(n) + apart * (1 - torch.eye(n))

    assert torch.allclose(sinkhorn(bias) * row_sum, unnormalised, atol=1e-6)


@pytest.mark.parametrize("kind", EVERY)
def test_mhc_begins_as_pre_ln(kind):
    """mHC begins as Pre-LN: all its streams equal the embedding, and each LayerNorm reads their mean."""
    model = small(kind, 3, method="mhc")
    plain = small(kind, 3, method="pre_ln")
    plain.load_state_dict(model.state_dict(), strict=False)

    assert torch.allclose(scores(model, *inputs(kind)), scores(plain, *inputs(kind)), atol=1e-4)
