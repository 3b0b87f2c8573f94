"""Tests of each probe against an independent computation, on all kinds of model, without fairseq's programs."""

import math

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


def small(kind=TRANSLATION, **fields):
    """Build a model of two layers a stack."""
    return single_stacks.small(kind, 2, **fields)


def held_inputs(kind):
    """Return another batch than `observe` trains on."""
    if kind == TRANSLATION:
        return net_input(seed=9)
    return {"src_tokens": single_stacks.batch(seed=9), "src_lengths": None}


def observe(model, names="all", scale=1.0):
    """Observe one update on one batch, whose loss is divided by `scale` before the backward pass."""
    if model.NAME == TRANSLATION:
        return observing.observe(model, [net_input()], names, scale)
    held = held_inputs(model.NAME)
    return observing.observe(model, [None], names, scale, loss=single_stacks.loss_of, held=held)


ON_METHODS = [(TRANSLATION, method) for method in sorted(METHODS)]
ON_METHODS += [
    (kind, method) for kind in single_stacks.KINDS for method in ("deepnorm", "normformer", "rezero", "dlcl")
]


@pytest.mark.parametrize(("kind", "method"), ON_METHODS)
def test_every_probe_on_every_method(kind, method):
    """Every probe gives finite values on every method, one address a layer or branch, and restores the model."""
    model = small(kind, method=method).train()
    values = observe(model)
    assert values.keys() == PROBES.keys()
    assert all(math.isfinite(value) for probe in values.values() for value in probe.values())
    stacks = model.stacks()
    assert {f"{stack}.{layer}" for stack in stacks for layer in (1, 2)} <= values["gradient_norm"].keys()
    sites = {f"{stack}.{layer}.{name}" for stack in stacks for layer in (1, 2) for name in ("self_attn", "ffn")}
    if len(stacks) == 2:
        sites |= {"decoder.1.encoder_attn", "decoder.2.encoder_attn"}
    assert values["branch_dependency"].keys() == sites
    layers = [layer for stack in stacks.values() for layer in stack.layers]
    placed = {str(layer.sites[name]) for layer in layers for name, place in layer.norm_place.items() if place != "none"}
    assert placed <= values["ln_input"].keys()
    assert values["model_update"] == dict.fromkeys(stacks, 0.0)
    outside = {"lm_head"} if kind == archs.MASKED_LM else set()
    owners = {address.split(".")[0] for probe in values.values() for address in probe}
    assert owners - {"gradient"} == stacks.keys() | outside
    assert all(not m._forward_hooks and not m._forward_pre_hooks and m.training for m in model.modules())


@pytest.mark.parametrize("kind", single_stacks.EVERY)
def test_gradient_norms(kind):
    """Gradient norms of layers and weights equal autograd's, and together give the norm of all gradients."""
    model = small(kind)
    norms = observe(model, "gradient_norm", scale=1 / 8)["gradient_norm"]
    grads = {name: p.grad for name, p in model.named_parameters()}  # gradients of 8 times the loss

    def norm(prefix):
        return math.sqrt(sum(g.square().sum().item() for name, g in grads.items() if name.startswith(prefix))) / 8

    for stack in model.stacks():
        for layer in (1, 2):
            place = f"{stack}.layers.{layer - 1}"
            assert norms[f"{stack}.{layer}"] == pytest.approx(norm(f"{place}."), rel=1e-5)
            assert norms[f"{stack}.{layer}.self_attn.v"] == pytest.approx(norm(f"{place}.self_attn.v_proj.weight"))
            assert norms[f"{stack}.{layer}.ffn.fc2"] == pytest.approx(norm(f"{place}.fc2.weight"), rel=1e-5)
    outside = "lm_head.dense" if kind == archs.MASKED_LM else "decoder.output_projection"
    assert norms[outside] == pytest.approx(norm(outside), rel=1e-5)
    layers_and_rest = [value for address, value in norms.items() if address.count(".") < 3]
    assert math.sqrt(sum(value**2 for value in layers_and_rest)) == pytest.approx(norm(""), rel=1e-5)


def test_l1_beside_l2():
    """Mean L1 norms are at most L2 / sqrt(n), and close to it without outliers."""
    probes = observe(small(), "gradient_l1,gradient_norm", scale=1 / 8)
    l1, l2 = probes["gradient_l1"], probes["gradient_norm"]
    assert l1.keys() == {address for address in l2 if address.count(".") == 3} and len(l1) == 2 * 6 + 2 * 10
    for address, mean in l1.items():
        elements = 512 if "fc" in address else 256
        assert 0.2 * l2[address] < mean * math.sqrt(elements) <= l2[address] * (1 + 1e-5), address


