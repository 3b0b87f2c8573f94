"""Tests of methods since 2024 on one stream: hidden states by formula, factors, exceptions, gradients."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from deepnet_fairseq.cli import main
from deepnet_fairseq.core.archs import LM, MODEL_NAME
from deepnet_fairseq.core.methods import get_method
from deepnet_fairseq.core.methods.gpas import Shrink
from deepnet_fairseq.core.slots import NORM_NAMES, Site
from deepnet_fairseq.errors import UserError

from ..support import helpers
from ..support.single_stacks import awake, batch, small

EVEN = pytest.approx


def silu(g):
    return g / (1 + math.exp(-g))


def norm(layer, sublayer, x):
    """Apply the branch's LayerNorm."""
    return getattr(layer, NORM_NAMES[sublayer])(x)


def body(layer, sublayer, memory):
    """Return the branch from q, k, v or fc1 to out or fc2, x (B, T, C) -> same; memory (B, S, C)."""
    if sublayer == "ffn":
        return lambda x: layer.fc2(layer.fc1(x).relu())
    own = getattr(layer, sublayer)
    if sublayer == "encoder_attn":
        return lambda x: own(x, memory)
    return lambda x: own(x, causal=True)


def assert_states(name, equation, kind=LM, layers=3, end=None, **fields):
    """Check that every decoder state is equation(layer, site, x, branch) of the one before.

    end: function of the last state that gives the decoder's output; by default the last LayerNorm.
    """
    model = awake(kind, layers, method=name, **fields)
    memory, given = None, (batch()[1:],)
    with torch.no_grad():
        if kind == MODEL_NAME:
            src, prev = helpers.batch()
            given = (prev[2:], model.encoder(src[2:]))
            memory = given[1]["encoder_out"][0].transpose(0, 1)
        output, extra = model.decoder(*given, features_only=True, return_all_hiddens=True)
        x, *states = (state.transpose(0, 1) for state in extra["inner_states"])
        for layer, state in zip(model.decoder.layers, states, strict=True):
            for sublayer, site in layer.sites.items():
                x = equation(layer, site, x, body(layer, sublayer, memory))
            assert torch.allclose(state, x, atol=1e-5), site
        assert torch.allclose(output, (end or model.decoder.layer_norm)(x), atol=1e-5)


def test_ln_scaling():
    def equation(layer, site, x, f):
        return x + f(norm(layer, site.sublayer, x) / math.sqrt(site.layer))

    for kind in (LM, MODEL_NAME):
        assert_states("ln_scaling", equation, kind)
    assert get_method("ln_scaling")(16, 4).coefficients("encoder") == {"last_layer": 0.25}


@pytest.mark.parametrize(("exponent", "factor"), [(1.0, 2 / 3), (0.5, (2 / 3) ** 0.5)])
def test_complete_p(exponent, factor):
    def equation(layer, site, x, f):
        return x + factor * f(norm(layer, site.sublayer, x))

    assert_states("complete_p", equation, complete_p_exponent=exponent)


def test_what_complete_p_asks_of_training():
    """CompleteP scales branches and eps by m^-a and the learning rate by m^(a - 1), m = L / L_base of each stack."""
    half = get_method("complete_p")(128, 2, exponent=0.5)
    assert half.coefficients("encoder") == EVEN({"branch": 1 / 8, "lr": 8**-1, "adam_eps": 1 / 8})
    assert half.coefficients("decoder") == EVEN({"branch": 1, "lr": 1, "adam_eps": 1})
    full = get_method("complete_p")(6, 100, base_depth=6)
    assert full.coefficients("encoder") == EVEN({"branch": 1, "lr": 1, "adam_eps": 1})
    assert full.coefficients("decoder") == EVEN({"branch": 0.06, "lr": 1, "adam_eps": 0.06})
    assert full.constants("decoder") == EVEN({"branch_factor": 0.06})


def test_coefficients_by_option(capsys):
    words = ("--layers", "100,12", "--option", "base_depth=4", "--option", "exponent=0.5")
    main(["methods", "complete_p", *words, "--json"])
    actual = json.loads(capsys.readouterr().out)["coefficients"]["100L-12L"]
    numbers = {"encoder": 0.2, "decoder": 12**-0.5 * 2}
    expected = {f"{stack} {name}": numbers[stack] for stack in numbers for name in ("branch", "lr", "adam_eps")}
    assert actual == pytest.approx(expected)
    for word, message in (
        ("rescale=0", "--option rescale=0: rescale is true or false"),
        ("base_depth=2.5", "base_depth is a whole number"),
    ):
        with pytest.raises(SystemExit, match=message):
            main(["methods", "b2t" if "=0" in word else "complete_p", "--option", word])
    main(["methods", "b2t", "--layers", "4,4", "--option", "rescale=True"])
    assert "encoder gain  0.500000" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "branches"), [(LM, 6), (MODEL_NAME, 9)])
