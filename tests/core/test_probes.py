"""Tests of each probe against an independent computation, on all kinds of model, without fairseq's programs."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.probes import PROBES
from deepnet_fairseq.core.probes.base import FixedBatch
from deepnet_fairseq.core.probes.model_update import outputs

from ..support import observing, single_stacks
from ..support.helpers import PAD
from ..support.observing import net_input, recording

TRANSLATION = archs.MODEL_NAME
LAYERS = (1, 2)
WIDTH = 16
FFN_WIDTH = 32


def two_layer_model(kind=TRANSLATION, **fields):
    """Build a model of two layers a stack."""
    return single_stacks.small(kind, 2, **fields)


def held_inputs(kind):
    """Return another batch than `observe_one_update` trains on."""
    if kind == TRANSLATION:
        return net_input(seed=9)
    return {"src_tokens": single_stacks.batch(seed=9), "src_lengths": None}


def observe_one_update(model, names="all", scale=1.0):
    """Observe one update on one batch, whose loss is divided by `scale` before the backward pass."""
    if model.NAME == TRANSLATION:
        return observing.observe(model, [net_input()], names, scale)
    held = held_inputs(model.NAME)
    return observing.observe(model, [None], names, scale, loss=single_stacks.loss_of, held=held)


def branch_sites(stacks):
    """Return the addresses of all branches of the two layers of these stacks."""
    sites = set()
    for stack in stacks:
        branches = ["self_attn", "ffn"]
        if stack == "decoder" and len(stacks) == 2:
            branches.append("encoder_attn")
        for layer in LAYERS:
            sites |= {f"{stack}.{layer}.{branch}" for branch in branches}
    return sites


def sites_with_a_norm(model):
    """Return the addresses of the branches that have a LayerNorm."""
    sites = set()
    for stack in model.stacks().values():
        for layer in stack.layers:
            sites |= {str(layer.sites[name]) for name, place in layer.norm_place.items() if place != "none"}
    return sites


EVERY_METHOD = [
    *product([TRANSLATION], sorted(METHODS)),
    *product(single_stacks.KINDS, ("deepnorm", "normformer", "rezero", "dlcl")),
]


@pytest.mark.parametrize(("kind", "method"), EVERY_METHOD)
def test_every_probe_reports_finite_values_of_every_layer_or_branch(kind, method):
    model = two_layer_model(kind, method=method).train()
    stacks = model.stacks()

    values = observe_one_update(model)

    assert values.keys() == PROBES.keys()
    owners = set()
    for probe in values.values():
        for address, value in probe.items():
            assert math.isfinite(value), address
            owners.add(address.split(".")[0])
    outside_stacks = {"lm_head"} if kind == archs.MASKED_LM else set()
    assert owners - {"gradient"} == stacks.keys() | outside_stacks
    for stack, layer in product(stacks, LAYERS):
        assert f"{stack}.{layer}" in values["gradient_norm"]
    assert values["branch_dependency"].keys() == branch_sites(stacks)
    assert sites_with_a_norm(model) <= values["ln_input"].keys()
    assert values["model_update"] == dict.fromkeys(stacks, 0.0)  # no step of an optimiser was made


@pytest.mark.parametrize(("kind", "method"), EVERY_METHOD)
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


@pytest.mark.parametrize("kind", single_stacks.EVERY)
def test_gradient_norms_are_autograds(kind):
    """Those of layers and of the rest together give the norm of all gradients."""
    model = two_layer_model(kind)

    norms = observe_one_update(model, "gradient_norm", scale=1 / 8)["gradient_norm"]

    def by_hand(prefix):
        return pytest.approx(gradient_norm_by_hand(model, prefix, scale=1 / 8), rel=1e-5)

    for stack in model.stacks():
        for layer in LAYERS:
            place = f"{stack}.layers.{layer - 1}"
            assert norms[f"{stack}.{layer}"] == by_hand(f"{place}.")
            assert norms[f"{stack}.{layer}.self_attn.v"] == by_hand(f"{place}.self_attn.v_proj.weight")
            assert norms[f"{stack}.{layer}.ffn.fc2"] == by_hand(f"{place}.fc2.weight")
    outside_layers = "lm_head.dense" if kind == archs.MASKED_LM else "decoder.output_projection"
    assert norms[outside_layers] == by_hand(outside_layers)
    of_layers_and_rest = [value for address, value in norms.items() if address.count(".") < 3]
    assert math.sqrt(sum(value**2 for value in of_layers_and_rest)) == by_hand("")


def test_mean_l1_norms_are_nearly_l2_norms_over_the_root_of_the_elements():
    """A mean of absolute values is at most L2 / sqrt(n), and close to it without outliers."""
    values = observe_one_update(two_layer_model(), "gradient_l1,gradient_norm", scale=1 / 8)
    l1 = values["gradient_l1"]
    l2 = values["gradient_norm"]
    matrices = {address for address in l2 if address.count(".") == 3}

    assert len(matrices) == 2 * 6 + 2 * 10  # of an encoder's and of a decoder's layers
    assert l1.keys() == matrices
    for address, mean in l1.items():
        elements = WIDTH * FFN_WIDTH if "fc" in address else WIDTH * WIDTH
        largest = l2[address] / math.sqrt(elements)
        assert mean <= largest * (1 + 1e-5), address
        assert mean > 0.2 * largest, address


def test_frozen_layers_are_not_reported():
    model = two_layer_model()

    model.decoder.layers.requires_grad_(False)
    with_a_frozen_decoder = observe_one_update(model, "gradient_l1")["gradient_l1"]
    model.encoder.layers.requires_grad_(False)
    model.zero_grad(set_to_none=True)
    with_both_frozen = observe_one_update(model, "gradient_l1")["gradient_l1"]

    assert len(with_a_frozen_decoder) == 2 * 6
    for address in with_a_frozen_decoder:
        assert address.startswith("encoder.")
    assert with_both_frozen == {}


def mean_norms_of_layer_norm_inputs(model, inputs, monkeypatch):
    """Return the mean L2 norm, at real tokens, of every input of torch's layer_norm."""
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
def test_ln_input_covers_every_layer_norm_without_padding(method, monkeypatch):
    model = two_layer_model(method=method)

    values = observe_one_update(model, "ln_input")["ln_input"]

    expected = mean_norms_of_layer_norm_inputs(model, net_input(), monkeypatch)
    assert len(values) >= 10
    assert sorted(values.values()) == pytest.approx(sorted(expected), rel=1e-5)


