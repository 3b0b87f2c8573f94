"""Each method's numbers in a stack alone, against closed forms worked out by hand, and what is drawn from them."""

import math

import pytest
import torch
from torch import nn

from deepnet_fairseq import archs
from deepnet_fairseq.building import build
from deepnet_fairseq.initialisation import branch_weights, init_report, initialize
from deepnet_fairseq.methods import METHODS, get_method
from deepnet_fairseq.methods.deepnorm import DeepNorm
from deepnet_fairseq.transformer.slots import Site

from .support.helpers import PAD, VOCAB
from .support.single_stacks import KINDS, batch, scores, small, stack_of
from .test_method_numbers import std

DEEPNORM = {6: (1.861210, 0.379918), 18: (2.449490, 0.288675), 100: (3.760603, 0.188030), 500: (5.623413, 0.125743)}
SUB_LN = {6: 1.576359, 18: 1.893018, 100: 2.301807, 500: 2.628260}  # sqrt(ln 2N)
T_FIXUP = {6: (0.428092, 0.368894), 18: (0.325279, 0.280299), 100: (0.211873, 0.182574), 500: (0.141688, 0.122095)}
R_FIXUP = {6: (0.660901, 0.288675), 18: (0.550321, 0.166667), 100: (0.413519, 0.070711), 500: (0.316228, 0.031623)}
ADMIN_TORCH = {6: 2.017009, 18: 3.040839, 100: 6.074611, 500: 11.995359}  # sqrt((n + 1) / ln(n + 1) - 1), n = 2N
XAVIER = {"v": 0.0441942, "out": 0.0441942, "fc1": 0.0279508, "fc2": 0.0279508}  # at width 512, feed-forward 2048


@pytest.fixture(params=["encoder", "decoder"])
def stack(request):
    return request.param


def alone(name, stack, layers, **options):
    """The method of a model with this stack and no other."""
    return get_method(name)(*((layers, 0) if stack == "encoder" else (0, layers)), **options)


@pytest.mark.parametrize("layers", DEEPNORM)
def test_deepnorm(layers, stack):
    numbers = DeepNorm(*((layers, 0) if stack == "encoder" else (0, layers))).numbers(stack)
    assert (numbers.alpha, numbers.beta) == pytest.approx(DEEPNORM[layers], abs=6e-7)
    assert numbers.alpha * numbers.beta == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [6, 100])
def test_what_deepnorm_builds(layers, kind):
    """alpha in every branch's merge and in the checkpoint."""
    model = small(kind, layers)
    alpha = DEEPNORM[layers][0]
    merges = [layer.residual[name].alpha for layer in model.stacks()[stack_of(kind)].layers for name in layer.sites]
    assert merges == pytest.approx([alpha] * 2 * layers, abs=6e-7)
    assert model.state_dict()[f"{stack_of(kind)}.alpha"].item() == pytest.approx(alpha, abs=6e-7)


@pytest.mark.parametrize("layers", DEEPNORM)
def test_what_deepnorm_draws(layers):
    """Two layers of an N-layer model at base width; 260,000 entries and more: sampling error below 0.3%."""
    model = build(archs.LM, 50, decoder_layers=2)
    torch.manual_seed(0)
    initialize(model, DeepNorm(0, layers), "xavier_normal")
    for role, plain in XAVIER.items():
        found = torch.cat([w.linear.weight.flatten() for w in branch_weights(model) if w.role == role]).std().item()
        assert found == pytest.approx(plain * DEEPNORM[layers][1], rel=0.01)
    for weight in branch_weights(model):
        assert not weight.linear.bias.any()
        if weight.role in ("q", "k"):
            assert weight.linear.weight.std().item() == pytest.approx(0.0441942, rel=0.01)


@pytest.mark.parametrize("layers", SUB_LN)
def test_sub_ln(layers, stack):
    built = alone("sub_ln", stack, layers)
    assert built.gamma(stack) == pytest.approx(SUB_LN[layers], abs=2e-6)
    assert std(built, stack, 1, "self_attn", "v") == pytest.approx(SUB_LN[layers] * XAVIER["v"], rel=1e-4)
    assert std(built, stack, 1, "ffn", "fc1") == pytest.approx(SUB_LN[layers] * XAVIER["fc1"], rel=1e-4)
    assert std(built, stack, 1, "self_attn", "q") == pytest.approx(XAVIER["v"], rel=1e-4)


@pytest.mark.parametrize("layers", T_FIXUP)
def test_t_fixup(layers, stack):
    """0.67 N^(-1/4) and (9N)^(-1/4), the encoder's, in either stack alone."""
    built = alone("t_fixup", stack, layers)
    found = built.gain(Site(stack, layers, "ffn", 512, 8), "fc2"), built.embedding_gain(stack)
    assert found == pytest.approx(T_FIXUP[layers], abs=6e-7)
    assert std(built, stack, 1, "self_attn", "q") == pytest.approx(0.03125)


