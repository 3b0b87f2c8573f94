"""Tests of each method's numbers against closed forms by hand, at width 512 and feed-forward width 2048.

Models are encoder-decoders with N = M layers, and a single stack, encoder or decoder.
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

from ..support.single_stacks import inputs, loss_of, scores, small

SHAPES = {"fc1": (512, 2048), "fc2": (2048, 512)}
XAVIER = {"v": 0.0441942, "out": 0.0441942, "fc1": 0.0279508, "fc2": 0.0279508}
BOTH = ("encoder", "decoder")


def std(method, stack, layer, sublayer, role, profile=None):
    """Compute the std that a method gives to one weight matrix at width 512; test_initialisation.py checks draws."""
    linear = nn.Linear(*SHAPES.get(role, (512, 512)), device="meta")
    weight = Weight(Site(stack, layer, sublayer, 512, 8), role, linear, 512)
    return expected_std(method, profile or method.init_profiles[0], weight)


def method(name, layers, **options):
    return get_method(name)(layers, layers, **options)


def alone(name, stack, layers, **options):
    """Build the method of a model with this stack and no other."""
    return get_method(name)(*((layers, 0) if stack == "encoder" else (0, layers)), **options)


def gain(built, stack, layer, role):
    return built.gain(Site(stack, layer, "ffn", 512, 8), role)


ALONE = {  # layers: DeepNorm's alpha and beta, sqrt(ln 2N), 0.67 N^(-1/4), (9N)^(-1/4), (2N)^(-1/6), (2N)^(-1/2)
    6: (1.861210, 0.379918, 1.576359, 0.428092, 0.368894, 0.660901, 0.288675),
    18: (2.449490, 0.288675, 1.893018, 0.325279, 0.280299, 0.550321, 0.166667),
    100: (3.760603, 0.188030, 2.301807, 0.211873, 0.182574, 0.413519, 0.070711),
    500: (5.623413, 0.125743, 2.628260, 0.141688, 0.122095, 0.316228, 0.031623),
}


@pytest.mark.parametrize("stack", BOTH)
@pytest.mark.parametrize("layers", ALONE)
def test_a_stack_alone(layers, stack):
    """A single stack has DeepNorm's and Sub-LN's own formulas, T-Fixup's encoder factors, and L = 2N in R-Fixup."""
    deepnorm, sub_ln, t_fixup, r_fixup = (
        alone(name, stack, layers) for name in ("deepnorm", "sub_ln", "t_fixup", "r_fixup")
    )
    alpha, beta = deepnorm.coefficients(stack).values()
    actual = [alpha, beta, sub_ln.coefficients(stack)["gamma"], gain(t_fixup, stack, layers, "fc2")]
    actual += [t_fixup.embedding_gain(stack), gain(r_fixup, stack, 1, "q"), gain(r_fixup, stack, 1, "fc1")]
    assert actual == pytest.approx(ALONE[layers], abs=2e-6)
    assert alpha * beta == pytest.approx(math.sqrt(0.5))
    assert gain(r_fixup, stack, 1, "out") == gain(r_fixup, stack, 1, "fc2") == 0
    assert std(sub_ln, stack, 1, "self_attn", "v") == pytest.approx(ALONE[layers][2] * XAVIER["v"], rel=1e-4)
    assert std(sub_ln, stack, 1, "ffn", "fc1") == pytest.approx(ALONE[layers][2] * XAVIER["fc1"], rel=1e-4)
    assert std(sub_ln, stack, 1, "self_attn", "q") == pytest.approx(XAVIER["v"], rel=1e-4)
    assert std(t_fixup, stack, 1, "self_attn", "q") == pytest.approx(0.03125)


def test_deepnorm_scales_values_outputs_and_feed_forward():
    """DeepNorm multiplies Xavier by beta for values, outputs and FFN, not for queries and keys (Figure 2)."""
    for stack, fc, vo in (("encoder", 0.0057665, 0.0091177), ("decoder", 0.0047490, 0.0075088)):
        for role, expected in {"fc1": fc, "fc2": fc, "v": vo, "out": vo, "q": 0.0441942, "k": 0.0441942}.items():
            actual = std(method("deepnorm", 100), stack, 1, "ffn" if "fc" in role else "self_attn", role)
            assert actual == pytest.approx(expected, rel=1e-4)


