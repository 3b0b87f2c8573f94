"""Tests of initial weights against the closed forms of each method and profile.

A profile says from which distribution matrices and biases are drawn; a method multiplies the standard deviations of
matrices by gains of its own. "6L-6L" is a model of 6 encoder and 6 decoder layers.
"""

import math
from typing import NamedTuple

import pytest
import torch
from torch import nn

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.initialisation import branch_weights, init_report, initialize
from deepnet_fairseq.core.methods import METHODS, Method, get_method
from deepnet_fairseq.plugin.building import build

from ..support import single_stacks
from ..support.helpers import PAD, small


def first_layers(method, profile):
    """Build a 2L-2L model of width 512 and FFN width 2048, initialised as the first layers of a 6L-6L one."""
    model = build(encoder_layers=2, decoder_layers=2, method=method, vocab=50)
    torch.manual_seed(0)
    initialize(model, get_method(method)(6, 6), profile)
    return model


def largest_in_stds(weight):
    return (weight.abs().max() / weight.std()).item()


@pytest.mark.parametrize("profile", ["xavier_normal", "xavier_uniform"])
def test_deepnorms_profiles_have_the_std_beta_times_xaviers(profile):
    model = first_layers("deepnorm", profile)

    beta = (12 * 6) ** -0.25  # DeepNorm's factor in a decoder, DeepNet's Figure 2
    xavier = math.sqrt(2 / (512 + 2048))
    assert model.decoder.layers[0].fc1.weight.std().item() == pytest.approx(beta * xavier, rel=0.01)


@pytest.mark.parametrize(
    ("method", "profile"),
    [("deepnorm", "xavier_normal"), ("deepnorm", "xavier_uniform"), ("post_ln", "xavier_legacy")],
)
def test_biases_of_the_xavier_profiles_are_zero(method, profile):
    for weight in branch_weights(first_layers(method, profile)):
        assert not weight.linear.bias.any(), weight


def test_deepnorm_draws_from_a_normal_distribution():
    """The largest of a million normal numbers is near 5 standard deviations."""
    model = first_layers("deepnorm", "xavier_normal")

    assert largest_in_stds(model.decoder.layers[0].fc1.weight) > 3.5


def test_deepnorms_variant_draws_from_a_uniform_distribution():
    """A uniform distribution ends at sqrt(3) standard deviations."""
    model = first_layers("deepnorm", "xavier_uniform")

    assert largest_in_stds(model.decoder.layers[0].fc1.weight) == pytest.approx(math.sqrt(3), rel=0.01)


def test_fairseqs_biases_are_drawn_but_for_attentions_output():
    """The bound of drawn biases is 1 / sqrt(inputs of the matrix)."""
    bounds = {"q": 512**-0.5, "k": 512**-0.5, "v": 512**-0.5, "out": 0.0, "fc1": 512**-0.5, "fc2": 2048**-0.5}

    for weight in branch_weights(first_layers("post_ln", "fairseq_head")):
        largest = weight.linear.bias.abs().max().item()
        assert largest == pytest.approx(bounds[weight.role], rel=0.02), weight


@pytest.mark.parametrize("decoder_width", [256, 384])  # the encoder's width and another one, for cross-attention
def test_profile_fairseq_head_is_what_fairseq_draws(decoder_width):
    """Every matrix of a branch has the std of the stock model's matrix. The sampling noise is below 3%."""
    fields = {
        "encoder_embed_dim": 256,
        "decoder_embed_dim": decoder_width,
        "encoder_ffn_embed_dim": 512,
        "decoder_ffn_embed_dim": 512,
    }
    ours = single_stacks.small(archs.MODEL_NAME, method="post_ln", **fields).state_dict()
    theirs = single_stacks.stock(archs.MODEL_NAME, **fields).state_dict()

    matrices = [name for name, tensor in ours.items() if tensor.dim() == 2]
    of_branches = [name for name in matrices if "embed_tokens" not in name and "output_projection" not in name]
    assert of_branches
    for name in of_branches:
        assert ours[name].std().item() == pytest.approx(theirs[name].std().item(), rel=0.03), name


