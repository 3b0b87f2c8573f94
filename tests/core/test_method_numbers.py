"""Tests of each method's numbers against closed forms by hand, at width 512 and feed-forward width 2048.

Models are encoder-decoders with N = M layers ("NL-NL"), or have a single stack of N layers, encoder or decoder. A
method draws a matrix with the standard deviation of Xavier's or fairseq's initialisation times a gain of its own.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from deepnet_fairseq.core.archs import LM, MASKED_LM, MODEL_NAME, STACKS
from deepnet_fairseq.core.initialisation import expected_std
from deepnet_fairseq.core.methods import get_method
from deepnet_fairseq.core.slots import Site, Weight
from deepnet_fairseq.plugin.building import build
from deepnet_fairseq.plugin.optimisers.papers import TFixupSchedule, TFixupScheduleConfig

from ..support.single_stacks import embedding, inputs, loss_of, scores, small

WIDTH = 512
FFN_WIDTH = 2048
HEADS = 8
SHAPES = {"fc1": (WIDTH, FFN_WIDTH), "fc2": (FFN_WIDTH, WIDTH)}  # inputs and outputs; all others are WIDTH by WIDTH
XAVIER_SQUARE = math.sqrt(2 / (WIDTH + WIDTH))  # std of queries, keys, values and outputs: 0.0441942
XAVIER_FFN = math.sqrt(2 / (WIDTH + FFN_WIDTH))  # of fc1 and fc2: 0.0279508
FAIRSEQ_QKV = XAVIER_SQUARE / math.sqrt(2)  # fairseq draws queries, keys and values with gain 1 / sqrt(2): 0.03125
SIX_DECIMALS = 2e-6  # tolerance of numbers that are given to six decimals

every_stack = pytest.mark.parametrize("stack", ["encoder", "decoder"])


def method_of(name, layers, **options):
    """Build the method of an encoder-decoder with N = M layers."""
    return get_method(name)(layers, layers, **options)


def method_of_one_stack(name, stack, layers, **options):
    """Build the method of a model with this stack and no other."""
    depths = (layers, 0) if stack == "encoder" else (0, layers)
    return get_method(name)(*depths, **options)


def matrix_std(method, stack, sublayer, role, layer=1, profile=None):
    """Compute the std that a method gives to one weight matrix at width 512; test_initialisation.py checks draws.

    profile: the initialisation that the method's gain is applied to; by default the method's own.
    """
    linear = nn.Linear(*SHAPES.get(role, (WIDTH, WIDTH)), device="meta")
    weight = Weight(Site(stack, layer, sublayer, WIDTH, HEADS), role, linear, WIDTH)
    return expected_std(method, profile or method.init_profiles[0], weight)


def matrix_gain(method, stack, role, layer=1):
    """Return the gain of a matrix, of methods that give a role the same gain in every branch of a layer."""
    return method.gain(Site(stack, layer, "ffn", WIDTH, HEADS), role)


# DeepNorm, Wang et al. 2022 (DeepNet), Figure 2


@every_stack
@pytest.mark.parametrize(
    ("layers", "alpha", "beta"),  # (2N)^(1/4) and (8N)^(-1/4)
    [(6, 1.861210, 0.379918), (18, 2.449490, 0.288675), (100, 3.760603, 0.188030), (500, 5.623413, 0.125743)],
)
def test_deepnorm_of_one_stack_has_alpha_and_beta_of_figure_2(stack, layers, alpha, beta):
    deepnorm = method_of_one_stack("deepnorm", stack, layers)

    coefficients = deepnorm.coefficients(stack)

    assert coefficients["alpha"] == pytest.approx(alpha, abs=SIX_DECIMALS)
    assert coefficients["beta"] == pytest.approx(beta, abs=SIX_DECIMALS)


DEEPNORM_BETA = {  # of 100L-100L, Figure 2
    "encoder": 0.87 * (100**4 * 100) ** (-1 / 16),  # 0.206309
    "decoder": (12 * 100) ** (-1 / 4),  # 0.169904
}


@every_stack
@pytest.mark.parametrize(
    ("sublayer", "role", "xavier"),
    [
        ("ffn", "fc1", XAVIER_FFN),
        ("ffn", "fc2", XAVIER_FFN),
        ("self_attn", "v", XAVIER_SQUARE),
        ("self_attn", "out", XAVIER_SQUARE),
    ],
)
def test_deepnorm_multiplies_values_outputs_and_feed_forward_by_beta(stack, sublayer, role, xavier):
    std = matrix_std(method_of("deepnorm", 100), stack, sublayer, role)

    assert std == pytest.approx(DEEPNORM_BETA[stack] * xavier, rel=1e-4)


@every_stack
@pytest.mark.parametrize("role", ["q", "k"])
def test_deepnorm_draws_queries_and_keys_by_xaviers_formula(stack, role):
    std = matrix_std(method_of("deepnorm", 100), stack, "self_attn", role)

    assert std == pytest.approx(XAVIER_SQUARE, rel=1e-4)


# Sub-LN, Wang et al. 2022 (Magneto), Figure 2


@every_stack
@pytest.mark.parametrize(
    ("layers", "gamma"),  # sqrt(ln 2N)
    [(6, 1.576359), (18, 1.893018), (100, 2.301807), (500, 2.628260)],
)
def test_sub_ln_of_one_stack_multiplies_values_and_ffn_by_gamma(stack, layers, gamma):
    sub_ln = method_of_one_stack("sub_ln", stack, layers)

    assert sub_ln.coefficients(stack)["gamma"] == pytest.approx(gamma, abs=SIX_DECIMALS)
    assert matrix_std(sub_ln, stack, "self_attn", "v") == pytest.approx(gamma * XAVIER_SQUARE, rel=1e-4)
    assert matrix_std(sub_ln, stack, "ffn", "fc1") == pytest.approx(gamma * XAVIER_FFN, rel=1e-4)
    assert matrix_std(sub_ln, stack, "self_attn", "q") == pytest.approx(XAVIER_SQUARE, rel=1e-4)  # without gamma


@pytest.mark.parametrize(
    ("layers", "encoder_gamma", "decoder_gamma"),  # sqrt(ln(3M) ln(2N) / 3) and sqrt(ln 3M)
    [(6, 1.547288, 1.700109), (18, 2.182857, 1.997244), (100, 3.173875, 2.388259), (500, 4.103573, 2.704297)],
)
def test_sub_ln_of_an_encoder_decoder_has_the_papers_gammas(layers, encoder_gamma, decoder_gamma):
    sub_ln = method_of("sub_ln", layers)

    assert sub_ln.coefficients("encoder")["gamma"] == pytest.approx(encoder_gamma, abs=SIX_DECIMALS)
    assert sub_ln.coefficients("decoder")["gamma"] == pytest.approx(decoder_gamma, abs=SIX_DECIMALS)


@pytest.mark.parametrize("layers", [6, 18, 100, 500])
@pytest.mark.parametrize(("sublayer", "role"), [("self_attn", "q"), ("encoder_attn", "v")])
def test_sub_ln_does_not_scale_queries_or_cross_attentions_values(layers, sublayer, role):
    std = matrix_std(method_of("sub_ln", layers), "decoder", sublayer, role)

    assert std == pytest.approx(XAVIER_SQUARE)


# T-Fixup, Huang et al. 2020


@every_stack
@pytest.mark.parametrize(
    ("layers", "gain", "embedding_gain"),  # 0.67 N^(-1/4) and (9N)^(-1/4)
    [(6, 0.428092, 0.368894), (18, 0.325279, 0.280299), (100, 0.211873, 0.182574), (500, 0.141688, 0.122095)],
)
def test_t_fixup_of_one_stack_has_the_papers_encoder_factors(stack, layers, gain, embedding_gain):
    t_fixup = method_of_one_stack("t_fixup", stack, layers)

    assert matrix_gain(t_fixup, stack, "fc2", layer=layers) == pytest.approx(gain, abs=SIX_DECIMALS)
    assert t_fixup.embedding_gain(stack) == pytest.approx(embedding_gain, abs=SIX_DECIMALS)
    assert matrix_std(t_fixup, stack, "self_attn", "q") == pytest.approx(FAIRSEQ_QKV)  # whatever the depth


@pytest.mark.parametrize(
    ("layers", "encoder_gain", "decoder_gain"),  # 0.67 N^(-1/4) and (9M)^(-1/4)
    [(6, 0.428092, 0.368894), (18, 0.325279, 0.280299), (100, 0.211873, 0.182574), (500, 0.141688, 0.122095)],
)
def test_t_fixup_of_an_encoder_decoder_has_the_papers_factors(layers, encoder_gain, decoder_gain):
    t_fixup = method_of("t_fixup", layers)
    embedding_gain = decoder_gain  # (9N)^(-1/4) in both stacks, and N = M

    assert matrix_gain(t_fixup, "encoder", "fc1") == pytest.approx(encoder_gain, abs=SIX_DECIMALS)
    assert matrix_gain(t_fixup, "decoder", "fc1") == pytest.approx(decoder_gain, abs=SIX_DECIMALS)
    assert t_fixup.embedding_gain("encoder") == pytest.approx(embedding_gain, abs=6e-7)
    assert t_fixup.embedding_gain("decoder") == pytest.approx(embedding_gain, abs=6e-7)
    assert matrix_std(t_fixup, "decoder", "encoder_attn", "q") == pytest.approx(FAIRSEQ_QKV)  # whatever the depth


def test_t_fixups_learning_rate_falls_with_the_root_of_time():
    """T-Fixup's schedule is lr sqrt(P / (P + t)) with P = 4000."""
    rates = []
    schedule = object.__new__(TFixupSchedule)  # its constructor wants one of fairseq's optimisers
    schedule.optimizer = SimpleNamespace(set_lr=rates.append, get_lr=lambda: rates[-1])
    schedule.cfg = TFixupScheduleConfig(lr=[5e-4])

    at_first = schedule.step_update(0)
    after_p = schedule.step_update(4000)
    after_three_p = schedule.step_update(12000)

    assert at_first == pytest.approx(5e-4, rel=1e-4)
    assert after_p == pytest.approx(5e-4 * math.sqrt(1 / 2), rel=1e-4)
    assert after_three_p == pytest.approx(5e-4 * math.sqrt(1 / 4), rel=1e-4)