EXTRA = [  # parameters beyond Post-LN's, for a stack of 6 layers or for 6 + 6
    *((LM, "admin", {}, 12 * 512), (MASKED_LM, "admin", {}, 12 * 512), (MODEL_NAME, "admin", {}, 30 * 512)),  # omega
    (LM, "dlcl", {}, 49 + 7 * 1024),  # (N + 1)^2 weights, a LayerNorm on each output, Pre-LN's final one
    *((LM, "pre_ln", {}, 1024), (MASKED_LM, "pre_ln", {}, 1024), (LM, "t_fixup", {}, -12 * 1024)),
    (MASKED_LM, "sub_ln", {}, 6 * (1024 + 4096) + 1024),
    # q, k, v, out and fc2 as wide as the model, fc1 2048; b and m of each branch, b of fc1 and fc2, the end's
    (LM, "r_fixup", {}, -12 * 1024 - 6 * (5 * 512 + 2048) + 6 * 6 + 1),
    (MASKED_LM, "r_fixup", {}, -12 * 1024 - 6 * (5 * 512 + 2048) + 6 * 6 + 2),  # the final merge is m (x - b)
    # h + 2d + 2f a layer, + d with factors on the shortcut; and Pre-LN's two last LayerNorms
    (MODEL_NAME, "normformer", {}, 12 * 5_128 + 2 * 1024),
    (MODEL_NAME, "normformer", {"normformer_scale_residual": True}, 12 * 5_640 + 2 * 1024),
    (LM, "normformer", {"normformer_no_attention_norm": True}, 6 * (5_128 - 1024) + 1024),
    (LM, "normformer", {"normformer_no_ffn_norm": True}, 6 * (5_128 - 4096) + 1024),
    (MASKED_LM, "normformer", {"normformer_head_scale": "none"}, 6 * 5_120 + 1024),
    # Pre-LN's final LayerNorm replaces one on each output
    (LM, "dlcl", {"dlcl_plain": True}, 49 + 1024),
    # a LayerNorm at the end; three a branch, one at the beginning, two at the end
    *((LM, "b2t", {}, 0), (LM, "resi_dual", {}, 1024), (LM, "siamese_norm", {}, 2 * 12 * 1024 + 3 * 1024)),
    # n + (n + n^2) rows of phi and as many b, three a, a branch; n, n and one at the end, and its LayerNorm
    (LM, "mhc", {}, 12 * (24 * 2048 + 24 + 3) + 4 * 2048 + 4 + 1 + 1024),
    (LM, "mhc", {"mhc_streams": 2}, 12 * (8 * 1024 + 8 + 3) + 2 * 1024 + 2 + 1 + 1024),
    # N + M factors, or one a branch; the 2N + 3M LayerNorms are absent
    (MODEL_NAME, "rezero", {}, 12 - 30 * 1024),
    (MODEL_NAME, "rezero", {"rezero_per_sublayer": True}, 30 - 30 * 1024),
]


@pytest.mark.parametrize(("kind", "name", "fields", "expected"), EXTRA)
def test_parameters(kind, name, fields, expected):
    """Each method adds the expected number of parameters to Post-LN's at width 512."""
    depths = {f"{stack}_layers": 6 for stack in STACKS[kind]}
    with torch.device("meta"):
        models = build(kind, 50, method=name, **depths, **fields), build(kind, 50, method="post_ln", **depths)
    sizes = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
    assert sizes[0] - sizes[1] == expected


