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
from ..support.single_stacks import EVERY, awake, batch, inputs, scores, small


def gradients(model, loss) -> dict[str, torch.Tensor]:
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    grads = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(wanted, grads, strict=True) if gradient is not None}


DENSE = [(1, 1), (2, 1), (1, 3), (2, 2), (4, 5)]  # dilation and period; (4, 5) is the paper's choice for depth 48


@pytest.mark.parametrize("dilation, period", DENSE)
def test_denseformer(dilation, period):
    """DenseFormer's layer l + 1 reads sum_j A_lj y_j over j = l, l - k, .. where p divides l > 0, else y_l."""
    fields = {"dlcl_plain": True, "dlcl_init": "last", "dlcl_dilation": dilation, "dlcl_period": period}
    model, tokens = awake(LM, 7, method="dlcl", **fields), batch()
    decoder = model.decoder

    def by_hand(tokens):
        x = decoder.embed(tokens, decoder.positions(tokens))[0]
        outputs = [x]
        for l, layer in enumerate(decoder.layers, 1):
            outputs.append(layer(x, None))
            read = range(l, -1, -dilation) if l % period == 0 else ()
            x = sum(decoder.mixer.weights.weight[l, j] * outputs[j] for j in read) if read else outputs[-1]
        return decoder.output_layer(decoder.layer_norm(x))

    actual, expected = model(tokens[:, :-1])[0], by_hand(tokens[:, :-1])
    assert torch.allclose(actual, expected, atol=1e-5)
    ours, theirs = gradients(model, actual.square().mean()), gradients(model, expected.square().mean())
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in theirs)
    assert not any(isinstance(norm, torch.nn.LayerNorm) for norm in decoder.mixer.norms)


def branch(layer, sublayer, inside):
    """Compute f(inside) of a layer of a language model."""
    if sublayer == "ffn":
        return layer.fc2(layer.fc1(inside).relu())
    return layer.self_attn(inside, causal=True)


def plain_norm(x, norm):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def assert_states(model, tokens, states, features):
    """Check the hidden states on request, with streams side by side, and the output."""
    with torch.no_grad():
        output, extra = model.decoder(tokens, features_only=True, return_all_hiddens=True)
    assert torch.allclose(output, features, atol=1e-5)
    for state, streams in zip(extra["inner_states"], states, strict=True):
        assert torch.allclose(state.transpose(0, 1), torch.cat(streams, -1), atol=1e-5)


def dependencies(model, tokens) -> dict[str, float]:
    held = {"src_tokens": tokens, "src_lengths": None}
    probes = observing.observe(model, [tokens], "branch_dependency", loss=lambda m, t: m(t)[0].sum(), held=held)
    return probes["branch_dependency"]


@pytest.mark.parametrize("s", [1.0, 0.25])
def test_resi_dual(s):
    """ResiDual computes x' = LN(x + f), r' = r + s f and ends with x + LN(r); the probe reports its branches."""
    model, tokens = awake(LM, method="resi_dual", resi_dual_scale=s), batch()[1:]
    decoder, expected = model.decoder, {}
    with torch.no_grad():
        x = decoder.embed(tokens, decoder.positions(tokens))[0]
        r = s * x
        states = [(x, r)]
        for layer in decoder.layers:
            for sublayer, site in layer.sites.items():
                f = branch(layer, sublayer, x)
                expected[str(site)] = (f.var() / (x + f).var()).item()
                x, r = plain_norm(x + f, layer.residual[sublayer].norm), r + s * f
            states.append((x, r))
    end = decoder.ending.norm
    assert (end.eps, decoder.layers[0].residual["ffn"].norm.eps) == (1e-7, 1e-5)
    assert_states(model, tokens, states, x + plain_norm(r, end))
    assert dependencies(model, tokens) == pytest.approx(expected, rel=1e-3)


def test_siamese_norm():
    """SiameseNorm computes o = f(LN(x + LN(y))), x' = LN(x + o / sqrt(2l)), y' = y + o, as in its paper."""
    model, tokens = awake(LM, 3, method="siamese_norm"), batch()[1:]
    decoder, expected = model.decoder, {}

    def merge(module, x, y):
        return plain_norm(x + plain_norm(y, module.inner), module.outer)

    with torch.no_grad():
        y = decoder.embed(tokens, decoder.positions(tokens))[0]
        x = plain_norm(y, decoder.beginning.norm)
        states = [(x, y)]
        for l, layer in enumerate(decoder.layers, 1):
            for sublayer, site in layer.sites.items():
                o = branch(layer, sublayer, merge(layer.before[sublayer], x, y))
                merged = x + o / math.sqrt(2 * l)
                expected[str(site)] = (o.var() / (2 * l) / merged.var()).item()
                x, y = plain_norm(merged, layer.residual[sublayer].norm), y + o
            states.append((x, y))
        assert_states(model, tokens, states, merge(decoder.ending, x, y))
    assert dependencies(model, tokens) == pytest.approx(expected, rel=1e-3)


def test_siamese_norms_factors():
    """SiameseNorm divides by the square root of the branches so far: 2l, or 3l with cross-attention."""
    for sublayer in BRANCHES:
        merged = METHODS["siamese_norm"](18, 18).residual(Site("decoder", 12, sublayer, 8, 2))
        assert merged.a == pytest.approx(1 / 6)
    assert METHODS["siamese_norm"](18, 18).residual(Site("encoder", 18, "ffn", 8, 2)).a == pytest.approx(1 / 6)
    assert METHODS["siamese_norm"](0, 8).residual(Site("decoder", 8, "ffn", 8, 2)).a == pytest.approx(1 / 4)


