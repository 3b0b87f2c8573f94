"""Tests of each method's numbers against closed forms by hand, at width 512 and feed-forward width 2048.

Models are encoder-decoders with N = M layers, and a single stack, encoder or decoder.
"""

import math
from itertools import product
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from deepnet_fairseq.core.archs import LM, MASKED_LM, MODEL_NAME, STACKS
from deepnet_fairseq.core.initialisation import expected_std
from deepnet_fairseq.core.methods import get_method
from deepnet_fairseq.core.slots import Site, Weight
from deepnet_fairseq.plugin.building import build
from deepnet_fairseq.plugin.optimisers.papers import TFixupSchedule, TFixupScheduleConfig

from ..support.single_stacks import inputs, loss_of, scores, small

WIDTH = 512
FFN_WIDTH = 2048
HEADS = 8
SHAPES = {"fc1": (WIDTH, FFN_WIDTH), "fc2": (FFN_WIDTH, WIDTH)}
XAVIER_SQUARE = math.sqrt(2 / (WIDTH + WIDTH))  # std of queries, keys, values and outputs: 0.0441942
XAVIER_FFN = math.sqrt(2 / (WIDTH + FFN_WIDTH))  # 0.0279508
LAYER_NORM = 2 * WIDTH  # parameters
STACK_NAMES = ("encoder", "decoder")


def std(method, stack, layer, sublayer, role, profile=None):
    """Compute the std that a method gives to one weight matrix at width 512; test_initialisation.py checks draws."""
    linear = nn.Linear(*SHAPES.get(role, (WIDTH, WIDTH)), device="meta")
    weight = Weight(Site(stack, layer, sublayer, WIDTH, HEADS), role, linear, WIDTH)
    return expected_std(method, profile or method.init_profiles[0], weight)


def method_of(name, layers, **options):
    """Build the method of an encoder-decoder with N = M layers."""
    return get_method(name)(layers, layers, **options)


def method_of_one_stack(name, stack, layers, **options):
    """Build the method of a model with this stack and no other."""
    depths = (layers, 0) if stack == "encoder" else (0, layers)
    return get_method(name)(*depths, **options)


def gain(method, stack, layer, role):
    return method.gain(Site(stack, layer, "ffn", WIDTH, HEADS), role)


class OneStack(NamedTuple):
    """Numbers of a model with one stack of N layers."""

    deepnorm_alpha: float  # (2N)^(1/4)
    deepnorm_beta: float  # (8N)^(-1/4)
    sub_ln_gamma: float  # sqrt(ln 2N)
    t_fixup_gain: float  # 0.67 N^(-1/4)
    t_fixup_embedding: float  # (9N)^(-1/4)
    r_fixup_query: float  # (2N)^(-1/6)
    r_fixup_fc1: float  # (2N)^(-1/2)


ONE_STACK = {
    6: OneStack(1.861210, 0.379918, 1.576359, 0.428092, 0.368894, 0.660901, 0.288675),
    18: OneStack(2.449490, 0.288675, 1.893018, 0.325279, 0.280299, 0.550321, 0.166667),
    100: OneStack(3.760603, 0.188030, 2.301807, 0.211873, 0.182574, 0.413519, 0.070711),
    500: OneStack(5.623413, 0.125743, 2.628260, 0.141688, 0.122095, 0.316228, 0.031623),
}
every_single_stack = pytest.mark.parametrize(("stack", "layers"), list(product(STACK_NAMES, ONE_STACK)))


@every_single_stack
def test_deepnorm_of_one_stack(stack, layers):
    deepnorm = method_of_one_stack("deepnorm", stack, layers)

    alpha, beta = deepnorm.coefficients(stack).values()

    assert alpha == pytest.approx(ONE_STACK[layers].deepnorm_alpha, abs=2e-6)
    assert beta == pytest.approx(ONE_STACK[layers].deepnorm_beta, abs=2e-6)
    assert alpha * beta == pytest.approx(math.sqrt(0.5))