def test_keel(kind, branches):
    """KEEL merges S x + f(LN(x)), but x in the first layer, whose first branch has no LayerNorm after it."""

    def equation(layer, site, x, f):
        total = (1 if site.layer == 1 else branches) * x + f(layer.before[site.sublayer](x))
        first = site.layer == 1 and site.sublayer == "self_attn"
        return total if first else norm(layer, site.sublayer, total)

    assert_states("keel", equation, kind, end=lambda x: x)
    first, second = awake(kind, 2, method="keel").decoder.layers
    assert not hasattr(first, "self_attn_layer_norm") and hasattr(second, "self_attn_layer_norm")
    keel = get_method("keel")(18, 18)
    assert [keel.coefficients(stack)["alpha"] for stack in ("encoder", "decoder")] == [36, 54]


@pytest.mark.parametrize(("share", "post"), [(0.25, 0), (0.34, 1), (0.7, 2)])
def test_mix_ln(share, post):
    def equation(layer, site, x, f):
        if site.layer <= post:
            return norm(layer, site.sublayer, x + f(x))
        return x + f(norm(layer, site.sublayer, x))

    assert_states("mix_ln", equation, mix_ln_share=share)


def test_layers_of_mix_ln():
    """Mix-LN has Post-LN in 3 of 12 and 6 of 24 layers, as in the authors' scripts; an option sets the share."""
    method = get_method("mix_ln")(12, 24)
    assert [method.post_layers(stack) for stack in ("encoder", "decoder")] == [3, 6]
    for share, layers in {0.29: 29, 0.99: 99, 0: 0}.items():
        assert get_method("mix_ln")(0, 100, share=share).post_layers("decoder") == layers
    assert get_method("mix_ln")(0, 32, share=0.0625).constants("decoder") == {"post_layers": 2}


def test_gpas():
    """GPAS computes (1 - SiLU(g_l)) (x + f(LN(x))), with one g for both branches of a layer."""

    def equation(layer, site, x, f):
        (g,) = {residual.g for residual in layer.residual.values()}
        return (1 - silu(g.item())) * (x + f(norm(layer, site.sublayer, x)))

    assert_states("gpas", equation)
    model = small(LM, method="gpas")
    assert [p.item() for name, p in model.named_parameters() if name.endswith(".g")] == [0, 0]


@pytest.mark.parametrize("kind", [LM, MODEL_NAME])
def test_peri_ln(kind):
    """Peri-LN computes x + LN(f(LN(x))), and normalises the embedding."""

    def equation(layer, site, x, f):
        return x + layer.outer[site.sublayer](f(norm(layer, site.sublayer, x)))

    assert_states("peri_ln", equation, kind)
    decoder, tokens = awake(kind, method="peri_ln").decoder, batch()[1:]
    given = () if kind == LM else (awake(kind, method="peri_ln").encoder(tokens),)
    with torch.no_grad():
        states = decoder(tokens, *given, return_all_hiddens=True)[1]["inner_states"]
        embedding, _ = decoder.embed(tokens, decoder.positions(tokens))
    mean, std = embedding.mean(-1, keepdim=True), embedding.std(-1, correction=0, keepdim=True)
    expected = (embedding - mean) / std * decoder.beginning.weight + decoder.beginning.bias
    assert torch.allclose(states[0].transpose(0, 1), expected, atol=1e-3)


@pytest.mark.parametrize("kind", [LM, MODEL_NAME])
@pytest.mark.parametrize("star", [False, True])
def test_hybrid_norm(kind, star):
    """HybridNorm has one LayerNorm a layer, after its last attention; HybridNorm* begins with a Pre-LN layer."""

    def equation(layer, site, x, f):
        if star and site.layer == 1:
            return x + f(norm(layer, site.sublayer, x))
        last = "self_attn" if kind == LM else "encoder_attn"
        return norm(layer, site.sublayer, x + f(x)) if site.sublayer == last else x + f(x)

    assert_states("hybrid_norm", equation, kind, hybrid_norm_star=star)
    norms = sum("layer_norm.weight" in name for name, _ in awake(LM, 3, method="hybrid_norm").named_parameters())
    assert norms == 3 + 1


def test_heads_of_hybrid_norm():
    """HybridNorm's heads compute softmax(n(q) n(k) / sqrt(d)) n(v), normalised over the d features of a head."""
    attention = awake(LM, 1, method="hybrid_norm").decoder.layers[0].self_attn
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))

    def n(role, linear):
        parts = linear(x).view(2, 5, 2, 8).transpose(1, 2)
        return F.layer_norm(parts, (8,), attention.heads[role].weight, attention.heads[role].bias)

    with torch.no_grad():
        q, k, v = (n(role, linear) for role, linear in zip("qkv", map(attention.weights().get, "qkv"), strict=True))
        weights = (q @ k.transpose(2, 3) / math.sqrt(8)).masked_fill(~torch.ones(5, 5).tril().bool(), -math.inf)
        expected = attention.out_proj((weights.softmax(-1) @ v).transpose(1, 2).flatten(2))
        assert torch.allclose(attention(x, causal=True), expected, atol=1e-5)