def test_t_fixup_scales_a_shared_embedding_once_by_the_encoders_factor():
    """The factor is (9N)^(-1/4), N = 2, on embeddings of standard deviation 1 / sqrt(width)."""
    model = build(vocab=2000, method="t_fixup", encoder_layers=2, decoder_layers=3, share_all_embeddings=True)

    measured = model.encoder.embed_tokens.weight.std().item()

    assert measured == pytest.approx((9 * 2) ** -0.25 * WIDTH**-0.5, rel=0.01)


# R-Fixup, Zhang et al. 2019: gains of L branches, in one stack L = 2N, in an encoder-decoder L = 2N + 3M


@every_stack
@pytest.mark.parametrize(
    ("layers", "query_gain", "fc1_gain"),  # (2N)^(-1/6) and (2N)^(-1/2)
    [(6, 0.660901, 0.288675), (18, 0.550321, 0.166667), (100, 0.413519, 0.070711), (500, 0.316228, 0.031623)],
)
def test_r_fixup_of_one_stack_counts_two_branches_a_layer(stack, layers, query_gain, fc1_gain):
    r_fixup = method_of_one_stack("r_fixup", stack, layers)

    assert matrix_gain(r_fixup, stack, "q") == pytest.approx(query_gain, abs=SIX_DECIMALS)
    assert matrix_gain(r_fixup, stack, "fc1") == pytest.approx(fc1_gain, abs=SIX_DECIMALS)


