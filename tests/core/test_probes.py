"""Tests of each probe against an independent computation, on all kinds of model, without fairseq's programs.

A probe reports numbers of an update by address: "decoder.2" is a layer, "decoder.2.ffn" a branch of it, and
"decoder.2.ffn.fc1" a matrix of the branch; layers count from 1. `observing.observe` makes forward and backward pass of
an update, but no step of an optimiser, and returns probe -> address -> value. All models have 2 layers a stack of width
16, 2 heads and feed-forward width 32.
"""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.probes import PROBES, get_probes
from deepnet_fairseq.core.probes.base import FixedBatch
from deepnet_fairseq.core.probes.model_update import outputs
from deepnet_fairseq.core.probes.session import Session

from ..support import observing, single_stacks
from ..support.helpers import FIRST, PAD
from ..support.observing import net_input

TRANSLATION = archs.MODEL_NAME
# kind of model -> the part of it that scores the vocabulary
HEADS = {TRANSLATION: "decoder", archs.LM: "decoder", archs.MASKED_LM: "lm_head"}
LAYERS = (1, 2)
WIDTH = 16
FFN_WIDTH = 32


def two_layer_model(kind=TRANSLATION, **fields):
    """Build a model of two layers a stack."""
    return single_stacks.small(kind, 2, **fields)


def fixed_batch(kind):
    """Return the batch on which model_update compares outputs, another one than `observe_one_update` trains on."""
    if kind == TRANSLATION:
        return net_input(seed=9)
    return {"src_tokens": single_stacks.batch(seed=9), "src_lengths": None}


def observe_one_update(model, probes="all", scale=1.0):
    """Return the probes' values of an update on one batch.

    The loss is divided by `scale` before the backward pass, and the probes are told so, as in half precision. The batch
    of a language model is that of single_stacks.loss_of.
    """
    if model.NAME == TRANSLATION:
        return observing.observe(model, [net_input()], probes, scale)
    held = fixed_batch(model.NAME)
    return observing.observe(model, [None], probes, scale, loss=single_stacks.loss_of, held_out=held)


def addresses_of_branches(stacks):
    """Return the addresses of all branches of the two layers of these stacks."""
    addresses = set()
    for stack in stacks:
        branches = ["self_attn", "ffn"]
        if stack == "decoder" and len(stacks) == 2:
            branches.append("encoder_attn")
        for layer in LAYERS:
            addresses |= {f"{stack}.{layer}.{branch}" for branch in branches}
    return addresses


def addresses_of_normalised_branches(model):
    """Return the addresses of the branches that have a LayerNorm of fairseq's layer."""
    addresses = set()
    for stack in model.stacks().values():
        for layer in stack.layers:
            addresses |= {str(layer.sites[branch]) for branch, place in layer.norm_place.items() if place != "none"}
    return addresses


every_method = pytest.mark.parametrize(
    ("kind", "method"),
    [
        *product([TRANSLATION], sorted(METHODS)),
        *product(single_stacks.SINGLE_STACKS, ("deepnorm", "normformer", "rezero", "dlcl")),  # language models
    ],
)


@every_method
def test_every_probe_reports_finite_values_of_every_layer_or_branch(kind, method):
    model = two_layer_model(kind, method=method).train()
    stacks = model.stacks()

    values = observe_one_update(model)

    assert values.keys() == PROBES.keys()
    first_words = set()
    for of_probe in values.values():
        for address, value in of_probe.items():
            assert math.isfinite(value), address
            first_words.add(address.split(".")[0])
    head = {"lm_head"} if kind == archs.MASKED_LM else set()
    assert first_words == stacks.keys() | head | {"gradient"}  # half_precision reports the whole gradient
    for stack, layer in product(stacks, LAYERS):
        assert f"{stack}.{layer}" in values["gradient_norm"]
    assert values["branch_dependency"].keys() == addresses_of_branches(stacks)
    assert addresses_of_normalised_branches(model) <= values["ln_input"].keys()
    assert values["model_update"] == dict.fromkeys(stacks, 0.0)  # no step of an optimiser was made


@every_method
def test_probes_leave_no_hooks_and_the_mode_as_it_was(kind, method):
    model = two_layer_model(kind, method=method).train()

    observe_one_update(model)

    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert module.training


def gradient_norm_by_hand(model, prefix, scale):
    """Compute the L2 norm of all gradients of parameters whose names begin so, times `scale`."""
    squares = 0.0
    for name, parameter in model.named_parameters():
        if name.startswith(prefix):
            squares += parameter.grad.square().sum().item()
    return math.sqrt(squares) * scale


