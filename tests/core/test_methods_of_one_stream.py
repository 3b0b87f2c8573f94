"""Tests of methods since 2024 that have one stream: hidden states by formula, factors, gradients, refusals.

Models have width 16 and 2 heads. `get_method(name)(N, M, **options)` is the method of N encoder and M decoder layers,
(0, M) that of a language model. x is the shortcut, f the branch: attention or feed-forward with its matrices.
"""

import json
import math
from typing import NamedTuple

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

every_decoder = pytest.mark.parametrize("kind", [LM, MODEL_NAME])  # without and with cross-attention


def sigmoid(g):
    return 1 / (1 + math.exp(-g))


def silu(g):
    return g * sigmoid(g)


def branch_norm(layer, site, x):
    """Apply the LayerNorm that fairseq's layer has for this branch, wherever the method uses it."""
    return getattr(layer, NORM_NAMES[site.sublayer])(x)


def branch_of(layer, sublayer, memory):
    """Return a branch without its norms as a function of x (B, T, C): matrices, attention or ReLU, matrix.

    memory (B, S, C): the encoder's output, which cross-attention reads.
    """
    if sublayer == "ffn":
        return lambda x: layer.fc2(layer.fc1(x).relu())
    attention = getattr(layer, sublayer)
    if sublayer == "encoder_attn":
        return lambda x: attention(x, memory)
    return lambda x: attention(x, causal=True)


class DecoderPass(NamedTuple):
    """Forward pass of a decoder on tokens (B, T) without padding."""

    tokens: torch.Tensor
    output: torch.Tensor  # features (B, T, C), as the projection to the vocabulary reads them
    states: list[torch.Tensor]  # embedding and output of each layer (B, T, C)
    memory: torch.Tensor | None  # the encoder's output (B, S, C); None in a language model


@torch.no_grad()
def run_decoder(model):
    if model.NAME == LM:
        tokens = batch()[1:]
        encoded = None
        memory = None
    else:
        src, prev = helpers.batch()
        tokens = prev[2:]
        encoded = model.encoder(src[2:])
        memory = encoded["encoder_out"][0].transpose(0, 1)

    output, extra = model.decoder(tokens, encoded, features_only=True, return_all_hiddens=True)
    states = [state.transpose(0, 1) for state in extra["inner_states"]]
    return DecoderPass(tokens, output, states, memory)


def assert_states(method, equation, kind=LM, end=None, **fields):
    """Check the hidden states and the output of a decoder of 3 layers against a method's equation.

    equation: function of layer, site, x and f that gives the residual stream after a branch; site says which branch of
    which layer. end: function of the last state that gives the decoder's output; by default the last LayerNorm.
    """
    model = noisy_model(kind, 3, method=method, **fields)
    decoded = run_decoder(model)
    x, *layer_outputs = decoded.states

    with torch.no_grad():
        for layer, layer_output in zip(model.decoder.layers, layer_outputs, strict=True):
            for sublayer, site in layer.sites.items():
                x = equation(layer, site, x, branch_of(layer, sublayer, decoded.memory))
            assert torch.allclose(layer_output, x, atol=1e-5), site

        end = end or model.decoder.layer_norm
        assert torch.allclose(decoded.output, end(x), atol=1e-5)


@every_decoder
def test_ln_scaling_is_its_formula(kind):
    """LayerNorm-Scaling computes x + f(LN(x) / sqrt(l)) in layer l."""

    def equation(layer, site, x, f):
        return x + f(branch_norm(layer, site, x) / math.sqrt(site.layer))

    assert_states("ln_scaling", equation, kind)


def test_ln_scaling_lists_the_factor_of_the_last_layer():
    method = get_method("ln_scaling")(16, 4)

    assert method.coefficients("encoder") == {"last_layer": 1 / math.sqrt(16)}


@pytest.mark.parametrize("exponent", [1.0, 0.5])
def test_complete_p_is_its_formula(exponent):
    """CompleteP computes x + (L / L_base)^-a f(LN(x)); here L = 3, and L_base = 2 by default."""
    factor = (3 / 2) ** -exponent

    def equation(layer, site, x, f):
        return x + factor * f(branch_norm(layer, site, x))

    assert_states("complete_p", equation, complete_p_exponent=exponent)


@pytest.mark.parametrize(
    ("depths", "options", "stack", "expected"),
    [
        ((128, 2), {"exponent": 0.5}, "encoder", {"branch": 1 / 8, "lr": 1 / 8, "adam_eps": 1 / 8}),  # m = 128 / 2
        ((128, 2), {"exponent": 0.5}, "decoder", {"branch": 1, "lr": 1, "adam_eps": 1}),  # m = 2 / 2
        ((6, 100), {"base_depth": 6}, "encoder", {"branch": 1, "lr": 1, "adam_eps": 1}),  # m = 6 / 6, a = 1
        ((6, 100), {"base_depth": 6}, "decoder", {"branch": 6 / 100, "lr": 1, "adam_eps": 6 / 100}),  # m = 100 / 6
    ],
)
def test_complete_p_scales_branches_learning_rate_and_eps(depths, options, stack, expected):
    """CompleteP scales branches and eps by m^-a and the learning rate by m^(a - 1), m = L / L_base of each stack."""
    method = get_method("complete_p")(*depths, **options)

    assert method.coefficients(stack) == pytest.approx(expected)