@pytest.mark.parametrize(
    ("layers", "query_gain", "fc1_gain"),  # (5N)^(-1/6) and (5N)^(-1/2)
    [(6, 0.567300, 0.182574), (18, 0.472382, 0.105409), (100, 0.354954, 0.044721), (500, 0.271442, 0.020000)],
)
def test_r_fixup_of_an_encoder_decoder_counts_five_branches_a_layer(layers, query_gain, fc1_gain):
    r_fixup = method_of("r_fixup", layers)

    assert matrix_gain(r_fixup, "decoder", "q") == pytest.approx(query_gain, abs=SIX_DECIMALS)
    assert matrix_gain(r_fixup, "decoder", "fc1") == pytest.approx(fc1_gain, abs=SIX_DECIMALS)


@pytest.mark.parametrize(
    ("stack", "attention"), [("encoder", "self_attn"), ("decoder", "self_attn"), ("decoder", "encoder_attn")]
)
def test_r_fixup_scales_values_as_queries(stack, attention):
    r_fixup = method_of("r_fixup", 6)

    query_gain = 30 ** (-1 / 6)  # of 5N branches
    assert matrix_std(r_fixup, stack, attention, "v") == pytest.approx(FAIRSEQ_QKV * query_gain)


@pytest.mark.parametrize(
    ("stack", "sublayer", "role"),
    [
        ("encoder", "self_attn", "out"),
        ("encoder", "ffn", "fc2"),
        ("decoder", "self_attn", "out"),
        ("decoder", "encoder_attn", "out"),
        ("decoder", "ffn", "fc2"),
    ],
)
def test_r_fixup_begins_with_last_matrices_of_zero(stack, sublayer, role):
    assert matrix_std(method_of("r_fixup", 6), stack, sublayer, role) == 0
    assert matrix_std(method_of_one_stack("r_fixup", stack, 6), stack, sublayer, role) == 0