def test_post_ln_init():
    """Post-LN-init scales by 1 / (N - l + 1) in each stack, on two inits; an option limits it to output matrices."""
    built = method("post_ln_init", 18)
    for layer, expected in {1: 0.0015528, 6: 0.0021501, 17: 0.0139754, 18: 0.0279508}.items():
        assert std(built, "encoder", layer, "ffn", "fc2", "xavier_legacy") == pytest.approx(expected, rel=1e-4)
        for stack, sublayer, role in (("decoder", "encoder_attn", "q"), ("encoder", "self_attn", "out")):
            top = std(built, stack, 18, sublayer, role)
            assert std(built, stack, layer, sublayer, role) * (19 - layer) == pytest.approx(top)
    assert std(built, "encoder", 1, "ffn", "fc2") == pytest.approx(0.00070877, rel=1e-4)
    outputs = method("post_ln_init", 18, weights="output")
    assert [gain(outputs, "decoder", 1, role) for role in ("fc1", "fc2")] == [1, 1 / 18]
    assert [gain(alone("post_ln_init", stack, 18), stack, 2, "fc2") for stack in BOTH] == [1 / 17] * 2


BOTH_STACKS = {  # N = M: of encoder and decoder Sub-LN's gamma, T-Fixup's factor, Admin-torch's omega; R-Fixup's q, fc1
    6: (1.547288, 1.700109, 0.428092, 0.368894, 2.017009, 2.335132, 0.567300, 0.182574),
    18: (2.182857, 1.997244, 0.325279, 0.280299, 3.040839, 3.567189, 0.472382, 0.105409),
    100: (3.173875, 2.388259, 0.211873, 0.182574, 6.074611, 7.193138, 0.354954, 0.044721),
    500: (4.103573, 2.704297, 0.141688, 0.122095, 11.995359, 14.290767, 0.271442, 0.020000),
}