@every_single_stack
def test_sub_ln_of_one_stack_scales_values_and_ffn_but_not_queries(stack, layers):
    sub_ln = method_of_one_stack("sub_ln", stack, layers)
    gamma = ONE_STACK[layers].sub_ln_gamma

    assert sub_ln.coefficients(stack)["gamma"] == pytest.approx(gamma, abs=2e-6)
    assert std(sub_ln, stack, 1, "self_attn", "v") == pytest.approx(gamma * XAVIER_SQUARE, rel=1e-4)
    assert std(sub_ln, stack, 1, "ffn", "fc1") == pytest.approx(gamma * XAVIER_FFN, rel=1e-4)
    assert std(sub_ln, stack, 1, "self_attn", "q") == pytest.approx(XAVIER_SQUARE, rel=1e-4)


@every_single_stack
def test_t_fixup_of_one_stack_has_the_papers_encoder_factors(stack, layers):
    t_fixup = method_of_one_stack("t_fixup", stack, layers)

    assert gain(t_fixup, stack, layers, "fc2") == pytest.approx(ONE_STACK[layers].t_fixup_gain, abs=2e-6)
    assert t_fixup.embedding_gain(stack) == pytest.approx(ONE_STACK[layers].t_fixup_embedding, abs=2e-6)
    assert std(t_fixup, stack, 1, "self_attn", "q") == pytest.approx(0.03125)


@every_single_stack
def test_r_fixup_of_one_stack_counts_two_branches_a_layer(stack, layers):
    r_fixup = method_of_one_stack("r_fixup", stack, layers)

    assert gain(r_fixup, stack, 1, "q") == pytest.approx(ONE_STACK[layers].r_fixup_query, abs=2e-6)
    assert gain(r_fixup, stack, 1, "fc1") == pytest.approx(ONE_STACK[layers].r_fixup_fc1, abs=2e-6)
    assert gain(r_fixup, stack, 1, "out") == 0
    assert gain(r_fixup, stack, 1, "fc2") == 0


class BothStacks(NamedTuple):
    """Numbers of a model with an encoder and a decoder of N = M layers."""

    sub_ln_encoder_gamma: float
    sub_ln_decoder_gamma: float
    t_fixup_encoder_gain: float
    t_fixup_decoder_gain: float
    admin_torch_encoder_omega: float
    admin_torch_decoder_omega: float
    r_fixup_query: float
    r_fixup_fc1: float


BOTH_STACKS = {
    6: BothStacks(1.547288, 1.700109, 0.428092, 0.368894, 2.017009, 2.335132, 0.567300, 0.182574),
    18: BothStacks(2.182857, 1.997244, 0.325279, 0.280299, 3.040839, 3.567189, 0.472382, 0.105409),
    100: BothStacks(3.173875, 2.388259, 0.211873, 0.182574, 6.074611, 7.193138, 0.354954, 0.044721),
    500: BothStacks(4.103573, 2.704297, 0.141688, 0.122095, 11.995359, 14.290767, 0.271442, 0.020000),
}
every_depth = pytest.mark.parametrize("layers", BOTH_STACKS)


@every_depth
def test_sub_ln_of_encoder_and_decoder(layers):
    sub_ln = method_of("sub_ln", layers)
    expected = BOTH_STACKS[layers]

    assert sub_ln.coefficients("encoder")["gamma"] == pytest.approx(expected.sub_ln_encoder_gamma, abs=2e-6)
    assert sub_ln.coefficients("decoder")["gamma"] == pytest.approx(expected.sub_ln_decoder_gamma, abs=2e-6)


@pytest.mark.parametrize(("sublayer", "role"), [("self_attn", "q"), ("encoder_attn", "v")])
@every_depth
def test_sub_ln_leaves_queries_and_cross_attentions_values(layers, sublayer, role):
    sub_ln = method_of("sub_ln", layers)

    assert std(sub_ln, "decoder", 1, sublayer, role) == pytest.approx(WIDTH**-0.5)