# Admin without profiling (admin-torch): omega of n branches, 2N in the encoder and 3M in the decoder


@pytest.mark.parametrize(
    ("layers", "encoder_omega", "decoder_omega"),  # sqrt((n + 1) / ln(n + 1) - 1)
    [(6, 2.017009, 2.335132), (18, 3.040839, 3.567189), (100, 6.074611, 7.193138), (500, 11.995359, 14.290767)],
)
def test_admin_torchs_omega_follows_from_the_number_of_branches(layers, encoder_omega, decoder_omega):
    admin_torch = method_of("admin_torch", layers)

    assert admin_torch.omega("encoder") == pytest.approx(encoder_omega, abs=SIX_DECIMALS)
    assert admin_torch.omega("decoder") == pytest.approx(decoder_omega, abs=SIX_DECIMALS)


@every_stack
@pytest.mark.parametrize("layers", [6, 18, 100, 500])
def test_admin_torchs_omega_is_that_of_any_stack_with_as_many_branches(layers, stack):
    """A stack of 3/2 N layers alone has as many branches as a decoder of N layers with cross-attention."""
    alone = method_of_one_stack("admin_torch", stack, 3 * layers // 2)
    encoder_decoder = method_of("admin_torch", layers)

    assert alone.omega(stack) == pytest.approx(encoder_decoder.omega("decoder"), rel=1e-6)


@pytest.mark.parametrize(("stack", "branches"), [("encoder", 2 * 18), ("decoder", 3 * 18)])
def test_admin_torchs_omega_of_constant_output_change_is_the_root_of_branches(stack, branches):
    admin_torch = method_of("admin_torch", 18, output_change="constant")

    assert admin_torch.omega(stack) == pytest.approx(math.sqrt(branches))


@every_stack
def test_admin_torchs_omega_of_a_linear_output_change_is_one(stack):
    admin_torch = method_of("admin_torch", 18, output_change="linear")

    assert admin_torch.omega(stack) == 1


# Parameters beyond Post-LN's, of models with 6 layers a stack

LAYER_NORM = 2 * WIDTH  # gain and bias
BRANCHES = 2 * 6  # of a language model
BRANCHES_OF_A_TRANSLATOR = 2 * 6 + 3 * 6
NORMFORMER_LAYER = HEADS + LAYER_NORM + 2 * FFN_WIDTH  # a factor a head, LayerNorms after attention and in the FFN
R_FIXUP_BIASES = 5 * WIDTH + FFN_WIDTH  # biases that R-Fixup's layer lacks: of q, k, v, out and fc2, and of fc1
R_FIXUP_NUMBERS = 2 + 4  # numbers that R-Fixup's layer has: b and m of attention; b1, b2, b3 and m of the FFN


def r_fixup_parameters(numbers_at_the_end):
    return -BRANCHES * LAYER_NORM - 6 * R_FIXUP_BIASES + 6 * R_FIXUP_NUMBERS + numbers_at_the_end


def mhc_parameters(n):
    """Count what mHC of n streams adds: maps a phi RMSNorm(X) + b of the streams X, and a LayerNorm at the end.

    A branch has the maps H_pre (n numbers), H_post (n) and H_res (n^2), the end one map H_pre. phi has a row of n times
    the width for each number of a map, b has one number for it, and each map has one a.
    """
    branch_numbers = n + n + n**2
    branch = branch_numbers * n * WIDTH + branch_numbers + 3
    end = n * n * WIDTH + n + 1 + LAYER_NORM
    return BRANCHES * branch + end


ADDED_PARAMETERS = [  # kind of model, method, its options, number
    # one omega for each feature of each branch
    (LM, "admin", {}, BRANCHES * WIDTH),
    (MASKED_LM, "admin", {}, BRANCHES * WIDTH),
    (MODEL_NAME, "admin", {}, BRANCHES_OF_A_TRANSLATOR * WIDTH),
    # (N + 1)^2 weights, Pre-LN's LayerNorm at the end, and without dlcl_plain one on the output of each layer
    (LM, "dlcl", {}, 7**2 + 6 * LAYER_NORM + LAYER_NORM),
    (LM, "dlcl", {"dlcl_plain": True}, 7**2 + LAYER_NORM),
    # a LayerNorm at the end
    (LM, "pre_ln", {}, LAYER_NORM),
    (MASKED_LM, "pre_ln", {}, LAYER_NORM),
    (LM, "resi_dual", {}, LAYER_NORM),
    # no LayerNorm
    (LM, "t_fixup", {}, -BRANCHES * LAYER_NORM),
    # LayerNorms on the heads and on the FFN's hidden features, and Pre-LN's at the end
    (MASKED_LM, "sub_ln", {}, 6 * (LAYER_NORM + 2 * FFN_WIDTH) + LAYER_NORM),
    # a decoder ends with x - b, an encoder with m (x - b)
    (LM, "r_fixup", {}, r_fixup_parameters(numbers_at_the_end=1)),
    (MASKED_LM, "r_fixup", {}, r_fixup_parameters(numbers_at_the_end=2)),
    # Pre-LN's LayerNorm at the end of each stack; scale_residual adds a factor a feature on the shortcut of the FFN
    (MODEL_NAME, "normformer", {}, 12 * NORMFORMER_LAYER + 2 * LAYER_NORM),
    (MODEL_NAME, "normformer", {"normformer_scale_residual": True}, 12 * (NORMFORMER_LAYER + WIDTH) + 2 * LAYER_NORM),
    (LM, "normformer", {"normformer_no_attention_norm": True}, 6 * (NORMFORMER_LAYER - LAYER_NORM) + LAYER_NORM),
    (LM, "normformer", {"normformer_no_ffn_norm": True}, 6 * (NORMFORMER_LAYER - 2 * FFN_WIDTH) + LAYER_NORM),
    (MASKED_LM, "normformer", {"normformer_head_scale": "none"}, 6 * (NORMFORMER_LAYER - HEADS) + LAYER_NORM),
    # the same LayerNorms
    (LM, "b2t", {}, 0),
    # three LayerNorms a branch instead of one, one at the beginning, two at the end
    (LM, "siamese_norm", {}, BRANCHES * 2 * LAYER_NORM + 3 * LAYER_NORM),
    (LM, "mhc", {}, mhc_parameters(n=4)),
    (LM, "mhc", {"mhc_streams": 2}, mhc_parameters(n=2)),
    # a factor for each of the 12 layers, or for each branch, and no LayerNorm
    (MODEL_NAME, "rezero", {}, 12 - BRANCHES_OF_A_TRANSLATOR * LAYER_NORM),
    (
        MODEL_NAME,
        "rezero",
        {"rezero_per_sublayer": True},
        BRANCHES_OF_A_TRANSLATOR - BRANCHES_OF_A_TRANSLATOR * LAYER_NORM,
    ),
]


def count_parameters(kind, **fields):
    """Count the parameters of a model of width 512 with 6 layers a stack."""
    depths = {f"{stack}_layers": 6 for stack in STACKS[kind]}
    with torch.device("meta"):
        model = build(kind, 50, **depths, **fields)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("kind", "method", "options", "expected"), ADDED_PARAMETERS)
