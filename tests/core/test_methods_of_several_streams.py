"""Tests of methods whose layers read more than one stream, each against its paper's formulas.

The models that are compared with formulas are causal language models of width 16 with noise on all parameters, whose
layers have the branches f self-attention and feed-forward. Streams are stored side by side in one tensor.
"""

from __future__ import annotations

import math

import pytest
import torch

from deepnet_fairseq.core.archs import LM, MODEL_NAME
from deepnet_fairseq.core.initialisation import branch_weights
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.methods.mhc import Write, sinkhorn
from deepnet_fairseq.core.slots import Site

from ..support import observing
from ..support.single_stacks import EVERY_KIND as EVERY_KIND
from ..support.single_stacks import batch, embedding, inputs, noisy_model, scores, small


def gradients(model, loss) -> dict[str, torch.Tensor]:
    """Compute the gradients of the parameters that the loss depends on, by name."""
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    grads = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(trained, grads, strict=True) if gradient is not None}


def branch(layer, sublayer, x):
    """Compute a branch f(x) without its norms: matrices, attention or ReLU, matrix."""
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
    """Check the hidden states and the output of a decoder.

    states: the streams, (B, T, C) each in a tuple, in front of the first layer and after each layer; features: the
    output (B, T, C), which the projection to the vocabulary reads.
    """
    with torch.no_grad():
        output, extra = model.decoder(tokens, features_only=True, return_all_hiddens=True)

    assert torch.allclose(output, features, atol=1e-5)
    for state, streams in zip(extra["inner_states"], states, strict=True):
        assert torch.allclose(state.transpose(0, 1), torch.cat(streams, -1), atol=1e-5)


def assert_branch_dependencies(model, tokens, shares):
    """Check the probe branch_dependency, observed in an update on `tokens`.

    shares: of the variance of each residual sum, by address of the branch ("decoder.2.ffn").
    """
    fixed_batch = {"src_tokens": tokens, "src_lengths": None}  # which `observe` needs, and this probe does not read
    values = observing.observe(
        model, [tokens], "branch_dependency", loss=lambda model, tokens: model(tokens)[0].sum(), held_out=fixed_batch
    )
    assert values["branch_dependency"] == pytest.approx(shares, rel=1e-3)


every_denseformer = pytest.mark.parametrize(
    ("dilation", "period"), [(1, 1), (2, 1), (1, 3), (2, 2), (4, 5)]
)  # (4, 5) is the paper's choice for 48 layers


def denseformer(dilation, period):
    """Build a DenseFormer of 7 layers, which is DLCL without norms on outputs."""
    fields = {"dlcl_plain": True, "dlcl_init": "last", "dlcl_dilation": dilation, "dlcl_period": period}
    return noisy_model(LM, 7, method="dlcl", **fields)


def denseformer_by_formula(decoder, tokens, dilation, period):
    """Compute the scores (B, T, V) of a DenseFormer with its own layers and weights A."""
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


@every_denseformer
def test_denseformers_scores_and_gradients_are_its_formulas(dilation, period):
    """DenseFormer's layer l + 1 reads sum_j A_lj y_j over j = l, l - k, .. where p divides l > 0, else y_l.

    k is the dilation, p the period, y_j the output of layer j.
    """
    model = denseformer(dilation, period)
    tokens = batch()[:, :-1]

    actual = model(tokens)[0]
    expected = denseformer_by_formula(model.decoder, tokens, dilation, period)
    actual_gradients = gradients(model, actual.square().mean())
    expected_gradients = gradients(model, expected.square().mean())

    assert torch.allclose(actual, expected, atol=1e-5)
    assert actual_gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        assert torch.allclose(actual_gradients[name], gradient, atol=1e-5), name


@every_denseformer
def test_denseformer_has_only_the_layer_norms_of_pre_ln(dilation, period):
    model = denseformer(dilation, period)

    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]

    assert len(norms) == 7 * 2 + 1  # one a branch, and one at the end