def test_complete_ps_branch_factor_is_saved_with_the_model():
    method = get_method("complete_p")(6, 100, base_depth=6)

    assert method.constants("decoder") == pytest.approx({"branch_factor": 6 / 100})


def test_the_methods_command_computes_coefficients_with_options(capsys):
    """CompleteP's three factors are the same at exponent 1/2: (L_base / L)^(1/2)."""
    options = ("--option", "base_depth=4", "--option", "exponent=0.5")

    main(["methods", "complete_p", "--layers", "100,12", *options, "--json"])

    coefficients = json.loads(capsys.readouterr().out)["coefficients"]["100L-12L"]
    of_encoder = math.sqrt(4 / 100)
    of_decoder = math.sqrt(4 / 12)
    assert coefficients == pytest.approx(
        {
            "encoder branch": of_encoder,
            "encoder lr": of_encoder,
            "encoder adam_eps": of_encoder,
            "decoder branch": of_decoder,
            "decoder lr": of_decoder,
            "decoder adam_eps": of_decoder,
        }
    )


def test_the_methods_command_takes_an_option_that_is_true_or_false(capsys):
    """The option rescale lets B2T multiply matrices by N^(-1/2). B2T has no other coefficient."""
    main(["methods", "b2t", "--layers", "4,4", "--option", "rescale=True", "--json"])

    coefficients = json.loads(capsys.readouterr().out)["coefficients"]["4L-4L"]
    assert coefficients == {"encoder gain": 4**-0.5, "decoder gain": 4**-0.5}


@pytest.mark.parametrize(
    ("method", "option"),
    [
        ("b2t", "rescale=0"),  # True or False
        ("complete_p", "base_depth=2.5"),  # a whole number
    ],
)
def test_the_methods_command_refuses_an_option_of_another_type(method, option):
    assert_refused(f"--option {option}", "methods", method, "--option", option)


@pytest.mark.parametrize(("kind", "branches"), [(LM, 2 * 3), (MODEL_NAME, 3 * 3)])
def test_keel_is_its_formula(kind, branches):
    """Keel computes LN(S x + f(LN(x))), S branches in the stack, and ends without a further LayerNorm.

    The first layer merges x in place of S x, and its self-attention has no LayerNorm after it.
    """

    def equation(layer, site, x, f):
        shortcut = x if site.layer == 1 else branches * x
        norm_on_input = layer.before[site.sublayer]
        total = shortcut + f(norm_on_input(x))
        if site.layer == 1 and site.sublayer == "self_attn":
            return total
        return branch_norm(layer, site, total)

    assert_states("keel", equation, kind, end=lambda x: x)


@every_decoder
def test_keels_first_branch_alone_has_no_layer_norm_after_it(kind):
    first, second = noisy_model(kind, 2, method="keel").decoder.layers

    assert not hasattr(first, "self_attn_layer_norm")
    assert hasattr(second, "self_attn_layer_norm")


@pytest.mark.parametrize(("stack", "branches"), [("encoder", 2 * 18), ("decoder", 3 * 18)])
def test_keels_alpha_is_the_number_of_branches(stack, branches):
    method = get_method("keel")(18, 18)

    assert method.coefficients(stack)["alpha"] == branches


@pytest.mark.parametrize(("share", "post_layers"), [(0.25, 0), (0.34, 1), (0.7, 2)])  # of 3 layers, rounded down
def test_mix_ln_is_post_ln_in_a_share_of_its_layers(share, post_layers):
    """The first layers are Post-LN, LN(x + f(x)), the others Pre-LN, x + f(LN(x))."""

    def equation(layer, site, x, f):
        if site.layer <= post_layers:
            return branch_norm(layer, site, x + f(x))
        return x + f(branch_norm(layer, site, x))

    assert_states("mix_ln", equation, mix_ln_share=share)


@pytest.mark.parametrize(("stack", "post_layers"), [("encoder", 3), ("decoder", 6)])
def test_mix_lns_share_is_a_quarter_by_default(stack, post_layers):
    """The authors' scripts have 3 Post-LN layers of 12 and 6 of 24."""
    method = get_method("mix_ln")(12, 24)

    assert method.post_layers(stack) == post_layers