@pytest.mark.parametrize("kind", single_stacks.EVERY_KIND)
def test_gradient_norms_are_autograds(kind):
    """The norms of the layers and of the parameters outside layers together give the norm of all gradients."""
    model = two_layer_model(kind)
    scale = 1 / 8

    norms = observe_one_update(model, "gradient_norm", scale)["gradient_norm"]

    def by_hand(prefix):
        return pytest.approx(gradient_norm_by_hand(model, prefix, scale), rel=1e-5)

    for stack in model.stacks():
        for layer in LAYERS:
            name_of_layer = f"{stack}.layers.{layer - 1}"
            assert norms[f"{stack}.{layer}"] == by_hand(f"{name_of_layer}.")
            assert norms[f"{stack}.{layer}.self_attn.v"] == by_hand(f"{name_of_layer}.self_attn.v_proj.weight")
            assert norms[f"{stack}.{layer}.ffn.fc2"] == by_hand(f"{name_of_layer}.fc2.weight")
    outside_layers = "lm_head.dense" if kind == archs.MASKED_LM else "decoder.output_projection"
    assert norms[outside_layers] == by_hand(outside_layers)
    squares = 0.0
    for address, norm in norms.items():
        is_matrix = address.count(".") == 3  # whose layer counts already
        if not is_matrix:
            squares += norm**2
    assert math.sqrt(squares) == by_hand("")


def test_mean_l1_norms_are_nearly_l2_norms_over_the_root_of_the_elements():
    """The mean of n absolute values is at most L2 / sqrt(n), and not far below it without outliers."""
    values = observe_one_update(two_layer_model(), "gradient_l1,gradient_norm", scale=1 / 8)

    means = values["gradient_l1"]
    l2_norms = values["gradient_norm"]
    matrices = {address for address in l2_norms if address.count(".") == 3}
    assert len(matrices) == 2 * 6 + 2 * 10  # of two encoder layers and two decoder layers
    assert means.keys() == matrices
    for address, mean in means.items():
        elements = WIDTH * FFN_WIDTH if "fc" in address else WIDTH * WIDTH
        largest = l2_norms[address] / math.sqrt(elements)
        assert mean <= largest * (1 + 1e-5), address
        assert mean > 0.2 * largest, address


def test_gradients_of_a_frozen_decoder_are_not_reported():
    model = two_layer_model()
    model.decoder.layers.requires_grad_(False)

    means = observe_one_update(model, "gradient_l1")["gradient_l1"]

    assert len(means) == 2 * 6  # matrices of two encoder layers
    for address in means:
        assert address.startswith("encoder.")


def test_nothing_is_reported_of_gradients_if_all_layers_are_frozen():
    model = two_layer_model()
    model.encoder.layers.requires_grad_(False)
    model.decoder.layers.requires_grad_(False)

    assert observe_one_update(model, "gradient_l1")["gradient_l1"] == {}


def test_nothing_is_reported_of_gradients_if_all_parameters_are_frozen():
    """The probe half_precision still reports a number for each stack."""
    model = two_layer_model().requires_grad_(False)
    session = Session(model, get_probes("gradient_norm,gradient_l1,half_precision"))
    session.begin()
    model(**net_input())

    session.gradients(scale=1.0)

    values = session.values()
    assert values["gradient_norm"] == values["gradient_l1"] == {}
    assert values["half_precision"].keys() == {"encoder", "decoder"}


@pytest.mark.parametrize("probe", ["gradient_norm", "half_precision"])
def test_a_parameter_without_elements_changes_no_number_of_a_gradient(probe):
    model = two_layer_model()
    expected = observe_one_update(model, probe)[probe]
    model.zero_grad()
    model.decoder.layers[0].fc1.register_parameter("empty", torch.nn.Parameter(torch.zeros(0)))
    model.decoder.layers[0].fc1.empty.grad = torch.zeros(0)

    assert observe_one_update(model, probe)[probe] == expected