@every_depth
def test_t_fixup_of_encoder_and_decoder(layers):
    """Both embeddings are scaled by (9N)^(-1/4), the decoder's factor."""
    t_fixup = method_of("t_fixup", layers)
    expected = BOTH_STACKS[layers]

    assert gain(t_fixup, "encoder", 1, "fc1") == pytest.approx(expected.t_fixup_encoder_gain, abs=2e-6)
    assert gain(t_fixup, "decoder", 1, "fc1") == pytest.approx(expected.t_fixup_decoder_gain, abs=2e-6)
    assert t_fixup.embedding_gain("encoder") == pytest.approx(expected.t_fixup_decoder_gain, abs=6e-7)
    assert t_fixup.embedding_gain("decoder") == pytest.approx(expected.t_fixup_decoder_gain, abs=6e-7)
    assert std(t_fixup, "decoder", 1, "encoder_attn", "q") == pytest.approx(0.03125)


@every_depth
def test_admin_torch_of_encoder_and_decoder(layers):
    admin_torch = method_of("admin_torch", layers)
    expected = BOTH_STACKS[layers]

    assert admin_torch.omega("encoder") == pytest.approx(expected.admin_torch_encoder_omega, abs=2e-6)
    assert admin_torch.omega("decoder") == pytest.approx(expected.admin_torch_decoder_omega, abs=2e-6)