def test_methods_add_the_expected_number_of_parameters_to_post_lns(kind, method, options, expected):
    added = count_parameters(kind, method=method, **options) - count_parameters(kind, method="post_ln")

    assert added == expected


# Post-LN-init, Wang et al. 2022 (DeepNet), section 3: layer l of N is drawn 1 / (N - l + 1) as wide, here of 18L-18L

every_layer_of_18 = pytest.mark.parametrize(("layer", "layers_from_the_top"), [(1, 18), (6, 13), (17, 2), (18, 1)])


@every_layer_of_18
def test_post_ln_init_divides_by_the_number_of_layers_from_the_top(layer, layers_from_the_top):
    post_ln_init = method_of("post_ln_init", 18)

    std = matrix_std(post_ln_init, "encoder", "ffn", "fc2", layer, profile="xavier_legacy")

    assert std == pytest.approx(XAVIER_FFN / layers_from_the_top, rel=1e-4)


@every_layer_of_18
@pytest.mark.parametrize(
    ("stack", "sublayer", "role"), [("decoder", "encoder_attn", "q"), ("encoder", "self_attn", "out")]
)
def test_post_ln_init_divides_the_matrices_of_attention_too(stack, sublayer, role, layer, layers_from_the_top):
    post_ln_init = method_of("post_ln_init", 18)

    std = matrix_std(post_ln_init, stack, sublayer, role, layer)

    of_the_top_layer = matrix_std(post_ln_init, stack, sublayer, role, layer=18)
    assert std == pytest.approx(of_the_top_layer / layers_from_the_top)


