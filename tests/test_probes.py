"""Each probe against an independent computation, on one process without fairseq's programs."""

import math

import pytest
import torch
import torch.nn.functional as F

from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.probes import PROBES
from deepnet_fairseq.probes.base import Held
from deepnet_fairseq.probes.model_update import outputs
from deepnet_fairseq.profiling.omega import recording

from .support.helpers import PAD, small
from .support.observing import net_input, observe


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_probe_on_every_method(method):
    """Finite, with an address per layer or branch; the model's hooks and modes are as before."""
    model = small(2, method=method).train()
    values = observe(model, [net_input()])
    assert values.keys() == PROBES.keys()
    assert all(math.isfinite(value) for found in values.values() for value in found.values())
    assert {"encoder.1", "encoder.2", "decoder.1", "decoder.2"} <= values["gradient_norm"].keys()
    sites = {"encoder.2.ffn", "decoder.1.self_attn", "decoder.2.encoder_attn"}
    assert sites <= values["branch_dependency"].keys() and len(values["branch_dependency"]) == 10
    has_norms = any("layer_norm" in name for name, _ in model.named_parameters())
    assert not has_norms or sites <= values["ln_input"].keys()
    assert values["model_update"] == {"encoder": 0.0, "decoder": 0.0}
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert all(m.training for m in model.modules())


def test_gradient_norms():
    """Layers, weights and the rest, against autograd's own numbers; together they are the norm of all."""
    model = small(2)
    found = observe(model, [net_input()], "gradient_norm", scale=1 / 8)["gradient_norm"]
    grads = {name: p.grad for name, p in model.named_parameters()}  # of loss times 8

    def norm(prefix):
        return math.sqrt(sum(g.square().sum().item() for name, g in grads.items() if name.startswith(prefix))) / 8

    assert found["encoder.1"] == pytest.approx(norm("encoder.layers.0."), rel=1e-5)
    assert found["decoder.2"] == pytest.approx(norm("decoder.layers.1."), rel=1e-5)
    assert found["decoder.2.encoder_attn.v"] == pytest.approx(
        norm("decoder.layers.1.encoder_attn.v_proj.weight"), rel=1e-5
    )
    assert found["encoder.1.ffn.fc1"] == pytest.approx(norm("encoder.layers.0.fc1.weight"), rel=1e-5)
    assert found["decoder.output_projection"] == pytest.approx(norm("decoder.output_projection"), rel=1e-5)
    whole = math.sqrt(sum(value**2 for address, value in found.items() if address.count(".") == 1))
    assert whole == pytest.approx(norm(""), rel=1e-5)


def test_summary_of_gradient_norms():
    """The log has layers, and roles over all layers."""
    summary = PROBES["gradient_norm"].summary
    values = {"decoder.1": 5.0, "decoder.1.ffn.fc1": 3.0, "decoder.2.ffn.fc1": 4.0, "encoder.embed_tokens": 1.0}
    assert summary(values) == {"decoder.1": 5.0, "decoder.fc1": 5.0, "encoder.embed_tokens": 1.0}


def norms_read(model, inputs, monkeypatch):
    """Mean L2 norm at real tokens of everything torch's layer_norm is given, in order of the calls."""
    plain, seen = F.layer_norm, []

    def spy(x, *args, **kwargs):
        tokens = inputs["src_tokens"] if x.size(1) == inputs["src_tokens"].size(1) else inputs["prev_output_tokens"]
        seen.append(x[tokens.ne(PAD)].norm(dim=-1).mean().item())
        return plain(x, *args, **kwargs)

    monkeypatch.setattr(F, "layer_norm", spy)
    model(**inputs)
    monkeypatch.undo()
    return seen


@pytest.mark.parametrize("method", ["post_ln", "pre_ln", "normformer", "deepnorm"])
def test_ln_inputs(method, monkeypatch):
    """Every LayerNorm there is, in the order the forward pass comes to them, without padding."""
    model, inputs = small(2, method=method), net_input()
    found = observe(model, [inputs], "ln_input")["ln_input"]
    expected = norms_read(model, inputs, monkeypatch)
    assert sorted(found.values()) == pytest.approx(sorted(expected), rel=1e-5)
    assert len(found) >= 10


def test_ln_input_addresses():
    model = small(2, method="pre_ln")
    found = observe(model, [net_input()], "ln_input")
    assert {"encoder.layer_norm", "decoder.layer_norm", "decoder.2.encoder_attn"} <= found["ln_input"].keys()
    summary = PROBES["ln_input"].summary(found["ln_input"])
    branches = {"encoder.self_attn", "encoder.ffn", "decoder.self_attn", "decoder.encoder_attn", "decoder.ffn"}
    assert summary.keys() == branches | {"encoder.layer_norm", "decoder.layer_norm"}
    two = [found["ln_input"][f"decoder.{layer}.ffn"] for layer in (1, 2)]
    assert summary["decoder.ffn"] == pytest.approx(sum(two) / 2)


@pytest.mark.parametrize("method", ["post_ln", "deepnorm", "admin"])
def test_branch_dependency(method):
    """Var f / Var(alpha x + f); without padding it follows from the recorder's variances, for x and f of mean 0."""
    model, inputs = small(2, method=method), net_input()
    for key in ("src_tokens", "prev_output_tokens"):
        inputs[key] = inputs[key].clamp(min=4)
    found = observe(model, [inputs], "branch_dependency")["branch_dependency"]
    merged = {}
    layer = model.decoder.layers[1]
    handle = layer.residual["ffn"].register_forward_hook(
        lambda _m, xf, y: merged.update(y=y.var(unbiased=False).item())
    )
    with recording(model) as variances:
        model(**inputs)
    handle.remove()
    branch = next(v.branch for site, v in variances.items() if str(site) == "decoder.2.ffn")
    assert found["decoder.2.ffn"] == pytest.approx(branch / merged["y"], rel=1e-4)


def test_a_silent_branch_depends_on_nothing():
    model = small(2, method="rezero")  # its branches start at 0
    assert set(observe(model, [net_input()], "branch_dependency")["branch_dependency"].values()) == {0.0}


def test_model_update_of_a_known_change():
    """A last LayerNorm 1.1 times as wide moves the output by a tenth of its norm, sqrt(C) a token."""
    model, inputs = small(2), net_input()
    before = outputs(model, inputs)
    with torch.no_grad():
        model.decoder.layers[-1].final_layer_norm.weight.mul_(1.1)
    probe = PROBES["model_update"](model)
    probe.begin(Held(inputs, before))
    assert probe.values()["decoder"] == pytest.approx(0.1 * math.sqrt(16), rel=1e-3)
    assert probe.values()["encoder"] == 0


def test_outputs_leave_random_numbers_and_modes():
    model = small(2, dropout=0.5).train()
    state = torch.get_rng_state()
    first, second = outputs(model, net_input()), outputs(model, net_input())
    assert torch.equal(torch.get_rng_state(), state) and model.training and model.decoder.layers[0].training
    assert torch.equal(first["decoder"], second["decoder"])  # no dropout in it


def test_half_precision_extremes():
    model, inputs = small(2), net_input()
    found = observe(model, [inputs], "half_precision", scale=1 / 4)["half_precision"]
    largest = max(p.grad.abs().max().item() for p in model.parameters())
    assert found["gradient"] == pytest.approx(largest / 4, rel=1e-6)
    with torch.no_grad():
        model.decoder.output_projection.weight.mul_(1000)
        scores = model(**inputs)[0].abs().max().item()
    assert observe(model, [inputs], "half_precision")["half_precision"]["decoder"] == pytest.approx(scores, rel=1e-5)