@pytest.mark.parametrize("stack", STACK_NAMES)
@every_depth
def test_admin_torch_counts_branches(layers, stack):
    """A stack of 3/2 N layers alone has as many branches as a decoder of N layers with cross-attention."""
    admin_torch = method_of_one_stack("admin_torch", stack, 3 * layers // 2)

    assert admin_torch.omega(stack) == pytest.approx(BOTH_STACKS[layers].admin_torch_decoder_omega, rel=1e-6)


@every_depth
def test_r_fixup_of_encoder_and_decoder(layers):
    r_fixup = method_of("r_fixup", layers)
    query_gain = gain(r_fixup, "decoder", 1, "q")

    assert query_gain == pytest.approx(BOTH_STACKS[layers].r_fixup_query, abs=2e-6)
    assert gain(r_fixup, "decoder", 1, "fc1") == pytest.approx(BOTH_STACKS[layers].r_fixup_fc1, abs=2e-6)
    for stack in STACK_NAMES:
        *attentions, ffn = r_fixup.sublayers(stack)
        assert std(r_fixup, stack, 1, ffn, "fc2") == 0
        assert attentions
        for attention in attentions:
            assert std(r_fixup, stack, 1, attention, "v") == pytest.approx(0.03125 * query_gain)
            assert std(r_fixup, stack, 1, attention, "out") == 0


@pytest.mark.parametrize(
    ("stack", "role", "expected"),
    [
        ("encoder", "fc1", 0.0057665),
        ("encoder", "fc2", 0.0057665),
        ("encoder", "v", 0.0091177),
        ("encoder", "out", 0.0091177),
        ("encoder", "q", 0.0441942),
        ("encoder", "k", 0.0441942),
        ("decoder", "fc1", 0.0047490),
        ("decoder", "fc2", 0.0047490),
        ("decoder", "v", 0.0075088),
        ("decoder", "out", 0.0075088),
        ("decoder", "q", 0.0441942),
        ("decoder", "k", 0.0441942),
    ],
)
def test_deepnorm_scales_values_outputs_and_feed_forward_by_beta(stack, role, expected):
    """DeepNorm multiplies Xavier by beta for values, outputs and FFN, not for queries and keys (Figure 2)."""
    sublayer = "ffn" if role in ("fc1", "fc2") else "self_attn"

    actual = std(method_of("deepnorm", 100), stack, 1, sublayer, role)

    assert actual == pytest.approx(expected, rel=1e-4)


R_FIXUP_BIASES = 5 * WIDTH + FFN_WIDTH  # a layer: q, k, v, out and fc2 as wide as the model, and fc1
NORMFORMER = (
    HEADS + LAYER_NORM + 2 * FFN_WIDTH
)  # a layer: a factor a head, a LayerNorm after attention, one inside the FFN
EXTRA = [  # parameters beyond Post-LN's, for a stack of 6 layers or for 6 + 6
    # one omega for each feature of each branch
    (LM, "admin", {}, 12 * WIDTH),
    (MASKED_LM, "admin", {}, 12 * WIDTH),
    (MODEL_NAME, "admin", {}, 30 * WIDTH),
    # (N + 1)^2 weights, a LayerNorm on each output, Pre-LN's final one; dlcl_plain has the final one alone
    (LM, "dlcl", {}, 49 + 7 * LAYER_NORM),
    (LM, "dlcl", {"dlcl_plain": True}, 49 + LAYER_NORM),
    (LM, "pre_ln", {}, LAYER_NORM),
    (MASKED_LM, "pre_ln", {}, LAYER_NORM),
    (LM, "t_fixup", {}, -12 * LAYER_NORM),
    (MASKED_LM, "sub_ln", {}, 6 * (LAYER_NORM + 2 * FFN_WIDTH) + LAYER_NORM),
    # no biases; b and m of each branch, b of fc1 and fc2, b of the end; a masked model's final merge is m (x - b)
    (LM, "r_fixup", {}, -12 * LAYER_NORM - 6 * R_FIXUP_BIASES + 6 * 6 + 1),
    (MASKED_LM, "r_fixup", {}, -12 * LAYER_NORM - 6 * R_FIXUP_BIASES + 6 * 6 + 2),
    # Pre-LN's last LayerNorms; a factor a feature on the shortcut of the FFN
    (MODEL_NAME, "normformer", {}, 12 * NORMFORMER + 2 * LAYER_NORM),
    (MODEL_NAME, "normformer", {"normformer_scale_residual": True}, 12 * (NORMFORMER + WIDTH) + 2 * LAYER_NORM),
    (LM, "normformer", {"normformer_no_attention_norm": True}, 6 * (NORMFORMER - LAYER_NORM) + LAYER_NORM),
    (LM, "normformer", {"normformer_no_ffn_norm": True}, 6 * (NORMFORMER - 2 * FFN_WIDTH) + LAYER_NORM),
    (MASKED_LM, "normformer", {"normformer_head_scale": "none"}, 6 * (NORMFORMER - HEADS) + LAYER_NORM),
    (LM, "b2t", {}, 0),
    (LM, "resi_dual", {}, LAYER_NORM),  # at the end
    (
        LM,
        "siamese_norm",
        {},
        2 * 12 * LAYER_NORM + 3 * LAYER_NORM,
    ),  # three a branch, one at the beginning, two at the end
    # n + (n + n^2) rows of phi and as many b, three a, a branch; n, n and one at the end, and its LayerNorm
    (LM, "mhc", {}, 12 * (24 * 2048 + 24 + 3) + 4 * 2048 + 4 + 1 + LAYER_NORM),
    (LM, "mhc", {"mhc_streams": 2}, 12 * (8 * 1024 + 8 + 3) + 2 * 1024 + 2 + 1 + LAYER_NORM),
    # N + M factors, or one a branch; the 2N + 3M LayerNorms are absent
    (MODEL_NAME, "rezero", {}, 12 - 30 * LAYER_NORM),
    (MODEL_NAME, "rezero", {"rezero_per_sublayer": True}, 30 - 30 * LAYER_NORM),
]


def count_parameters(kind, **fields):
    """Count the parameters of a model of width 512 with 6 layers a stack."""
    depths = {f"{stack}_layers": 6 for stack in STACKS[kind]}
    with torch.device("meta"):
        model = build(kind, 50, **depths, **fields)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("kind", "name", "fields", "expected"), EXTRA)