def test_post_ln_init_divides_fairseqs_std_by_default():
    post_ln_init = method_of("post_ln_init", 18)

    std = matrix_std(post_ln_init, "encoder", "ffn", "fc2")

    fairseqs = 1 / math.sqrt(3 * FFN_WIDTH)  # std of U(-1/sqrt(inputs), 1/sqrt(inputs)), torch's default for a Linear
    assert std == pytest.approx(fairseqs / 18, rel=1e-4)


def test_post_ln_init_can_scale_output_matrices_alone():
    post_ln_init = method_of("post_ln_init", 18, weights="output")

    assert matrix_gain(post_ln_init, "decoder", "fc1") == 1
    assert matrix_gain(post_ln_init, "decoder", "fc2") == 1 / 18


@every_stack
def test_post_ln_init_of_one_stack_divides_by_the_layers_from_the_top(stack):
    post_ln_init = method_of_one_stack("post_ln_init", stack, 18)

    assert matrix_gain(post_ln_init, stack, "fc2", layer=2) == 1 / 17


# DLCL, Wang et al. 2019: row l of the matrix holds the weights with which layer l + 1 reads outputs 0 to l


@every_stack
@pytest.mark.parametrize("layers", [6, 100])
def test_dlcls_weights_begin_as_the_mean_of_earlier_outputs(layers, stack):
    rows = layers + 1  # the embedding is output 0
    weight = method_of("dlcl", layers).mixer(stack, dim=8).weights.weight

    assert weight.shape == (rows, rows)
    assert weight.count_nonzero() == rows * (rows + 1) / 2  # the lower triangle
    assert weight[0, 0] == 1
    assert torch.allclose(weight.sum(1), torch.ones(rows))
    assert torch.allclose(weight[-1], torch.full((rows,), 1 / rows))


def test_dlcls_window_averages_the_last_outputs():
    weight = method_of("dlcl", 6, window=3).mixer("encoder", dim=8).weights.weight

    assert weight[5].tolist() == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 0])
    assert weight[1].tolist() == pytest.approx([0.5, 0.5, 0, 0, 0, 0, 0])


# DS-Init, Zhang et al. 2019: the std of layer l is multiplied by a power of l


