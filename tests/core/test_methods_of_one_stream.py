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

from ..support import helpers
from ..support.errors import assert_refused, refused
from ..support.single_stacks import batch, noisy_model, small

every_decoder = pytest.mark.parametrize("kind", [LM, MODEL_NAME])


def sigmoid(g):
    return 1 / (1 + math.exp(-g))


def silu(g):
    return g * sigmoid(g)


def norm(layer, sublayer, x):
    """Apply the branch's LayerNorm."""
    return getattr(layer, NORM_NAMES[sublayer])(x)


def branch_of(layer, sublayer, memory):
    """Return the branch from q, k, v or fc1 to out or fc2, x (B, T, C) -> same; memory (B, S, C)."""
    if sublayer == "ffn":
        return lambda x: layer.fc2(layer.fc1(x).relu())
    attention = getattr(layer, sublayer)
    if sublayer == "encoder_attn":
        return lambda x: attention(x, memory)
    return lambda x: attention(x, causal=True)


def decoder_inputs(model):
    """Return one row without padding: the decoder's arguments, and the encoder's output (B, S, C) or None."""
    if model.NAME == LM:
        return (batch()[1:],), None
    src, prev = helpers.batch()
    encoded = model.encoder(src[2:])
    return (prev[2:], encoded), encoded["encoder_out"][0].transpose(0, 1)


def assert_states(name, equation, kind=LM, end=None, **fields):
    """Check that every state of a decoder of 3 layers is equation(layer, site, x, branch) of the one before.

    end: function of the last state that gives the decoder's output; by default the last LayerNorm.
    """
    model = noisy_model(kind, 3, method=name, **fields)
    with torch.no_grad():
        given, memory = decoder_inputs(model)
        output, extra = model.decoder(*given, features_only=True, return_all_hiddens=True)
        x, *states = (state.transpose(0, 1) for state in extra["inner_states"])

        for layer, state in zip(model.decoder.layers, states, strict=True):
            for sublayer, site in layer.sites.items():
                x = equation(layer, site, x, branch_of(layer, sublayer, memory))
            assert torch.allclose(state, x, atol=1e-5), site

        end = end or model.decoder.layer_norm
        assert torch.allclose(output, end(x), atol=1e-5)


@every_decoder
def test_ln_scaling_is_its_formula(kind):
    def equation(layer, site, x, f):
        return x + f(norm(layer, site.sublayer, x) / math.sqrt(site.layer))

    assert_states("ln_scaling", equation, kind)


def test_ln_scalings_last_factor_is_a_coefficient():
    method = get_method("ln_scaling")(16, 4)

    assert method.coefficients("encoder") == {"last_layer": 0.25}


@pytest.mark.parametrize(("exponent", "factor"), [(1.0, 2 / 3), (0.5, (2 / 3) ** 0.5)])
def test_complete_p_is_its_formula(exponent, factor):
    def equation(layer, site, x, f):
        return x + factor * f(norm(layer, site.sublayer, x))

    assert_states("complete_p", equation, complete_p_exponent=exponent)


@pytest.mark.parametrize(
    ("depths", "options", "stack", "expected"),
    [
        ((128, 2), {"exponent": 0.5}, "encoder", {"branch": 1 / 8, "lr": 1 / 8, "adam_eps": 1 / 8}),
        ((128, 2), {"exponent": 0.5}, "decoder", {"branch": 1, "lr": 1, "adam_eps": 1}),
        ((6, 100), {"base_depth": 6}, "encoder", {"branch": 1, "lr": 1, "adam_eps": 1}),
        ((6, 100), {"base_depth": 6}, "decoder", {"branch": 0.06, "lr": 1, "adam_eps": 0.06}),
    ],
)
def test_complete_p_scales_branches_learning_rate_and_eps(depths, options, stack, expected):
    """CompleteP scales branches and eps by m^-a and the learning rate by m^(a - 1), m = L / L_base of each stack."""
    method = get_method("complete_p")(*depths, **options)

    assert method.coefficients(stack) == pytest.approx(expected)