@pytest.mark.parametrize("layers", BOTH_STACKS)
def test_an_encoder_and_a_decoder(layers):
    names = ("sub_ln", "t_fixup", "admin_torch", "r_fixup")
    sub_ln, t_fixup, admin_torch, r_fixup = (method(name, layers) for name in names)
    ours = [sub_ln.coefficients(stack)["gamma"] for stack in BOTH] + [gain(t_fixup, stack, 1, "fc1") for stack in BOTH]
    ours += [admin_torch.omega(stack) for stack in BOTH] + [gain(r_fixup, "decoder", 1, role) for role in ("q", "fc1")]
    assert ours == pytest.approx(BOTH_STACKS[layers], abs=2e-6)
    # both embeddings are scaled by (9 layers)^(-1/4), the decoder's factor
    assert [t_fixup.embedding_gain(stack) for stack in BOTH] == pytest.approx([BOTH_STACKS[layers][3]] * 2, abs=6e-7)
    for stack in BOTH:
        for sublayer in r_fixup.sublayers(stack)[:-1]:
            assert std(r_fixup, stack, 1, sublayer, "v") == pytest.approx(0.03125 * ours[-2])
            assert std(r_fixup, stack, 1, sublayer, "out") == std(r_fixup, stack, 1, "ffn", "fc2") == 0
        assert alone("admin_torch", stack, 3 * layers // 2).omega(stack) == pytest.approx(ours[5], rel=1e-6)
    assert std(t_fixup, "decoder", 1, "encoder_attn", "q") == pytest.approx(0.03125)
    for role in ("self_attn", "q"), ("encoder_attn", "v"):
        assert std(sub_ln, "decoder", 1, *role) == pytest.approx(512**-0.5)


def test_admin_torch_with_other_growth():
    for stack, n in (("encoder", 36), ("decoder", 54)):
        assert method("admin_torch", 18, output_change="constant").omega(stack) == pytest.approx(math.sqrt(n))
        assert method("admin_torch", 18, output_change="linear").omega(stack) == 1


@pytest.mark.parametrize(("layers", "size", "used"), [(6, 49, 28), (100, 10_201, 5_151)])
def test_dlcl_weights(layers, size, used):
    for stack in BOTH:
        weight = method("dlcl", layers).mixer(stack, 8).weights.weight
        assert (weight.numel(), weight.count_nonzero().item()) == (size, used)
        assert torch.allclose(weight.sum(1), torch.ones(layers + 1)) and weight[0, 0] == 1
        assert torch.allclose(weight[-1], torch.full((layers + 1,), 1 / (layers + 1)))


def test_dlcl_window_averages_the_last_outputs():
    weight = method("dlcl", 6, window=3).mixer("encoder", 8).weights.weight
    assert weight[5].tolist() == pytest.approx([0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 0])
    assert weight[1].tolist() == pytest.approx([0.5, 0.5, 0, 0, 0, 0, 0])


def test_t_fixup_schedule():
    """T-Fixup's schedule is lr sqrt(P / (P + t)) with P = 4000."""
    rates = []
    schedule = object.__new__(TFixupSchedule)
    schedule.optimizer = SimpleNamespace(set_lr=rates.append, get_lr=lambda: rates[-1])
    schedule.cfg = TFixupScheduleConfig(lr=[5e-4])
    assert [schedule.step_update(t) for t in (0, 4000, 12000)] == pytest.approx([5e-4, 3.5355e-4, 2.5e-4], rel=1e-4)


def test_t_fixup_scales_a_shared_embedding_once():
    """T-Fixup scales a shared embedding once, by the encoder's depth: (9 * 2)^(-1/4)."""
    model = build(vocab=2000, method="t_fixup", encoder_layers=2, decoder_layers=3, share_all_embeddings=True)
    assert model.encoder.embed_tokens.weight.std().item() == pytest.approx(0.485492 * 512**-0.5, rel=0.01)


DS_INIT = {1: (1, 1), 6: (0.408248, 0.638943), 100: (0.1, 0.316228)}


@pytest.mark.parametrize("layer", DS_INIT)
def test_ds_init(layer):
    built, code = method("ds_init", 100), method("ds_init", 100, exponent=0.25)
    actual = gain(built, "decoder", layer, "fc1"), gain(code, "decoder", layer, "fc1")
    assert actual == pytest.approx(DS_INIT[layer], abs=6e-7)
    assert gain(alone("ds_init", "encoder", 100), "encoder", layer, "fc2") == pytest.approx(DS_INIT[layer][0], abs=6e-7)


def test_branchnorm_rises_from_one_over_t():
    model = small(MODEL_NAME, 1, method="branchnorm", branchnorm_updates=10)
    residual = model.decoder.layers[0].residual["encoder_attn"]
    assert residual.a.item() == pytest.approx(0.1)
    for updates, expected in ((0, 0.1), (4, 0.5), (9, 1), (500, 1)):
        model.set_num_updates(updates)
        assert residual.a.item() == pytest.approx(expected)


@pytest.mark.parametrize("kind", [MODEL_NAME, LM])
@pytest.mark.parametrize("name", ["r_fixup", "rezero"])
def test_branches_are_silent_at_first(name, kind):
    """Branches begin at zero: the encoder returns its embeddings, the decoder scores words by theirs.

    Without tied embeddings all of R-Fixup's scores are 0, and the loss is ln V.
    """
    model = small(kind, 3, method=name, share_decoder_input_output_embed=True)
    given = inputs(kind)
    with torch.no_grad():
        if kind == MODEL_NAME:
            x, _ = model.encoder.embed(given[0], model.encoder.positions(given[0]))
            memory = model.encoder(given[0])["encoder_out"][0].transpose(0, 1)
            assert torch.allclose(memory[0], x[0], atol=1e-6)
        y, _ = model.decoder.embed(given[-1], model.decoder.positions(given[-1]))
        expected = y @ model.decoder.embed_tokens.weight.T
    assert torch.allclose(scores(model, *given), expected, atol=1e-5)
    assert name != "r_fixup" or not scores(small(kind, 3, method=name), *given).any()


def test_first_step_of_rezero():
    """ReZero's first step gives gradients only to factors, embeddings and the output projection."""
    model = small(MODEL_NAME, method="rezero")
    loss_of(model).backward()
    moved = {name for name, p in model.named_parameters() if p.grad.abs().max() > 0}
    # the encoder gets no gradient while the factor of cross-attention is 0
    factors = {f"decoder.layers.{l}.residual.self_attn.a" for l in (0, 1)}
    assert moved == factors | {"decoder.embed_tokens.weight", "decoder.output_projection.weight"}