def test_methods_add_the_expected_number_of_parameters_to_post_lns(kind, name, fields, expected):
    added = count_parameters(kind, method=name, **fields) - count_parameters(kind, method="post_ln")

    assert added == expected


@pytest.mark.parametrize(("layer", "expected"), {1: 0.0015528, 6: 0.0021501, 17: 0.0139754, 18: 0.0279508}.items())
def test_post_ln_init_scales_by_the_number_of_layers_from_the_top(layer, expected):
    """Post-LN-init scales by 1 / (N - l + 1) in each stack."""
    method = method_of("post_ln_init", 18)

    assert std(method, "encoder", layer, "ffn", "fc2", profile="xavier_legacy") == pytest.approx(expected, rel=1e-4)
    for stack, sublayer, role in (("decoder", "encoder_attn", "q"), ("encoder", "self_attn", "out")):
        top = std(method, stack, 18, sublayer, role)
        assert std(method, stack, layer, sublayer, role) * (19 - layer) == pytest.approx(top)


def test_post_ln_inits_default_profile_draws_narrower():
    method = method_of("post_ln_init", 18)

    assert std(method, "encoder", 1, "ffn", "fc2") == pytest.approx(0.00070877, rel=1e-4)


def test_post_ln_init_can_scale_output_matrices_alone():
    method = method_of("post_ln_init", 18, weights="output")

    assert gain(method, "decoder", 1, "fc1") == 1
    assert gain(method, "decoder", 1, "fc2") == 1 / 18


@pytest.mark.parametrize("stack", STACK_NAMES)
def test_post_ln_init_of_one_stack(stack):
    method = method_of_one_stack("post_ln_init", stack, 18)

    assert gain(method, stack, 2, "fc2") == 1 / 17


@pytest.mark.parametrize(("stack", "branches"), [("encoder", 36), ("decoder", 54)])
def test_admin_torch_with_other_growth_of_the_output(stack, branches):
    constant = method_of("admin_torch", 18, output_change="constant")
    linear = method_of("admin_torch", 18, output_change="linear")

    assert constant.omega(stack) == pytest.approx(math.sqrt(branches))
    assert linear.omega(stack) == 1


@pytest.mark.parametrize("stack", STACK_NAMES)
@pytest.mark.parametrize(("layers", "size", "used"), [(6, 49, 28), (100, 10_201, 5_151)])
def test_dlcls_weights_begin_as_the_mean_of_earlier_outputs(layers, size, used, stack):
    """The square matrix of weights has zeros above its diagonal."""
    weight = method_of("dlcl", layers).mixer(stack, 8).weights.weight

    assert weight.numel() == size
    assert weight.count_nonzero() == used
    assert weight[0, 0] == 1
    assert torch.allclose(weight.sum(1), torch.ones(layers + 1))
    assert torch.allclose(weight[-1], torch.full((layers + 1,), 1 / (layers + 1)))


def test_dlcls_window_averages_the_last_outputs():
    weight = method_of("dlcl", 6, window=3).mixer("encoder", 8).weights.weight

    assert weight[5].tolist() == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 0])
    assert weight[1].tolist() == pytest.approx([0.5, 0.5, 0, 0, 0, 0, 0])


def test_t_fixups_learning_rate_falls_with_the_root_of_time():
    """T-Fixup's schedule is lr sqrt(P / (P + t)) with P = 4000."""
    rates = []
    schedule = object.__new__(TFixupSchedule)
    schedule.optimizer = SimpleNamespace(set_lr=rates.append, get_lr=lambda: rates[-1])
    schedule.cfg = TFixupScheduleConfig(lr=[5e-4])

    actual = [schedule.step_update(t) for t in (0, 4000, 12000)]

    assert actual == pytest.approx([5e-4, 3.5355e-4, 2.5e-4], rel=1e-4)