def test_complete_ps_factor_is_a_constant_of_the_model():
    method = get_method("complete_p")(6, 100, base_depth=6)

    assert method.constants("decoder") == pytest.approx({"branch_factor": 0.06})


def test_the_command_computes_coefficients_with_options(capsys):
    words = ("--layers", "100,12", "--option", "base_depth=4", "--option", "exponent=0.5")

    main(["methods", "complete_p", *words, "--json"])

    coefficients = json.loads(capsys.readouterr().out)["coefficients"]["100L-12L"]
    assert coefficients == pytest.approx(
        {
            "encoder branch": (4 / 100) ** 0.5,
            "encoder lr": (4 / 100) ** 0.5,
            "encoder adam_eps": (4 / 100) ** 0.5,
            "decoder branch": (4 / 12) ** 0.5,
            "decoder lr": (4 / 12) ** 0.5,
            "decoder adam_eps": (4 / 12) ** 0.5,
        }
    )


def test_the_command_takes_an_option_that_is_true_or_false(capsys):
    main(["methods", "b2t", "--layers", "4,4", "--option", "rescale=True"])

    assert "encoder gain  0.500000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "option", "subject"),
    [("b2t", "rescale=0", "--option rescale=0"), ("complete_p", "base_depth=2.5", "--option base_depth=2.5")],
)
def test_the_command_refuses_an_option_of_another_type(method, option, subject):
    assert_refused(subject, "methods", method, "--option", option)


@pytest.mark.parametrize(("kind", "branches"), [(LM, 6), (MODEL_NAME, 9)])
def test_keel_is_its_formula(kind, branches):
    """KEEL merges S x + f(LN(x)), but x in the first layer, whose first branch has no LayerNorm after it."""

    def equation(layer, site, x, f):
        shortcut = x if site.layer == 1 else branches * x
        total = shortcut + f(layer.before[site.sublayer](x))
        if site.layer == 1 and site.sublayer == "self_attn":
            return total
        return norm(layer, site.sublayer, total)

    assert_states("keel", equation, kind, end=lambda x: x)


@every_decoder
def test_keels_first_branch_alone_has_no_layer_norm_after_it(kind):
    first, second = noisy_model(kind, 2, method="keel").decoder.layers

    assert not hasattr(first, "self_attn_layer_norm")
    assert hasattr(second, "self_attn_layer_norm")


@pytest.mark.parametrize(("stack", "alpha"), [("encoder", 36), ("decoder", 54)])
def test_keels_alpha_is_the_number_of_branches(stack, alpha):
    method = get_method("keel")(18, 18)

    assert method.coefficients(stack)["alpha"] == alpha


@pytest.mark.parametrize(("share", "post_layers"), [(0.25, 0), (0.34, 1), (0.7, 2)])
def test_mix_ln_is_post_ln_in_a_share_of_its_layers(share, post_layers):
    def equation(layer, site, x, f):
        if site.layer <= post_layers:
            return norm(layer, site.sublayer, x + f(x))
        return x + f(norm(layer, site.sublayer, x))

    assert_states("mix_ln", equation, mix_ln_share=share)


@pytest.mark.parametrize(("stack", "post_layers"), [("encoder", 3), ("decoder", 6)])
def test_mix_lns_share_is_a_quarter_as_in_the_authors_scripts(stack, post_layers):
    method = get_method("mix_ln")(12, 24)

    assert method.post_layers(stack) == post_layers


@pytest.mark.parametrize(("share", "post_layers"), [(0.29, 29), (0.99, 99), (0, 0)])
def test_mix_lns_share_of_100_layers(share, post_layers):
    method = get_method("mix_ln")(0, 100, share=share)

    assert method.post_layers("decoder") == post_layers


def test_mix_lns_layers_are_a_constant_of_the_model():
    method = get_method("mix_ln")(0, 32, share=0.0625)

    assert method.constants("decoder") == {"post_layers": 2}


def test_gpas_is_its_formula():
    """GPAS computes (1 - SiLU(g_l)) (x + f(LN(x))), with one g for both branches of a layer."""

    def equation(layer, site, x, f):
        (g,) = {residual.g for residual in layer.residual.values()}
        return (1 - silu(g.item())) * (x + f(norm(layer, site.sublayer, x)))

    assert_states("gpas", equation)