@pytest.mark.parametrize("layers", R_FIXUP)
def test_r_fixup(layers, stack):
    """L = 2N branches."""
    built = alone("r_fixup", stack, layers)
    found = [built.gain(Site(stack, 1, "ffn", 512, 8), role) for role in ("q", "fc1", "out", "fc2")]
    assert found == pytest.approx([*R_FIXUP[layers], 0, 0], abs=6e-7)


@pytest.mark.parametrize("layers", ADMIN_TORCH)
def test_admin_torch(layers, stack):
    assert alone("admin_torch", stack, layers).omega(stack) == pytest.approx(ADMIN_TORCH[layers], abs=6e-7)
    constant = alone("admin_torch", stack, layers, output_change="constant")
    assert constant.omega(stack) == pytest.approx(math.sqrt(2 * layers))


@pytest.mark.parametrize(
    ("layer", "ds_init", "post_ln_init"), [(1, 1, 1 / 18), (2, 0.707107, 1 / 17), (18, 0.235702, 1)]
)
def test_inits_by_layer(layer, ds_init, post_ln_init, stack):
    site = Site(stack, layer, "ffn", 512, 8)
    found = [alone(name, stack, 18).gain(site, "fc2") for name in ("ds_init", "post_ln_init")]
    assert found == pytest.approx([ds_init, post_ln_init], abs=6e-7)


EXTRA = {  # parameters beside Post-LN's of 6 layers at width 512 and feed-forward 2048
    "admin": 12 * 512,  # omega, one a branch
    "dlcl": 49 + 7 * 1024,  # (N + 1)^2 weights, a LayerNorm on each output, Pre-LN's last one
    "rezero": 6 - 12 * 1024,  # a factor a layer, no LayerNorm
    "pre_ln": 1024,
    "sub_ln": 6 * (1024 + 4096) + 1024,
    "t_fixup": -12 * 1024,
    # q, k, v, out and fc2 as wide as the model, fc1 2048; b and m of each branch, b of fc1 and fc2, the end's
    "r_fixup": -12 * 1024 - 6 * (5 * 512 + 2048) + 6 * 6 + 1,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXTRA)
def test_parameters(name, kind):
    def count(method):
        with torch.device("meta"):
            model = build(kind, 50, method=method, **{f"{stack_of(kind)}_layers": 6})
        return sum(parameter.numel() for parameter in model.parameters())

    encoders_end = int(name == "r_fixup" and kind == archs.MASKED_LM)  # m (x - b) instead of x - b
    assert count(name) - count("post_ln") == EXTRA[name] + encoders_end


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_what_is_drawn_is_what_the_method_says(method, kind):
    """Measured over expected std, pooled over the layers; embeddings, positions, head; norms 1 and 0; padding 0."""
    torch.manual_seed(0)
    stack = stack_of(kind)
    fields = {f"{stack}_layers": 2, f"{stack}_embed_dim": 336, f"{stack}_learned_pos": True}
    model = build(kind, 2000, method=method, **fields)
    built = alone(method, stack, 2)
    for row in init_report(model, built, built.init_profiles[0]):
        assert row.ratio == pytest.approx(1, abs=0.015), row
    part, gain = model.stacks()[stack], 18**-0.25 if method == "t_fixup" else 1
    for embedding, wanted in ((part.embed_tokens, gain), (part.embed_positions, 1)):
        assert not embedding.weight[PAD].any()
        assert embedding.weight[PAD + 1 :].std().item() * math.sqrt(336) == pytest.approx(wanted, rel=0.01)
    projection = model.vocabulary_projection()
    assert (projection.weight is part.embed_tokens.weight) == (kind == archs.MASKED_LM)
    if kind == archs.LM:
        silent = 0 if method == "r_fixup" else 1
        assert projection.weight.std().item() * math.sqrt(336) == pytest.approx(silent, rel=0.01)
    else:
        assert model.lm_head.dense.weight.std().item() * math.sqrt(336) == pytest.approx(1, rel=0.01)
        assert not model.lm_head.bias.any() and not model.lm_head.dense.bias.any()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all() and not module.bias.any()


def test_r_fixup_knows_nothing_at_first():
    """All scores are 0 and the loss is ln V: a perplexity of the vocabulary's size."""
    assert not scores(small(archs.LM, 3, method="r_fixup"), batch()).any()


@pytest.mark.parametrize("name", ["r_fixup", "rezero"])
def test_branches_are_silent_at_first(name):
    """What is read is what is given: the scores are products of embeddings."""
    model, tokens = small(archs.LM, 3, method=name, share_decoder_input_output_embed=True), batch()
    with torch.no_grad():
        x, _ = model.decoder.embed(tokens, model.decoder.positions(tokens))
        assert torch.allclose(scores(model, tokens), x @ model.decoder.embed_tokens.weight.T, atol=1e-5)
    assert scores(model, tokens).shape == (3, 9, VOCAB)