def test_b2t():
    """B2T's second branch of a layer gives LN(entry + x + f(x)), with entry the layer's input."""
    model, tokens = awake(LM, method="b2t"), batch()[1:]
    decoder, expected = model.decoder, {}
    with torch.no_grad():
        x = decoder.embed(tokens, decoder.positions(tokens))[0]
        states = [(x,)]
        for layer in decoder.layers:
            entry = x
            f = branch(layer, "self_attn", x)
            expected[str(layer.sites["self_attn"])] = (f.var() / (x + f).var()).item()
            x = plain_norm(x + f, layer.self_attn_layer_norm)
            f = branch(layer, "ffn", x)
            expected[str(layer.sites["ffn"])] = (f.var() / (entry + x + f).var()).item()
            x = plain_norm(entry + x + f, layer.final_layer_norm)
            states.append((x,))
        assert_states(model, tokens, states, x)
    assert dependencies(model, tokens) == pytest.approx(expected, rel=1e-3)


def test_b2ts_rescaling():
    """B2T's rescaling multiplies all matrices of branches by N^(-1/2), N the layers of the stack, and no bias."""
    fields = {"encoder_layers": 4, "decoder_layers": 9}
    models = [small(MODEL_NAME, method="b2t", b2t_rescale=rescale, **fields) for rescale in (False, True)]
    for plain, rescaled in zip(*(branch_weights(model) for model in models), strict=True):
        gain = {"encoder": 1 / 2, "decoder": 1 / 3}[plain.site.stack]
        assert torch.allclose(rescaled.linear.weight, gain * plain.linear.weight)
        assert torch.equal(rescaled.linear.bias, plain.linear.bias)
    assert METHODS["b2t"](100, 6, rescale=True).coefficients("encoder") == {"gain": pytest.approx(0.1)}


def mapped(maps, streams):
    """Compute the maps b + a phi X / rms(X), X (.., nC), each in its shape."""
    rms = (streams.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    logits = torch.einsum("...w,mw->...m", streams / rms, maps.weight)
    first = 0
    for shape, a in zip(maps.shapes, maps.a, strict=True):
        own = slice(first, first := first + shape.numel())
        yield (maps.bias[own] + a * logits[..., own]).unflatten(-1, shape)


def stochastic(logits):
    """Normalise columns, then rows, to sum 1, 20 times."""
    h = logits.exp()
    for _ in range(20):
        h = h / h.sum(-2, keepdim=True)
        h = h / h.sum(-1, keepdim=True)
    return h


@pytest.mark.parametrize("n", [1, 4])
def test_mhc(n):
    """mHC computes X' = H_res X + H_post f(LN(H_pre X)) from n copies of the embedding."""
    model, tokens = awake(LM, method="mhc", mhc_streams=n), batch()[1:]
    decoder, expected = model.decoder, {}
    with torch.no_grad():
        streams = torch.stack([decoder.embed(tokens, decoder.positions(tokens))[0]] * n, -2)
        states = [streams.unbind(-2)]
        for layer in decoder.layers:
            for sublayer, site in layer.sites.items():
                read, write = layer.before[sublayer], layer.residual[sublayer]
                (pre,), (post, res) = (mapped(module.h, streams.flatten(-2)) for module in (read, write))
                pre, post, res = pre.squeeze(-2).sigmoid(), 2 * post.squeeze(-1).sigmoid(), stochastic(res)
                inside = plain_norm(torch.einsum("btn,btnc->btc", pre, streams), read.norm)
                written = torch.einsum("btn,btc->btnc", post, branch(layer, sublayer, inside))
                streams = torch.einsum("btmn,btnc->btmc", res, streams) + written
                expected[str(site)] = (written.var() / streams.var()).item()
            states.append(streams.unbind(-2))
        (pre,) = mapped(decoder.ending.h, streams.flatten(-2))
        end = torch.einsum("btn,btnc->btc", pre.squeeze(-2).sigmoid(), streams)
        assert_states(model, tokens, states, plain_norm(end, decoder.ending.norm))
    assert dependencies(model, tokens) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_sinkhorns_sums(n):
    """Sinkhorn's rows sum to 1 and its columns nearly, for narrow and wide logits."""
    generator = torch.Generator().manual_seed(0)
    for width in (0.1, 1.0, 3.0):
        h = sinkhorn(width * torch.randn(50, n, n, generator=generator))
        assert (h >= 0).all() and torch.allclose(h.sum(-1), torch.ones(50, n), atol=1e-5)
        assert (h.sum(-2) - 1).abs().max() < 0.05
    first = sinkhorn(Write(8, n).h.bias[n:].detach().view(n, n))
    apart = math.exp(-8)  # the bias is 4 on the diagonal and -4 elsewhere
    assert torch.allclose(first * (1 + (n - 1) * apart), torch.eye(n) + apart * (1 - torch.eye(n)), atol=1e-6)


@pytest.mark.parametrize("kind", EVERY)
def test_mhc_begins_as_pre_ln(kind):
    """mHC begins as Pre-LN: all its streams equal the embedding, and each LayerNorm reads their mean."""
    model, plain = (small(kind, 3, method=method) for method in ("mhc", "pre_ln"))
    plain.load_state_dict(model.state_dict(), strict=False)
    assert torch.allclose(scores(model, *inputs(kind)), scores(plain, *inputs(kind)), atol=1e-4)