def mean_norms_of_layer_norm_inputs(model, inputs, monkeypatch):
    """Return the mean L2 norm, at real tokens, of every input of torch's layer_norm in a forward pass.

    A translator's LayerNorms read the source's tokens or the target's, which differ in number.
    """
    layer_norm = F.layer_norm
    norms = []

    def spy(x, *args, **kwargs):
        of_encoder = x.size(1) == inputs["src_tokens"].size(1)
        tokens = inputs["src_tokens"] if of_encoder else inputs["prev_output_tokens"]
        norms.append(x[tokens.ne(PAD)].norm(dim=-1).mean().item())
        return layer_norm(x, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(F, "layer_norm", spy)
        model(**inputs)
    return norms


every_place_of_norms = pytest.mark.parametrize("method", ["post_ln", "pre_ln", "normformer"])


@every_place_of_norms
def test_ln_input_is_the_mean_norm_of_every_layer_norms_input(method, monkeypatch):
    """The means are taken over tokens without padding."""
    model = two_layer_model(method=method)

    values = observe_one_update(model, "ln_input")["ln_input"]

    expected = mean_norms_of_layer_norm_inputs(model, net_input(), monkeypatch)
    assert len(values) >= 2 * 2 + 2 * 3  # a LayerNorm for each branch of two encoder and two decoder layers
    assert sorted(values.values()) == pytest.approx(sorted(expected), rel=1e-5)


@every_place_of_norms
def test_the_log_shows_ln_inputs_mean_over_layers(method):
    values = observe_one_update(two_layer_model(method=method), "ln_input")["ln_input"]

    summary = PROBES["ln_input"].summary(values)

    mean = (values["decoder.1.ffn"] + values["decoder.2.ffn"]) / 2
    assert summary["decoder.ffn"] == pytest.approx(mean)


@pytest.mark.parametrize(("method", "is_shown"), [("post_ln", False), ("pre_ln", True), ("normformer", True)])
def test_the_log_shows_ln_input_at_the_end_of_a_stack_if_a_norm_is_there(method, is_shown):
    values = observe_one_update(two_layer_model(method=method), "ln_input")["ln_input"]

    summary = PROBES["ln_input"].summary(values)

    assert ("decoder.layer_norm" in summary) is is_shown


@pytest.mark.parametrize("method", ["post_ln", "deepnorm", "admin"])
def test_branch_dependency_is_the_branchs_share_of_the_variance(method):
    """The share is Var f / Var(alpha x + f). A hook of this test computes it for the last feed-forward branch."""
    model = two_layer_model(method=method)
    inputs = net_input()
    for key in ("src_tokens", "prev_output_tokens"):
        inputs[key] = inputs[key].clamp(min=FIRST)  # no padding
    last_merge = model.decoder.layers[1].residual["ffn"]
    seen = {}

    def keep_variances(_merge, given, merged):
        _shortcut, f = given
        seen["branch"] = f.var(unbiased=False).item()
        seen["sum"] = merged.var(unbiased=False).item()

    shares = observing.observe(model, [inputs], "branch_dependency")["branch_dependency"]

    with last_merge.register_forward_hook(keep_variances):
        model(**inputs)
    assert shares["decoder.2.ffn"] == pytest.approx(seen["branch"] / seen["sum"], rel=1e-4)


def test_branches_that_begin_at_zero_have_no_share_of_the_variance():
    shares = observe_one_update(two_layer_model(method="rezero"), "branch_dependency")["branch_dependency"]

    assert set(shares.values()) == {0.0}


@pytest.mark.parametrize("kind", single_stacks.EVERY_KIND)
def test_model_update_is_that_of_a_known_change(kind):
    """The last LayerNorm gives a token of C features the norm sqrt(C). A gain of 1.1 moves the token by 0.1 sqrt(C)."""
    model = two_layer_model(kind)
    net_input = fixed_batch(kind)
    *_, last_stack = model.stacks()

    before = outputs(model, net_input)
    with torch.no_grad():
        model.stacks()[last_stack].layers[-1].final_layer_norm.weight.mul_(1.1)
    probe = PROBES["model_update"](model)
    probe.begin(FixedBatch(net_input, reference=before))

    expected = dict.fromkeys(model.stacks(), 0.0)  # a translator's encoder does not change
    expected[last_stack] = pytest.approx(0.1 * math.sqrt(WIDTH), rel=1e-3)
    assert probe.values() == expected


@pytest.mark.parametrize("kind", single_stacks.EVERY_KIND)
def test_outputs_are_features_of_each_stack_at_real_tokens(kind):
    net_input = fixed_batch(kind)

    by_stack = outputs(two_layer_model(kind), net_input)

    *_, last_stack = by_stack
    tokens = net_input["prev_output_tokens" if kind == TRANSLATION else "src_tokens"]
    real_tokens = tokens.ne(PAD).sum()
    assert real_tokens < tokens.numel()
    assert by_stack[last_stack].shape == (real_tokens, WIDTH)


def test_half_precision_reports_the_largest_gradient():
    """The reported gradient is that of the loss before its division by `scale`."""
    model = two_layer_model()

    values = observe_one_update(model, "half_precision", scale=1 / 4)["half_precision"]

    largest_of_divided_loss = max(parameter.grad.abs().max().item() for parameter in model.parameters())
    assert values["gradient"] == pytest.approx(largest_of_divided_loss / 4, rel=1e-6)


@pytest.mark.parametrize(("kind", "part"), HEADS.items())
def test_half_precision_reports_the_largest_score(kind, part):
    model = two_layer_model(kind)
    with torch.no_grad():
        model.vocabulary_projection().weight.mul_(1000)  # scores become the part's largest numbers
    scores = []

    with model.vocabulary_projection().register_forward_hook(lambda _module, _inputs, output: scores.append(output)):
        values = observe_one_update(model, "half_precision")["half_precision"]

    assert values[part] == pytest.approx(scores[0].abs().max().item(), rel=1e-5)


def test_half_precision_reports_the_encoders_numbers_without_the_decoders():
    """Both stacks use the one module of all empty slots, and here also one matrix of embeddings."""
    model = two_layer_model(share_all_embeddings=True)
    inputs = net_input()
    of_targets_alone = FIRST
    inputs["src_tokens"][inputs["src_tokens"] == of_targets_alone] = FIRST + 1
    inputs["prev_output_tokens"][0, 0] = of_targets_alone

    before = observing.observe(model, [inputs], "half_precision")["half_precision"]
    with torch.no_grad():
        model.decoder.embed_tokens.weight[of_targets_alone] = 1000.0
        model.decoder.layers[0].fc1.weight.mul_(1000)  # whose output goes through an empty slot
    after = observing.observe(model, [inputs], "half_precision")["half_precision"]

    assert after["decoder"] > 10 * before["decoder"]
    assert after["encoder"] == before["encoder"]


def test_half_precision_reports_the_decoders_numbers_without_the_encoders():
    model = two_layer_model()  # Post-LN, so that the decoder reads small numbers from its encoder
    with torch.no_grad():
        model.encoder.layers[0].fc1.weight.mul_(1000)

    values = observe_one_update(model, "half_precision")["half_precision"]

    assert values["encoder"] > 100
    assert values["decoder"] < 100


def test_the_log_joins_gradient_norms_of_matrices_of_one_role():
    values = {"decoder.1": 7.0, "decoder.1.ffn.fc1": 3.0, "decoder.2.ffn.fc1": 4.0, "encoder.embed_tokens": 1.0}

    summary = PROBES["gradient_norm"].summary(values)

    norm_of_both = math.sqrt(3**2 + 4**2)
    assert summary == {"decoder.1": 7.0, "decoder.fc1": norm_of_both, "encoder.embed_tokens": 1.0}


def test_the_log_shows_of_a_layer_its_own_gradient_norm_alone():
    """DLCL's LayerNorms between layers, as "decoder.mixer.norms.2", have a number too, but are no part of a layer."""
    model = two_layer_model(method="dlcl")
    norms = observe_one_update(model, "gradient_norm")["gradient_norm"]

    summary = PROBES["gradient_norm"].summary(norms)

    for stack, layer in product(model.stacks(), LAYERS):
        of_layer = gradient_norm_by_hand(model, f"{stack}.layers.{layer - 1}.", scale=1)
        of_mixer = gradient_norm_by_hand(model, f"{stack}.mixer.norms.{layer}.", scale=1)
        assert summary[f"{stack}.{layer}"] == pytest.approx(of_layer, rel=1e-5)
        assert summary[f"{stack}.mixer.norms.{layer}"] == pytest.approx(of_mixer, rel=1e-5)
        assert of_mixer > 0.01 * of_layer  # so that a sum of both would be noticed


def test_the_log_shows_the_mean_over_layers_of_mean_l1_norms_of_one_role():
    values = {"decoder.1.ffn.fc2": 1.0, "decoder.2.ffn.fc2": 3.0, "encoder.1.self_attn.q": 5.0}

    summary = PROBES["gradient_l1"].summary(values)

    assert summary == {"decoder.fc2": (1.0 + 3.0) / 2, "encoder.q": 5.0}