@pytest.mark.parametrize("s", [1.0, 0.25])
def test_resi_dual_is_its_formula(s):
    """ResiDual computes x' = LN(x + f(x)) and r' = r + s f(x) from x = e, r = s e, and ends with x + LN(r).

    e is the embedding.
    """
    model = noisy_model(LM, method="resi_dual", resi_dual_scale=s)
    tokens = batch()[1:]  # without padding
    decoder = model.decoder
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
        features = x + layer_norm(r, decoder.ending.norm)

    assert_states_and_features(model, tokens, states, features)
    assert_branch_dependencies(model, tokens, shares)


def test_resi_duals_last_norm_has_a_smaller_eps():
    """The authors' code has the smaller eps, because the scale s may make the input of the norm small."""
    decoder = small(LM, method="resi_dual").decoder

    assert decoder.ending.norm.eps == 1e-7
    assert decoder.layers[0].residual["ffn"].norm.eps == 1e-5


def test_siamese_norm_is_its_formula():
    """SiameseNorm computes o = f(LN(x + LN(y))), x' = LN(x + o / sqrt(2l)) and y' = y + o in layer l.

    It begins with y = e, the embedding, and x = LN(e), and ends with LN(x + LN(y)).
    """
    model = noisy_model(LM, 3, method="siamese_norm")
    tokens = batch()[1:]  # without padding
    decoder = model.decoder
    shares = {}

    def merge_streams(module, x, y):
        return layer_norm(x + layer_norm(y, module.inner), module.outer)

    with torch.no_grad():
        y = embedding(decoder, tokens)
        x = layer_norm(y, decoder.beginning.norm)
        states = [(x, y)]
        for l, layer in enumerate(decoder.layers, 1):
            for sublayer, site in layer.sites.items():
                o = branch(layer, sublayer, merge_streams(layer.before[sublayer], x, y))
                scaled = o / math.sqrt(2 * l)
                shares[str(site)] = variance_share(scaled, x + scaled)
                x = layer_norm(x + scaled, layer.residual[sublayer].norm)
                y = y + o
            states.append((x, y))
        features = merge_streams(decoder.ending, x, y)

    assert_states_and_features(model, tokens, states, features)
    assert_branch_dependencies(model, tokens, shares)


@pytest.mark.parametrize(
    ("depths", "stack", "layer", "sublayer", "branches"),  # depths: layers of encoder and decoder
    [
        ((18, 18), "decoder", 12, "self_attn", 3 * 12),
        ((18, 18), "decoder", 12, "encoder_attn", 3 * 12),
        ((18, 18), "decoder", 12, "ffn", 3 * 12),
        ((18, 18), "encoder", 18, "ffn", 2 * 18),
        ((0, 8), "decoder", 8, "ffn", 2 * 8),  # a language model's decoder has no cross-attention
    ],
)
def test_siamese_norm_divides_by_the_root_of_the_branches_so_far(depths, stack, layer, sublayer, branches):
    """Each branch of layer l counts all branches of layers 1 to l."""
    site = Site(stack, layer, sublayer, dim=8, num_heads=2)

    residual = METHODS["siamese_norm"](*depths).residual(site)

    factor_on_branch = residual.a  # in the sum of the stream x
    assert factor_on_branch == pytest.approx(1 / math.sqrt(branches))


def test_b2t_is_its_formula():
    """A layer's first branch gives LN(x + f(x)), its second LN(entry + x + f(x)), with entry the layer's input."""
    model = noisy_model(LM, method="b2t")
    tokens = batch()[1:]  # without padding
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
    gains = {"encoder": 4**-0.5, "decoder": 9**-0.5}

    plain = branch_weights(small(MODEL_NAME, **fields, b2t_rescale=False))
    rescaled = branch_weights(small(MODEL_NAME, **fields, b2t_rescale=True))

    for before, after in zip(plain, rescaled, strict=True):
        gain = gains[before.site.stack]
        assert torch.allclose(after.linear.weight, gain * before.linear.weight)
        assert torch.equal(after.linear.bias, before.linear.bias)


def test_b2ts_gain_is_listed_among_its_coefficients():
    method = METHODS["b2t"](100, 6, rescale=True)

    assert method.coefficients("encoder") == {"gain": pytest.approx(100**-0.5)}