def test_frozen_branches():
    model = small()
    for stack, left in (("decoder", 2 * 6), ("encoder", 0)):
        model.stacks()[stack].layers.requires_grad_(False)
        model.zero_grad(set_to_none=True)
        norms = observe(model, "gradient_l1")["gradient_l1"]
        assert len(norms) == left and all(address.startswith("encoder.") for address in norms)


def norms_read(model, inputs, monkeypatch):
    """Return the mean L2 norm, at real tokens, of every input of torch's layer_norm."""
    plain, seen = F.layer_norm, []

    def spy(x, *args, **kwargs):
        tokens = inputs["src_tokens"] if x.size(1) == inputs["src_tokens"].size(1) else inputs["prev_output_tokens"]
        seen.append(x[tokens.ne(PAD)].norm(dim=-1).mean().item())
        return plain(x, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(F, "layer_norm", spy)
        model(**inputs)
    return seen


@pytest.mark.parametrize("method", ["post_ln", "pre_ln", "normformer"])
def test_ln_inputs(method, monkeypatch):
    """ln_input covers every LayerNorm without padding; the log shows the mean over layers."""
    model = small(method=method)
    values = observe(model, "ln_input")["ln_input"]
    assert sorted(values.values()) == pytest.approx(sorted(norms_read(model, net_input(), monkeypatch)), rel=1e-5)
    summary = PROBES["ln_input"].summary(values)
    assert summary["decoder.ffn"] == pytest.approx((values["decoder.1.ffn"] + values["decoder.2.ffn"]) / 2)
    assert len(values) >= 10 and ("decoder.layer_norm" in summary) == (method != "post_ln")


@pytest.mark.parametrize("method", ["post_ln", "deepnorm", "admin"])
def test_branch_dependency(method):
    """branch_dependency is Var f / Var(alpha x + f), as the variances of the recorder give it."""
    model, inputs, merged = small(method=method), net_input(), []
    for key in ("src_tokens", "prev_output_tokens"):
        inputs[key] = inputs[key].clamp(min=4)
    ratios = observing.observe(model, [inputs], "branch_dependency")["branch_dependency"]
    residual = model.decoder.layers[1].residual["ffn"]
    watched = residual.register_forward_hook(lambda _m, xf, y: merged.append(y.var(unbiased=False).item()))
    with watched, recording(model) as variances:
        model(**inputs)
    (branch,) = (f for site, (_x, f) in variances.items() if str(site) == "decoder.2.ffn")
    assert ratios["decoder.2.ffn"] == pytest.approx(branch / merged[0], rel=1e-4)
    silent = observe(small(method="rezero"), "branch_dependency")["branch_dependency"]  # its branches start at 0
    assert set(silent.values()) == {0.0}


@pytest.mark.parametrize("kind", single_stacks.EVERY)
def test_model_update_of_a_known_change(kind):
    """model_update is 0.1 sqrt(C) a token when the last LayerNorm's gain grows by a tenth."""
    model, inputs = small(kind), held_inputs(kind)
    before, last = outputs(model, inputs), [*model.stacks()][-1]
    tokens = inputs["prev_output_tokens" if kind == TRANSLATION else "src_tokens"]
    assert before[last].shape == (tokens.ne(PAD).sum(), 16)
    with torch.no_grad():
        model.stacks()[last].layers[-1].final_layer_norm.weight.mul_(1.1)
    probe = PROBES["model_update"](model)
    probe.begin(FixedBatch(inputs, before))
    assert probe.values() == dict.fromkeys(before, 0.0) | {last: pytest.approx(0.1 * math.sqrt(16), rel=1e-3)}


def test_half_precision_extremes():
    model = small()
    values = observe(model, "half_precision", scale=1 / 4)["half_precision"]
    largest = max(p.grad.abs().max().item() for p in model.parameters())
    assert values["gradient"] == pytest.approx(largest / 4, rel=1e-6)
    with torch.no_grad():
        model.decoder.output_projection.weight.mul_(1000)
        scores = model(**net_input())[0].abs().max().item()
    assert observe(model, "half_precision")["half_precision"]["decoder"] == pytest.approx(scores, rel=1e-5)


def test_summaries():
    """Summaries in the log show layers, and roles over all layers."""
    values = {"decoder.1": 5.0, "decoder.1.ffn.fc1": 3.0, "decoder.2.ffn.fc1": 4.0, "encoder.embed_tokens": 1.0}
    summary = {"decoder.1": 5.0, "decoder.fc1": 5.0, "encoder.embed_tokens": 1.0}
    assert PROBES["gradient_norm"].summary(values) == summary
    values = {"decoder.1.ffn.fc2": 1.0, "decoder.2.ffn.fc2": 3.0, "encoder.1.self_attn.q": 5.0}
    assert PROBES["gradient_l1"].summary(values) == {"decoder.fc2": 2.0, "encoder.q": 5.0}