@pytest.mark.parametrize(("layer", "gain"), [(1, 1), (6, 0.408248), (100, 0.1)])
def test_ds_init_divides_by_the_root_of_the_layers_number(layer, gain):
    """The gain of layer l is l^(-1/2), as in the paper."""
    encoder_decoder = method_of("ds_init", 100)
    encoder_alone = method_of_one_stack("ds_init", "encoder", 100)

    assert matrix_gain(encoder_decoder, "decoder", "fc1", layer) == pytest.approx(gain, abs=SIX_DECIMALS)
    assert matrix_gain(encoder_alone, "encoder", "fc2", layer) == pytest.approx(gain, abs=SIX_DECIMALS)


@pytest.mark.parametrize(("layer", "gain"), [(1, 1), (6, 0.638943), (100, 0.316228)])
def test_ds_inits_exponent_gives_the_gain_of_its_authors_code(layer, gain):
    """The authors' code has the gain l^(-1/4) in layer l."""
    ds_init = method_of("ds_init", 100, exponent=0.25)

    assert matrix_gain(ds_init, "decoder", "fc1", layer) == pytest.approx(gain, abs=SIX_DECIMALS)


@pytest.fixture
def branchnorm_model():
    """Provide a BranchNorm model of one layer a stack, whose branches rise in T = 10 updates."""
    return small(MODEL_NAME, 1, method="branchnorm", branchnorm_updates=10)


def test_branchnorms_factor_is_that_of_the_first_update_before_training(branchnorm_model):
    residual = branchnorm_model.decoder.layers[0].residual["encoder_attn"]

    assert residual.a.item() == pytest.approx(1 / 10)


@pytest.mark.parametrize(("updates_done", "factor"), [(0, 1 / 10), (4, 5 / 10), (9, 1), (500, 1)])
def test_branchnorms_factor_rises_with_the_number_of_the_update(updates_done, factor, branchnorm_model):
    """The factor on branches is min(t / T, 1) in update t, counted from 1."""
    branchnorm_model.set_num_updates(updates_done)

    residual = branchnorm_model.decoder.layers[0].residual["encoder_attn"]
    assert residual.a.item() == pytest.approx(factor)


# Methods whose branches give zero at first, by last matrices (R-Fixup) or factors (ReZero) of zero


@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
@pytest.mark.parametrize("method", ["r_fixup", "rezero"])
def test_a_decoder_of_silent_branches_scores_words_by_the_last_embedding(method, kind):
    """The scores are the products of a word's embedding, position included, and all embeddings, which are tied."""
    model = small(kind, 3, method=method, share_decoder_input_output_embed=True)
    given = inputs(kind)
    decoder_tokens = given[-1]

    actual = scores(model, *given)

    with torch.no_grad():
        expected = embedding(model.decoder, decoder_tokens) @ model.decoder.embed_tokens.weight.T
    assert torch.allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize("method", ["r_fixup", "rezero"])
def test_an_encoder_of_silent_branches_returns_its_embeddings(method):
    model = small(MODEL_NAME, 3, method=method)
    src, _, _ = inputs(MODEL_NAME)
    row = 0  # which has no padding

    with torch.no_grad():
        encoded = model.encoder(src)["encoder_out"][0].transpose(0, 1)  # (B, S, C)
        expected = embedding(model.encoder, src)

    assert torch.allclose(encoded[row], expected[row], atol=1e-6)


@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
def test_r_fixups_first_scores_are_zero_without_tied_embeddings(kind):
    """R-Fixup's projection to the vocabulary begins at zero, so that the first loss is ln V."""
    first_scores = scores(small(kind, 3, method="r_fixup"), *inputs(kind))

    assert not first_scores.any()


def test_rezeros_first_step_moves_factors_embeddings_and_the_output_alone():
    """A factor of 0 gives its branch's matrices no gradient. The encoder gets none through cross-attention."""
    model = small(MODEL_NAME, 2, method="rezero")

    loss_of(model).backward()

    moved = {name for name, parameter in model.named_parameters() if parameter.grad.any()}
    assert moved == {
        "decoder.layers.0.residual.self_attn.a",  # that of all branches of the layer
        "decoder.layers.1.residual.self_attn.a",
        "decoder.embed_tokens.weight",
        "decoder.output_projection.weight",
    }