def maps_by_formula(maps, streams):
    """Compute the logits h = b + a phi X / rms(X) of mHC's maps H of streams X (.., n, C).

    maps: the module that has phi, b and a of several H, one below the other. Returns each h in the shape of its H.
    """
    flat = streams.flatten(-2)
    rms = (flat.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    products = flat / rms @ maps.weight.T  # phi X / rms(X) of all maps

    sizes = [shape.numel() for shape in maps.shapes]
    computed = []
    biases = maps.bias.split(sizes)
    products_of_maps = products.split(sizes, -1)
    for a, b, product, shape in zip(maps.a, biases, products_of_maps, maps.shapes, strict=True):
        computed.append((b + a * product).unflatten(-1, shape))
    return computed


def doubly_stochastic(logits):
    """Compute exp(logits), and normalise columns, then rows, to sum 1, 20 times; (.., n, n)."""
    h = logits.exp()
    for _ in range(20):
        h = h / h.sum(-2, keepdim=True)
        h = h / h.sum(-1, keepdim=True)
    return h


@pytest.mark.parametrize("n", [1, 4])
def test_mhc_is_its_formula(n):
    """mHC computes X' = H_res X + H_post f(LN(H_pre X)) from n copies X of the embedding, and ends with LN(H_pre X).

    H_pre is the sigmoid of its logits, H_post twice the sigmoid, and H_res is doubly stochastic.
    """
    model = noisy_model(LM, method="mhc", mhc_streams=n)
    tokens = batch()[1:]  # without padding
    decoder = model.decoder
    shares = {}

    def read_streams(module, streams):
        (pre,) = maps_by_formula(module.h, streams)
        h_pre = pre.sigmoid()  # (B, T, 1, n)
        read = (h_pre @ streams).squeeze(-2)  # (B, T, C)
        return layer_norm(read, module.norm)

    with torch.no_grad():
        streams = torch.stack([embedding(decoder, tokens)] * n, -2)  # X (B, T, n, C)
        states = [streams.unbind(-2)]
        for layer in decoder.layers:
            for sublayer, site in layer.sites.items():
                post, res = maps_by_formula(layer.residual[sublayer].h, streams)
                h_post = 2 * post.sigmoid()  # (B, T, n, 1)
                h_res = doubly_stochastic(res)  # (B, T, n, n)
                f = branch(layer, sublayer, read_streams(layer.before[sublayer], streams))
                written = h_post * f.unsqueeze(-2)
                streams = h_res @ streams + written
                shares[str(site)] = variance_share(written, streams)
            states.append(streams.unbind(-2))
        features = read_streams(decoder.ending, streams)

    assert_states_and_features(model, tokens, states, features)
    assert_branch_dependencies(model, tokens, shares)


@pytest.mark.parametrize("std", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_sinkhorns_rows_sum_to_one_and_its_columns_nearly(n, std):
    logits = std * torch.randn(50, n, n, generator=torch.Generator().manual_seed(0))

    h = sinkhorn(logits)

    assert (h >= 0).all()
    assert torch.allclose(h.sum(-1), torch.ones(50, n), atol=1e-5)
    assert (h.sum(-2) - 1).abs().max() < 0.05


@pytest.mark.parametrize("n", [2, 4, 8])
def test_mhcs_first_residual_map_is_nearly_the_identity(n):
    """The bias of H_res is 4 on the diagonal and -4 off it. Exponentials off the diagonal are e^-8 of those on it."""
    bias = Write(8, n).h.bias.detach()
    bias_of_h_res = bias[n:].view(n, n)  # the first n numbers are H_post's

    h_res = sinkhorn(bias_of_h_res)

    apart = math.exp(-8)
    unnormalised = torch.eye(n) + apart * (1 - torch.eye(n))
    row_sum = 1 + (n - 1) * apart
    assert torch.allclose(h_res, unnormalised / row_sum, atol=1e-6)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_mhc_begins_as_pre_ln(kind):
    """All streams are equal at first: H_res keeps them, LN(H_pre X) is LN of one of them, and H_post is one."""
    mhc = small(kind, 3, method="mhc")
    pre_ln = small(kind, 3, method="pre_ln")
    pre_ln.load_state_dict(mhc.state_dict(), strict=False)  # without the maps

    scores_of_mhc = scores(mhc, *inputs(kind))

    assert torch.allclose(scores_of_mhc, scores(pre_ln, *inputs(kind)), atol=1e-4)