def test_gpas_begins_with_gates_of_zero():
    model = small(LM, 2, method="gpas")

    gates = [p.item() for name, p in model.named_parameters() if name.endswith(".g")]

    assert gates == [0, 0]


@every_decoder
def test_peri_ln_is_its_formula(kind):
    """Peri-LN computes x + LN(f(LN(x)))."""

    def equation(layer, site, x, f):
        return x + layer.outer[site.sublayer](f(norm(layer, site.sublayer, x)))

    assert_states("peri_ln", equation, kind)


@every_decoder
def test_peri_ln_normalises_the_embedding(kind):
    model = noisy_model(kind, method="peri_ln")
    decoder = model.decoder
    tokens = batch()[1:]

    with torch.no_grad():
        given = () if kind == LM else (model.encoder(tokens),)
        states = decoder(tokens, *given, return_all_hiddens=True)[1]["inner_states"]
        embedding, _ = decoder.embed(tokens, decoder.positions(tokens))

    mean = embedding.mean(-1, keepdim=True)
    std = embedding.std(-1, correction=0, keepdim=True)
    expected = (embedding - mean) / std * decoder.beginning.weight + decoder.beginning.bias
    assert torch.allclose(states[0].transpose(0, 1), expected, atol=1e-3)


@every_decoder
@pytest.mark.parametrize("star", [False, True])
def test_hybrid_norm_is_its_formula(kind, star):
    """HybridNorm has one LayerNorm a layer, after its last attention; HybridNorm* begins with a Pre-LN layer."""
    last_attention = "self_attn" if kind == LM else "encoder_attn"

    def equation(layer, site, x, f):
        if star and site.layer == 1:
            return x + f(norm(layer, site.sublayer, x))
        if site.sublayer == last_attention:
            return norm(layer, site.sublayer, x + f(x))
        return x + f(x)

    assert_states("hybrid_norm", equation, kind, hybrid_norm_star=star)


def test_hybrid_norm_has_a_layer_norm_a_layer_and_one_at_the_end():
    model = noisy_model(LM, 3, method="hybrid_norm")

    norms = [name for name, _ in model.named_parameters() if "layer_norm.weight" in name]

    assert len(norms) == 3 + 1


def test_hybrid_norms_heads_are_their_formula():
    """HybridNorm's heads compute softmax(n(q) n(k) / sqrt(d)) n(v), normalised over the d features of a head."""
    d = 8
    attention = noisy_model(LM, 1, method="hybrid_norm").decoder.layers[0].self_attn
    x = torch.randn(2, 5, 2 * d, generator=torch.Generator().manual_seed(0))
    earlier = torch.ones(5, 5).tril().bool()

    def normalised(role):
        heads = attention.weights()[role](x).view(2, 5, 2, d).transpose(1, 2)
        return F.layer_norm(heads, (d,), attention.heads[role].weight, attention.heads[role].bias)

    with torch.no_grad():
        products = normalised("q") @ normalised("k").transpose(2, 3) / math.sqrt(d)
        weights = products.masked_fill(~earlier, -math.inf).softmax(-1)
        heads = weights @ normalised("v")
        expected = attention.out_proj(heads.transpose(1, 2).flatten(2))

        assert torch.allclose(attention(x, causal=True), expected, atol=1e-5)


@pytest.mark.parametrize(("role", "gain"), [("q", 1), ("v", 1), ("fc1", 1), ("out", 32**-0.5), ("fc2", 32**-0.5)])
def test_hybrid_norm_has_megatrons_initialisation(role, gain):
    """Matrices that end a branch are divided by the root of the branches, here 2 x 16."""
    method = get_method("hybrid_norm")(0, 16)

    assert method.gain(Site("decoder", 9, "ffn", 8, 2), role) == pytest.approx(gain)


@pytest.fixture
def gate_and_streams():
    """Provide a gate in float64, and shortcut, branch and output's gradient (2, 4, 8)."""
    gate = torch.nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    x, f, gradient = torch.randn(3, 2, 4, 8, dtype=torch.float64, generator=generator)
    return gate, x.requires_grad_(), f.requires_grad_(), gradient