WIDTH = 336
EMBEDDING_GAINS = {"t_fixup": (9 * 2) ** -0.25}  # method -> factor on 1 / sqrt(width): T-Fixup's (9N)^(-1/4), N = 2
PROJECTION_GAINS = {"r_fixup": 0}  # method -> factor on 1 / sqrt(width), of the projection to the vocabulary


class Drawn(NamedTuple):
    """A model with its initial values, and the method that drew them."""

    method: Method
    model: nn.Module


@pytest.fixture(scope="module", params=range(len(METHODS)), ids=sorted(METHODS))
def drawn(request):
    """Provide a model of each method in one of three kinds, in turn, with 2 layers a stack.

    Learned positions and 2000 symbols of width 336 make standard deviations of embeddings exact enough.
    """
    name = sorted(METHODS)[request.param]
    kind = single_stacks.EVERY_KIND[request.param % 3]
    fields = {}
    for stack in archs.STACKS[kind]:
        fields[f"{stack}_layers"] = 2
        fields[f"{stack}_embed_dim"] = WIDTH
        fields[f"{stack}_learned_pos"] = True
    depths = [2 if stack in archs.STACKS[kind] else 0 for stack in ("encoder", "decoder")]

    torch.manual_seed(0)
    model = build(kind, 2000, method=name, **fields)
    return Drawn(get_method(name)(*depths), model)


def std_in_widths(weight):
    """Return the standard deviation of a matrix times sqrt(width)."""
    return weight.std().item() * WIDTH**0.5


def test_branch_weights_have_the_std_that_the_methods_gain_states(drawn):
    """A row of the report compares the matrices of one role, over all layers of a stack."""
    default_profile = drawn.method.init_profiles[0]

    report = init_report(drawn.model, drawn.method, default_profile)

    assert report
    for row in report:
        assert row.ratio == pytest.approx(1, abs=0.015), row


def test_embeddings_have_the_methods_std_and_zero_for_padding(drawn):
    gain = EMBEDDING_GAINS.get(drawn.method.name, 1)

    for stack in drawn.model.stacks().values():
        symbols = stack.embed_tokens.weight
        assert std_in_widths(symbols[PAD + 1 :]) == pytest.approx(gain, rel=0.01)
        assert not symbols[PAD].any()


def test_positions_have_the_same_std_in_all_methods_and_zero_for_padding(drawn):
    for stack in drawn.model.stacks().values():
        positions = stack.embed_positions.weight
        assert std_in_widths(positions[PAD + 1 :]) == pytest.approx(1, rel=0.01)
        assert not positions[PAD].any()


def test_the_vocabulary_projection_is_drawn_or_tied_in_a_masked_model(drawn):
    model = drawn.model
    first_stack = next(iter(model.stacks().values()))
    projection = model.vocabulary_projection().weight

    if model.NAME == archs.MASKED_LM:
        assert projection is first_stack.embed_tokens.weight
        assert std_in_widths(model.lm_head.dense.weight) == pytest.approx(1, rel=0.01)
        assert not model.lm_head.bias.any()
        assert not model.lm_head.dense.bias.any()
    else:
        gain = PROJECTION_GAINS.get(drawn.method.name, 1)
        assert projection is not first_stack.embed_tokens.weight
        assert std_in_widths(projection) == pytest.approx(gain, rel=0.01)


def test_layer_norms_begin_with_gain_one_and_bias_zero(drawn):
    for module in drawn.model.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()
            assert not module.bias.any()


def test_a_parameter_that_no_rule_covers_is_an_error():
    model = small(1)
    model.encoder.surprise = nn.Parameter(torch.zeros(3))

    with pytest.raises(ValueError, match=r"encoder\.surprise"):
        initialize(model, METHODS["deepnorm"](1, 1), "xavier_normal")
