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

BASE_STD = 0.0095954  # of fc1 and fc2 in a decoder of 6L-6L: DeepNorm's beta 0.343295 x Xavier's 0.0279508


def first_layers(method, profile):
    """Build a 2L-2L base model initialised as the first layers of a 6L-6L one."""
    model = build(encoder_layers=2, decoder_layers=2, method=method, vocab=50)
    torch.manual_seed(0)
    initialize(model, get_method(method)(6, 6), profile)
    return model


def largest_in_stds(weight):
    return (weight.abs().max() / weight.std()).item()


@pytest.mark.parametrize("profile", ["xavier_normal", "xavier_uniform"])
def test_deepnorms_profiles_have_its_std_and_no_biases(profile):
    model = first_layers("deepnorm", profile)

    assert model.decoder.layers[0].fc1.weight.std().item() == pytest.approx(BASE_STD, rel=0.01)
    for weight in branch_weights(model):
        assert not weight.linear.bias.any()


def test_deepnorm_draws_from_a_normal_distribution():
    model = first_layers("deepnorm", "xavier_normal")

    assert largest_in_stds(model.decoder.layers[0].fc1.weight) > 3.5


def test_deepnorms_variant_draws_from_a_uniform_distribution():
    """It ends at sqrt(3) standard deviations."""
    model = first_layers("deepnorm", "xavier_uniform")

    assert largest_in_stds(model.decoder.layers[0].fc1.weight) == pytest.approx(math.sqrt(3), rel=0.01)


def test_fairseqs_biases_are_drawn_but_for_attentions_output():
    """Their bound is 1 / sqrt(inputs), 512 or 2048."""
    bounds = {"q": 0.0442, "k": 0.0442, "v": 0.0442, "out": 0.0, "fc1": 0.0442, "fc2": 0.0221}

    for weight in branch_weights(first_layers("post_ln", "fairseq_head")):
        largest = weight.linear.bias.abs().max().item()
        assert largest == pytest.approx(bounds[weight.role], rel=0.02), weight


def test_biases_of_the_legacy_profile_are_zero():
    for weight in branch_weights(first_layers("post_ln", "xavier_legacy")):
        assert not weight.linear.bias.any(), weight


@pytest.mark.parametrize("decoder_width", [256, 384])
def test_profile_fairseq_head_is_what_fairseq_draws(decoder_width):
    """Every matrix has the std of the stock model's, whose sampling noise is below 3%."""
    fields = {
        "encoder_embed_dim": 256,
        "decoder_embed_dim": decoder_width,
        "encoder_ffn_embed_dim": 512,
        "decoder_ffn_embed_dim": 512,
    }
    ours = single_stacks.small(archs.MODEL_NAME, method="post_ln", **fields).state_dict()
    theirs = single_stacks.stock(archs.MODEL_NAME, **fields).state_dict()

    matrices = [name for name, tensor in ours.items() if tensor.dim() == 2]
    branches = [name for name in matrices if "embed_tokens" not in name and "output_projection" not in name]
    assert branches
    for name in branches:
        assert ours[name].std().item() == pytest.approx(theirs[name].std().item(), rel=0.03), name


WIDTH = 336
INITIAL_EMBEDDING = {"t_fixup": 18**-0.25}  # times 1 / sqrt(width): T-Fixup's (9N)^(-1/4) for N = 2
INITIAL_PROJECTION = {"r_fixup": 0}


@pytest.fixture(scope="module", params=range(len(METHODS)), ids=sorted(METHODS))
def method_and_model(request):
    """Provide each method with a model in one of three kinds, with 2 layers a stack.

    Learned positions and 2000 symbols of width 336 make standard deviations of embeddings exact enough.
    """
    name = sorted(METHODS)[request.param]
    kind = single_stacks.EVERY[request.param % 3]
    fields = {}
    for stack in archs.STACKS[kind]:
        fields[f"{stack}_layers"] = 2
        fields[f"{stack}_embed_dim"] = WIDTH
        fields[f"{stack}_learned_pos"] = True
    depths = [2 if stack in archs.STACKS[kind] else 0 for stack in ("encoder", "decoder")]

    torch.manual_seed(0)
    model = build(kind, 2000, method=name, **fields)
    return get_method(name)(*depths), model


def std_in_widths(weight):
    """Return the standard deviation of a matrix times sqrt(width)."""
    return weight.std().item() * WIDTH**0.5


def test_branch_weights_have_the_std_that_the_methods_gain_states(method_and_model):
    """The std is pooled over layers."""
    method, model = method_and_model

    report = list(init_report(model, method, method.init_profiles[0]))

    assert report
    for row in report:
        assert row.ratio == pytest.approx(1, abs=0.015), row


def test_embeddings_have_the_methods_std_and_padding_is_zero(method_and_model):
    method, model = method_and_model

    for stack in model.stacks().values():
        words = stack.embed_tokens.weight
        positions = stack.embed_positions.weight
        assert not words[PAD].any()
        assert not positions[PAD].any()
        assert std_in_widths(words[PAD + 1 :]) == pytest.approx(INITIAL_EMBEDDING.get(method.name, 1), rel=0.01)
        assert std_in_widths(positions[PAD + 1 :]) == pytest.approx(1, rel=0.01)


def test_the_vocabulary_projection_is_drawn_or_tied_in_a_masked_model(method_and_model):
    method, model = method_and_model
    first_stack = next(iter(model.stacks().values()))
    projection = model.vocabulary_projection().weight

    if model.NAME == archs.MASKED_LM:
        assert projection is first_stack.embed_tokens.weight
        assert std_in_widths(model.lm_head.dense.weight) == pytest.approx(1, rel=0.01)
        assert not model.lm_head.bias.any()
        assert not model.lm_head.dense.bias.any()
    else:
        assert projection is not first_stack.embed_tokens.weight
        assert std_in_widths(projection) == pytest.approx(INITIAL_PROJECTION.get(method.name, 1), rel=0.01)


def test_layer_norms_begin_as_plain_ones(method_and_model):
    _, model = method_and_model

    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
            assert not module.bias.any()


def test_a_parameter_that_no_profile_knows_is_an_error():
    model = small(1)
    model.encoder.surprise = nn.Parameter(torch.zeros(3))

    with pytest.raises(ValueError, match=r"encoder\.surprise"):
        initialize(model, METHODS["deepnorm"](1, 1), "xavier_normal")