@pytest.mark.parametrize("g", [-1.5, 0.0, 0.8])
def test_gpas_passes_the_outputs_gradient_on_unscaled(g, gate_and_streams):
    gate, x, f, gradient = gate_and_streams
    gate.data.fill_(g)

    Shrink(gate)(x, f).backward(gradient)

    assert torch.equal(x.grad, gradient)
    assert torch.equal(f.grad, gradient)


@pytest.mark.parametrize("g", [-1.5, 0.0, 0.8])
def test_gradient_of_gpas_gate_equals_finite_differences(g, gate_and_streams):
    gate, x, f, gradient = gate_and_streams
    shrink = Shrink(gate)
    step = 1e-5

    @torch.no_grad()
    def loss_at(value):
        gate.fill_(value)
        return (shrink(x, f) * gradient).sum().item()

    gate.data.fill_(g)
    shrink(x, f).backward(gradient)
    difference = (loss_at(g + step) - loss_at(g - step)) / (2 * step)

    assert gate.grad.item() == pytest.approx(difference, rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gpas_in_half_precision_keeps_its_gate_and_gradient_in_float32(dtype):
    """The gradient is a sum beyond float16's range."""
    g = 0.5
    shrink = Shrink(torch.nn.Parameter(torch.tensor(g))).to(dtype)
    x, f = torch.full((2, 2**17), 1.0, dtype=dtype)

    y = shrink(x, f)
    y.backward(torch.ones_like(y))

    silu_slope = sigmoid(g) * (1 + g * (1 - sigmoid(g)))
    assert y.dtype == dtype
    assert y[0].item() == pytest.approx(2 * (1 - silu(g)), rel=1e-2)
    assert shrink.g.grad.dtype == torch.float32
    assert shrink.g.grad.item() == pytest.approx(-(2**18) * silu_slope, rel=1e-3)


@pytest.mark.parametrize(
    ("depths", "stack", "branches"),
    [
        ((6, 6), "encoder", 2 * 6),
        ((6, 6), "decoder", 3 * 6),
        ((0, 12), "decoder", 2 * 12),  # a language model
    ],
)
def test_gpt_2s_initialisation_divides_by_the_root_of_the_branches(depths, stack, branches):
    method = get_method("pre_ln")(*depths, scaled_init=True)
    site = Site(stack, 2, "ffn", 8, 2)

    for role in ("q", "k", "v", "fc1"):
        assert method.gain(site, role) == pytest.approx(1), role
    for role in ("out", "fc2"):
        assert method.gain(site, role) == pytest.approx(branches**-0.5), role


def test_pre_ln_leaves_last_matrices_as_they_are_by_default():
    method = get_method("pre_ln")(6, 6)

    assert method.gain(Site("encoder", 1, "ffn", 8, 2), "fc2") == 1


@pytest.mark.parametrize(
    ("name", "options", "flag"),
    [
        ("complete_p", {"base_depth": 0}, "--complete-p-base-depth 0"),
        ("complete_p", {"exponent": 0.4}, "--complete-p-exponent 0.4"),
        ("gpas", {"clip": -1.0}, "--gpas-clip -1.0"),
        ("gpas", {"clip": math.nan}, "--gpas-clip nan"),
        ("mix_ln", {"share": 1.0}, "--mix-ln-share 1.0"),
        ("mix_ln", {"share": -0.1}, "--mix-ln-share -0.1"),
        ("dlcl", {"dilation": 0}, "--dlcl-dilation 0"),
        ("dlcl", {"period": -1}, "--dlcl-period -1"),
        ("resi_dual", {"scale": 0.0}, "--resi-dual-scale 0.0"),
        ("resi_dual", {"scale": math.nan}, "--resi-dual-scale nan"),
        ("mhc", {"streams": 0}, "--mhc-streams 0"),
    ],
)
def test_options_out_of_their_range_are_refused(name, options, flag):
    with refused() as caught:
        get_method(name)(6, 6, **options)

    assert caught.value.subject == flag