@every_place_of_norms
def test_the_log_shows_ln_inputs_mean_over_layers(method):
    """Post-LN has no LayerNorm at the stack's end."""
    values = observe_one_update(two_layer_model(method=method), "ln_input")["ln_input"]

    summary = PROBES["ln_input"].summary(values)

    mean = (values["decoder.1.ffn"] + values["decoder.2.ffn"]) / 2
    assert summary["decoder.ffn"] == pytest.approx(mean)
    assert ("decoder.layer_norm" in summary) == (method != "post_ln")


@pytest.mark.parametrize("method", ["post_ln", "deepnorm", "admin"])
def test_branch_dependency_is_the_branchs_share_of_the_variance(method):
    """It is Var f / Var(alpha x + f), as the variances of the recorder give it."""
    model = two_layer_model(method=method)
    inputs = net_input()
    for key in ("src_tokens", "prev_output_tokens"):
        inputs[key] = inputs[key].clamp(min=4)  # no padding
    merged_variances = []

    ratios = observing.observe(model, [inputs], "branch_dependency")["branch_dependency"]

    residual = model.decoder.layers[1].residual["ffn"]
    hook = residual.register_forward_hook(lambda _module, _given, y: merged_variances.append(y.var(unbiased=False)))
    with hook, recording(model) as variances:
        model(**inputs)
    by_address = {str(site): branch for site, (_shortcut, branch) in variances.items()}
    expected = by_address["decoder.2.ffn"] / merged_variances[0].item()
    assert ratios["decoder.2.ffn"] == pytest.approx(expected, rel=1e-4)


def test_branches_that_begin_at_zero_have_no_share_of_the_variance():
    ratios = observe_one_update(two_layer_model(method="rezero"), "branch_dependency")["branch_dependency"]

    assert set(ratios.values()) == {0.0}


@pytest.mark.parametrize("kind", single_stacks.EVERY)
def test_model_update_is_that_of_a_known_change(kind):
    """It is 0.1 sqrt(C) a token when the last LayerNorm's gain grows by a tenth."""
    model = two_layer_model(kind)
    held = held_inputs(kind)
    *_, last = model.stacks()
    tokens = held["prev_output_tokens" if kind == TRANSLATION else "src_tokens"]

    before = outputs(model, held)
    with torch.no_grad():
        model.stacks()[last].layers[-1].final_layer_norm.weight.mul_(1.1)
    probe = PROBES["model_update"](model)
    probe.begin(FixedBatch(held, before))

    assert before[last].shape == (tokens.ne(PAD).sum(), WIDTH)
    expected = dict.fromkeys(before, 0.0)
    expected[last] = pytest.approx(0.1 * math.sqrt(WIDTH), rel=1e-3)
    assert probe.values() == expected


def test_half_precision_reports_the_largest_gradient():
    model = two_layer_model()

    values = observe_one_update(model, "half_precision", scale=1 / 4)["half_precision"]

    largest = max(parameter.grad.abs().max().item() for parameter in model.parameters())
    assert values["gradient"] == pytest.approx(largest / 4, rel=1e-6)


def test_half_precision_reports_the_largest_score():
    model = two_layer_model()
    with torch.no_grad():
        model.decoder.output_projection.weight.mul_(1000)
        largest = model(**net_input())[0].abs().max().item()

    values = observe_one_update(model, "half_precision")["half_precision"]

    assert values["decoder"] == pytest.approx(largest, rel=1e-5)


def test_the_log_shows_gradient_norms_of_layers_and_of_roles():
    values = {"decoder.1": 5.0, "decoder.1.ffn.fc1": 3.0, "decoder.2.ffn.fc1": 4.0, "encoder.embed_tokens": 1.0}

    summary = PROBES["gradient_norm"].summary(values)

    root_of_squares = 5.0  # of 3 and 4
    assert summary == {"decoder.1": 5.0, "decoder.fc1": root_of_squares, "encoder.embed_tokens": 1.0}


def test_the_log_shows_mean_l1_norms_of_roles():
    values = {"decoder.1.ffn.fc2": 1.0, "decoder.2.ffn.fc2": 3.0, "encoder.1.self_attn.q": 5.0}

    summary = PROBES["gradient_l1"].summary(values)

    assert summary == {"decoder.fc2": 2.0, "encoder.q": 5.0}
