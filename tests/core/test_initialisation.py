"""Tests of initial weights against the closed forms of each method and profile."""

import math

import pytest
import torch
from torch import nn

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.initialisation import branch_weights, init_report, initialize
from deepnet_fairseq.core.methods import METHODS, get_method
from deepnet_fairseq.plugin.building import build

from ..support import single_stacks
from ..support.helpers import PAD, small

BOTH = ("encoder", "decoder")


def first_layers(method, profile):
    """Build a 2L-2L base model initialised as the first layers of a 6L-6L one."""
    model = build(encoder_layers=2, decoder_layers=2, method=method, vocab=50)
    torch.manual_seed(0)
    initialize(model, get_method(method)(6, 6), profile)
    return model


def test_deepnorm_is_normal_and_its_variant_uniform():
    """DeepNorm draws from a normal distribution, and its variant from a uniform one, which ends at sqrt(3) std."""
    for profile, bound in (("xavier_normal", None), ("xavier_uniform", math.sqrt(3))):
        model = first_layers("deepnorm", profile)
        weight = model.decoder.layers[0].fc1.weight
        largest = (weight.abs().max() / weight.std()).item()
        assert largest > 3.5 if bound is None else largest == pytest.approx(bound, rel=0.01)
        assert weight.std().item() == pytest.approx(0.0095954, rel=0.01)
        assert not any(weight.linear.bias.any() for weight in branch_weights(model))


HEAD_BIAS_BOUND = {"q": 0.0442, "k": 0.0442, "v": 0.0442, "out": 0.0, "fc1": 0.0442, "fc2": 0.0221}


@pytest.mark.parametrize("profile", ["fairseq_head", "xavier_legacy"])
def test_biases_of_vanilla_profiles(profile):
    for weight in branch_weights(first_layers("post_ln", profile)):
        bound = HEAD_BIAS_BOUND[weight.role] if profile == "fairseq_head" else 0.0
        assert weight.linear.bias.abs().max().item() == pytest.approx(bound, rel=0.02)


@pytest.mark.parametrize("decoder_width", [256, 384])
def test_fairseq_head_is_what_fairseq_draws(decoder_width):
    """Every tensor of profile fairseq has the std of the stock model's, whose sampling noise is below 3%."""
    wide = {"encoder_embed_dim": 256, "decoder_embed_dim": decoder_width}
    wide |= {"encoder_ffn_embed_dim": 512, "decoder_ffn_embed_dim": 512}
    ours = single_stacks.small(archs.MODEL_NAME, method="post_ln", **wide).state_dict()
    theirs = single_stacks.stock(archs.MODEL_NAME, **wide).state_dict()
    for name, tensor in ours.items():
        if tensor.dim() == 2 and "embed_tokens" not in name and "output_projection" not in name:
            assert tensor.std().item() == pytest.approx(theirs[name].std().item(), rel=0.03), name


@pytest.mark.parametrize("number", range(len(METHODS)), ids=sorted(METHODS))
def test_what_is_drawn_is_what_the_method_says(number):
    """Initial weights have the std that the method states, pooled over layers; norms are 1 and 0, padding is 0."""
    name, kind = sorted(METHODS)[number], single_stacks.EVERY[number % 3]
    stacks = archs.STACKS[kind]
    fields = {f"{stack}_{field}": value for stack in stacks for field, value in
              (("layers", 2), ("embed_dim", 336), ("learned_pos", True))}  # fmt: skip
    torch.manual_seed(0)
    model, method = build(kind, 2000, method=name, **fields), get_method(name)(*(2 * (s in stacks) for s in BOTH))
    for row in init_report(model, method, method.init_profiles[0]):
        assert row.ratio == pytest.approx(1, abs=0.015), row
    for stack in model.stacks().values():  # T-Fixup's (9N)^(-1/4), and R-Fixup's zeros
        for embedding, gain in (
            (stack.embed_tokens, 18**-0.25 if name == "t_fixup" else 1),
            (stack.embed_positions, 1),
        ):
            assert not embedding.weight[PAD].any()
            assert embedding.weight[PAD + 1 :].std().item() * 336**0.5 == pytest.approx(gain, rel=0.01)
    projection = model.vocabulary_projection()
    assert (kind == archs.MASKED_LM) == (projection.weight is next(iter(model.stacks().values())).embed_tokens.weight)
    if kind == archs.MASKED_LM:
        assert model.lm_head.dense.weight.std().item() * 336**0.5 == pytest.approx(1, rel=0.01)
        assert not model.lm_head.bias.any() and not model.lm_head.dense.bias.any()
    else:
        assert projection.weight.std().item() * 336**0.5 == pytest.approx(0 if name == "r_fixup" else 1, rel=0.01)
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert all((norm.weight == 1).all() and not norm.bias.any() for norm in norms)


def test_unknown_parameter_raises():
    model = small(1)
    model.encoder.surprise = nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"encoder\.surprise"):
        initialize(model, METHODS["deepnorm"](1, 1), "xavier_normal")