def test_megatron_s_initialisation_in_hybrid_norm():
    method = get_method("hybrid_norm")(0, 16)
    gains = {role: method.gain(Site("decoder", 9, "ffn", 8, 2), role) for role in ("q", "v", "out", "fc1", "fc2")}
    assert gains == EVEN({"q": 1, "v": 1, "fc1": 1, "out": 32**-0.5, "fc2": 32**-0.5})


@pytest.mark.parametrize("g", [-1.5, 0.0, 0.8])
def test_gradient_of_gpas(g):
    """GPAS passes the output's gradient to its input unscaled; that of g equals finite differences."""
    gate = torch.nn.Parameter(torch.tensor(g, dtype=torch.float64))
    shrink, generator = Shrink(gate), torch.Generator().manual_seed(0)
    x, f, weights = torch.randn(3, 2, 4, 8, dtype=torch.float64, generator=generator)
    x.requires_grad_()
    f.requires_grad_()
    (shrink(x, f) * weights).sum().backward()
    assert torch.equal(x.grad, weights) and torch.equal(f.grad, weights)

    def value(g):
        with torch.no_grad():
            gate.fill_(g)
            return (shrink(x, f) * weights).sum().item()

    assert gate.grad.item() == EVEN((value(g + 1e-5) - value(g - 1e-5)) / 2e-5, rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gpas_in_half_precision(dtype):
    """GPAS's g stays float32 in half precision, and so does its gradient, a sum beyond float16's range."""
    shrink = Shrink(torch.nn.Parameter(torch.tensor(0.5))).to(dtype)
    x, f = torch.full((2, 2**17), 1.0, dtype=dtype)
    y = shrink(x, f)
    assert y.dtype == dtype and y[0].item() == EVEN(2 * (1 - silu(0.5)), rel=1e-2)
    y.backward(torch.ones_like(y))
    s = 1 / (1 + math.exp(-0.5))
    assert shrink.g.grad.dtype == torch.float32
    assert shrink.g.grad.item() == EVEN(-(2**18) * s * (1 + 0.5 * (1 - s)), rel=1e-3)


def test_scaled_initialisation_of_gpt_2():
    """scaled_init divides out and fc2 by sqrt(branches): 2M in a language model, 2N and 3M in a translator."""
    pair, text = get_method("pre_ln")(6, 6, scaled_init=True), get_method("pre_ln")(0, 12, scaled_init=True)
    for method, stack, factor in ((pair, "encoder", 12), (pair, "decoder", 18), (text, "decoder", 24)):
        gains = {role: method.gain(Site(stack, 2, "ffn", 8, 2), role) for role in ("q", "k", "v", "out", "fc1", "fc2")}
        assert gains == EVEN(dict.fromkeys(("q", "k", "v", "fc1"), 1) | dict.fromkeys(("out", "fc2"), factor**-0.5))
    assert get_method("pre_ln")(6, 6).gain(Site("encoder", 1, "ffn", 8, 2), "fc2") == 1


WRONG = [
    ("complete_p", {"base_depth": 0}, "--complete-p-base-depth 0: must be at least 1"),
    ("complete_p", {"exponent": 0.4}, "--complete-p-exponent 0.4: must be from 0.5 to 1"),
    ("gpas", {"clip": -1.0}, "--gpas-clip -1.0: must be a number from 0 on"),
    ("gpas", {"clip": math.nan}, "--gpas-clip nan: must be a number from 0 on"),
    ("mix_ln", {"share": 1.0}, "--mix-ln-share 1.0: must be at least 0 and below 1"),
    ("mix_ln", {"share": -0.1}, "--mix-ln-share -0.1: must be at least 0 and below 1"),
    ("dlcl", {"dilation": 0}, "--dlcl-dilation 0: must be at least 1"),
    ("dlcl", {"period": -1}, "--dlcl-period -1: must be at least 1"),
    ("resi_dual", {"scale": 0.0}, "--resi-dual-scale 0.0: must be a number above 0"),
    ("resi_dual", {"scale": math.nan}, "--resi-dual-scale nan: must be a number above 0"),
    ("mhc", {"streams": 0}, "--mhc-streams 0: must be at least 1"),
]


@pytest.mark.parametrize(("name", "options", "message"), WRONG)
def test_options_that_make_no_sense(name, options, message):
    with pytest.raises(UserError) as error:
        get_method(name)(6, 6, **options)
    assert str(error.value).startswith(message)