@pytest.mark.parametrize(("share", "post_layers"), [(0.29, 29), (0.99, 99), (0, 0)])
def test_mix_lns_share_of_100_layers_is_exact(share, post_layers):
    """0.29 x 100 is 28.999.. in floating point."""
    method = get_method("mix_ln")(0, 100, share=share)

    assert method.post_layers("decoder") == post_layers


def test_mix_lns_number_of_post_ln_layers_is_saved_with_the_model():
    method = get_method("mix_ln")(0, 32, share=1 / 16)

    assert method.constants("decoder") == {"post_layers": 2}


def test_gpas_is_its_formula():
    """GPAS computes (1 - SiLU(g_l)) (x + f(LN(x))), with one g for both branches of a layer."""

    def equation(layer, site, x, f):
        (g,) = {residual.g for residual in layer.residual.values()}  # one parameter in both merges
        return (1 - silu(g.item())) * (x + f(branch_norm(layer, site, x)))

    assert_states("gpas", equation)


def test_gpas_begins_with_gates_of_zero():
    model = small(LM, 2, method="gpas")

    gates = [p.item() for name, p in model.named_parameters() if name.endswith(".g")]

    assert gates == [0, 0]


@every_decoder
def test_peri_ln_is_its_formula(kind):
    """Peri-LN computes x + LN(f(LN(x)))."""

    def equation(layer, site, x, f):
        norm_on_output = layer.outer[site.sublayer]
        return x + norm_on_output(f(branch_norm(layer, site, x)))

    assert_states("peri_ln", equation, kind)


@every_decoder
def test_peri_ln_normalises_the_embedding(kind):
    model = noisy_model(kind, method="peri_ln")
    decoder = model.decoder
    norm = decoder.beginning

    decoded = run_decoder(model)

    with torch.no_grad():
        embedding, _ = decoder.embed(decoded.tokens, decoder.positions(decoded.tokens))
    mean = embedding.mean(-1, keepdim=True)
    std = embedding.std(-1, correction=0, keepdim=True)
    expected = (embedding - mean) / std * norm.weight + norm.bias
    assert torch.allclose(decoded.states[0], expected, atol=1e-3)


@every_decoder
@pytest.mark.parametrize("star", [False, True])
def test_hybrid_norm_is_its_formula(kind, star):
    """HybridNorm has one LayerNorm a layer, after its last attention; HybridNorm* begins with a Pre-LN layer."""
    last_attention = "self_attn" if kind == LM else "encoder_attn"

    def equation(layer, site, x, f):
        if star and site.layer == 1:
            return x + f(branch_norm(layer, site, x))
        if site.sublayer == last_attention:
            return branch_norm(layer, site, x + f(x))
        return x + f(x)

    assert_states("hybrid_norm", equation, kind, hybrid_norm_star=star)


def test_hybrid_norm_has_a_layer_norm_a_layer_and_one_at_the_end():
    """The LayerNorms on heads have other names, and are not counted."""
    model = noisy_model(LM, 2, method="hybrid_norm")

    norms = {name for name, _ in model.named_parameters() if name.endswith("layer_norm.weight")}

    assert norms == {
        "decoder.layers.0.self_attn_layer_norm.weight",
        "decoder.layers.1.self_attn_layer_norm.weight",
        "decoder.layer_norm.weight",
    }


def test_hybrid_norms_heads_are_their_formula():
    """HybridNorm's heads compute softmax(n(q) n(k) / sqrt(d)) n(v), normalised over the d features of a head."""
    d = 8  # width 16, 2 heads
    attention = noisy_model(LM, 1, method="hybrid_norm").decoder.layers[0].self_attn
    x = torch.randn(2, 5, 2 * d, generator=torch.Generator().manual_seed(0))
    visible = torch.ones(5, 5).tril().bool()  # queries by keys

    def normalised(role):
        projected = attention.weights()[role](x)
        by_head = projected.view(2, 5, 2, d).transpose(1, 2)
        norm = attention.heads[role]
        return F.layer_norm(by_head, (d,), norm.weight, norm.bias)

    with torch.no_grad():
        actual = attention(x, causal=True)

        products = normalised("q") @ normalised("k").transpose(2, 3) / math.sqrt(d)
        weights = products.masked_fill(~visible, -math.inf).softmax(-1)
        heads = weights @ normalised("v")
        expected = attention.out_proj(heads.transpose(1, 2).flatten(2))

    assert torch.allclose(actual, expected, atol=1e-5)


def gain_in_every_layer(method, stack, role):
    """Return a method's factor on the std of a matrix, for methods that have the same factor in all layers."""
    return method.gain(Site(stack, layer=2, sublayer="ffn", dim=8, num_heads=2), role)


ROOT_OF_BRANCHES = math.sqrt(2 * 16)  # of a language model of 16 layers