def test_t_fixup_scales_a_shared_embedding_once():
    """T-Fixup scales a shared embedding once, by the encoder's depth: (9 * 2)^(-1/4)."""
    model = build(vocab=2000, method="t_fixup", encoder_layers=2, decoder_layers=3, share_all_embeddings=True)

    measured = model.encoder.embed_tokens.weight.std().item()

    assert measured == pytest.approx(18**-0.25 * WIDTH**-0.5, rel=0.01)


@pytest.mark.parametrize(
    ("layer", "papers", "codes"),  # l^(-1/2) of the paper, l^(-1/4) of its code
    [(1, 1, 1), (6, 0.408248, 0.638943), (100, 0.1, 0.316228)],
)
def test_ds_init_scales_by_a_power_of_the_layer(layer, papers, codes):
    paper = method_of("ds_init", 100)
    code = method_of("ds_init", 100, exponent=0.25)
    encoder_alone = method_of_one_stack("ds_init", "encoder", 100)

    assert gain(paper, "decoder", layer, "fc1") == pytest.approx(papers, abs=6e-7)
    assert gain(code, "decoder", layer, "fc1") == pytest.approx(codes, abs=6e-7)
    assert gain(encoder_alone, "encoder", layer, "fc2") == pytest.approx(papers, abs=6e-7)


def test_branchnorm_rises_from_one_over_t():
    model = small(MODEL_NAME, 1, method="branchnorm", branchnorm_updates=10)
    residual = model.decoder.layers[0].residual["encoder_attn"]
    assert residual.a.item() == pytest.approx(0.1)

    for updates, expected in ((0, 0.1), (4, 0.5), (9, 1), (500, 1)):
        model.set_num_updates(updates)
        assert residual.a.item() == pytest.approx(expected), updates


def embedded(stack, tokens):
    """Compute what the first layer of a stack reads."""
    return stack.embed(tokens, stack.positions(tokens))[0]


@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
@pytest.mark.parametrize("name", ["r_fixup", "rezero"])
def test_silent_branches_score_words_by_the_tied_embeddings(name, kind):
    """Branches begin at zero, so the decoder scores words by the embedding of the last one."""
    model = small(kind, 3, method=name, share_decoder_input_output_embed=True)
    given = inputs(kind)

    with torch.no_grad():
        expected = embedded(model.decoder, given[-1]) @ model.decoder.embed_tokens.weight.T

    assert torch.allclose(scores(model, *given), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["r_fixup", "rezero"])
def test_an_encoder_of_silent_branches_returns_its_embeddings(name):
    model = small(MODEL_NAME, 3, method=name)
    src, _, _ = inputs(MODEL_NAME)

    with torch.no_grad():
        memory = model.encoder(src)["encoder_out"][0].transpose(0, 1)
        x = embedded(model.encoder, src)

    assert torch.allclose(memory[0], x[0], atol=1e-6)  # the row without padding


@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
def test_r_fixups_first_scores_are_zero_without_tied_embeddings(kind):
    """So the first loss is ln V."""
    first_scores = scores(small(kind, 3, method="r_fixup"), *inputs(kind))

    assert not first_scores.any()


def test_rezeros_first_step_moves_factors_embeddings_and_the_output_alone():
    """The encoder gets no gradient while the factor of cross-attention is 0."""
    model = small(MODEL_NAME, 2, method="rezero")

    loss_of(model).backward()

    moved = {name for name, p in model.named_parameters() if p.grad.abs().max() > 0}
    assert moved == {
        "decoder.layers.0.residual.self_attn.a",
        "decoder.layers.1.residual.self_attn.a",
        "decoder.embed_tokens.weight",
        "decoder.output_projection.weight",
    }