@pytest.mark.parametrize(
    ("role", "gain"), [("q", 1), ("v", 1), ("fc1", 1), ("out", 1 / ROOT_OF_BRANCHES), ("fc2", 1 / ROOT_OF_BRANCHES)]
)
def test_hybrid_norm_has_megatrons_initialisation(role, gain):
    """Matrices that end a branch are divided by the root of the number of branches."""
    method = get_method("hybrid_norm")(0, 16)

    assert gain_in_every_layer(method, "decoder", role) == pytest.approx(gain)


def drawn_in_float64(seed):
    return torch.randn(2, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Merge(NamedTuple):
    """Merge of shortcut and branch by GPAS, (1 - SiLU(g)) (x + f), in float64, with a gradient of its output."""

    shrink: Shrink
    x: torch.Tensor  # shortcut (B, T, C)
    f: torch.Tensor  # branch
    output_gradient: torch.Tensor


@pytest.fixture(params=[-1.5, 0.0, 0.8])
def gpas_merge(request):
    """Provide a GPAS merge of random numbers at three values of its gate g."""
    gate = torch.nn.Parameter(torch.tensor(request.param, dtype=torch.float64))
    x = drawn_in_float64(seed=0).requires_grad_()
    f = drawn_in_float64(seed=1).requires_grad_()
    return Merge(Shrink(gate), x, f, output_gradient=drawn_in_float64(seed=2))


def test_gpas_passes_the_outputs_gradient_on_unscaled(gpas_merge):
    y = gpas_merge.shrink(gpas_merge.x, gpas_merge.f)
    y.backward(gpas_merge.output_gradient)

    assert torch.equal(gpas_merge.x.grad, gpas_merge.output_gradient)
    assert torch.equal(gpas_merge.f.grad, gpas_merge.output_gradient)


def test_gradient_of_gpas_gate_equals_finite_differences(gpas_merge):
    shrink, x, f, output_gradient = gpas_merge
    g = shrink.g.item()
    step = 1e-5

    @torch.no_grad()
    def loss_at(value):
        shrink.g.fill_(value)
        return (shrink(x, f) * output_gradient).sum().item()

    shrink(x, f).backward(output_gradient)

    difference = (loss_at(g + step) - loss_at(g - step)) / (2 * step)
    assert shrink.g.grad.item() == pytest.approx(difference, rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gpas_in_half_precision_keeps_its_gate_and_gradient_in_float32(dtype):
    """The gate's gradient is a sum beyond float16's range."""
    g = 0.5
    numbers = 2**17
    shrink = Shrink(torch.nn.Parameter(torch.tensor(g))).to(dtype)
    ones = torch.ones(numbers, dtype=dtype)

    y = shrink(ones, ones)
    y.backward(torch.ones_like(y))

    slope_of_silu = sigmoid(g) * (1 + g * (1 - sigmoid(g)))
    assert y.dtype == dtype
    assert y[0].item() == pytest.approx(2 * (1 - silu(g)), rel=1e-2)  # x + f is 2
    assert shrink.g.grad.dtype == torch.float32
    assert shrink.g.grad.item() == pytest.approx(-2 * numbers * slope_of_silu, rel=1e-3)


@pytest.mark.parametrize(
    ("depths", "stack", "branches"),
    [
        ((6, 6), "encoder", 2 * 6),
        ((6, 6), "decoder", 3 * 6),
        ((0, 12), "decoder", 2 * 12),  # a language model
    ],
)
@pytest.mark.parametrize("role", ["out", "fc2"])
def test_gpt_2s_initialisation_divides_last_matrices_by_the_root_of_branches(role, depths, stack, branches):
    method = get_method("pre_ln")(*depths, scaled_init=True)

    assert gain_in_every_layer(method, stack, role) == pytest.approx(1 / math.sqrt(branches))


@pytest.mark.parametrize("role", ["q", "k", "v", "fc1"])
def test_gpt_2s_initialisation_leaves_other_matrices_as_they_are(role):
    method = get_method("pre_ln")(6, 6, scaled_init=True)

    assert gain_in_every_layer(method, "encoder", role) == pytest.approx(1)


def test_pre_ln_leaves_the_last_matrix_of_a_branch_as_it_is_by_default():
    """The option scaled_init, which divides fc2 and the output projections of attentions, is off by default."""
    method = get_method("pre_ln")(6, 6)

    assert gain_in_every_layer(method, "encoder", "fc2") == 1


@pytest.mark.parametrize(
    ("name", "options", "flag"),
    [
        ("complete_p", {"base_depth": 0}, "--complete-p-base-depth 0"),
        ("complete_p", {"exponent": 0.4}, "--complete-p-exponent 0.4"),
        ("ds_init", {"exponent": -0.5}, "--ds-init-exponent -0.5"),
        ("ds_init", {"exponent": math.nan}, "--ds-init-exponent nan"),
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
