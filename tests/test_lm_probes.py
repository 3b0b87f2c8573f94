"""Probes of the language models: one stack, its addresses, autograd's own numbers."""

import math

import pytest
import torch

from deepnet_fairseq import archs
from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.probes import PROBES, get_probes
from deepnet_fairseq.probes.base import Held
from deepnet_fairseq.probes.model_update import outputs
from deepnet_fairseq.probes.session import Session

from .support.helpers import PAD
from .support.single_stacks import KINDS, batch, loss_of, small, stack_of


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def inputs(seed=9):
    return {"src_tokens": batch(seed=seed), "src_lengths": None}


def observe(model, names="all", scale=1.0, held_seed=9):
    """The values of one update on one batch, whose loss is divided by `scale` before the backward pass."""
    session = Session(model, get_probes(names))
    session.held = Held(inputs(held_seed), outputs(model, inputs(held_seed)))
    session.begin()
    (loss_of(model) / scale).backward()
    session.gradients(scale)
    values = session.values()
    session.end()
    return values


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_probe_on_every_method(kind, method):
    """Finite, with an address per layer or branch, of this stack alone; the model's hooks and modes are as before."""
    model, stack = small(kind, method=method).train(), stack_of(kind)
    values = observe(model)
    assert values.keys() == PROBES.keys()
    assert all(math.isfinite(value) for found in values.values() for value in found.values())
    branches = {f"{stack}.{layer}.{name}" for layer in (1, 2) for name in ("self_attn", "ffn")}
    assert values["branch_dependency"].keys() == branches
    assert {f"{stack}.1", f"{stack}.2", f"{stack}.embed_tokens"} <= values["gradient_norm"].keys()
    assert METHODS[method].norm == "none" or branches <= values["ln_input"].keys()
    assert values["model_update"] == {stack: 0.0}
    outside = {"lm_head"} if kind == archs.MASKED_LM else set()
    owners = {address.split(".")[0] for found in values.values() for address in found}
    assert owners - {"gradient"} == {stack} | outside
    assert all(not m._forward_hooks and not m._forward_pre_hooks and m.training for m in model.modules())


def test_gradient_norms(kind):
    """Layers, weights and the rest, against autograd's own numbers; together they are the norm of all."""
    model, stack = small(kind), stack_of(kind)
    found = observe(model, "gradient_norm", scale=8.0)["gradient_norm"]
    grads = {name: p.grad for name, p in model.named_parameters()}

    def norm(prefix):
        return 8 * math.sqrt(sum(g.square().sum().item() for name, g in grads.items() if name.startswith(prefix)))

    for layer in (1, 2):
        assert found[f"{stack}.{layer}"] == pytest.approx(norm(f"{stack}.layers.{layer - 1}."), rel=1e-5)
    assert found[f"{stack}.2.self_attn.v"] == pytest.approx(norm(f"{stack}.layers.1.self_attn.v_proj.weight"), rel=1e-5)
    assert found[f"{stack}.1.ffn.fc2"] == pytest.approx(norm(f"{stack}.layers.0.fc2.weight"), rel=1e-5)
    outside = "lm_head.dense" if kind == archs.MASKED_LM else "decoder.output_projection"
    assert found[outside] == pytest.approx(norm(outside), rel=1e-5)
    weights = {f"{stack}.{l}.{b}" for l in (1, 2) for b in ("self_attn", "ffn")}
    whole = math.sqrt(sum(value**2 for address, value in found.items() if address.rpartition(".")[0] not in weights))
    assert whole == pytest.approx(norm(""), rel=1e-5)


def test_ln_inputs_without_padding(kind):
    """The mean norm of what the first branch's LayerNorm reads, over tokens."""
    model, stack = small(kind, method="pre_ln"), stack_of(kind)
    found = observe(model, "ln_input")["ln_input"]
    seen = []
    layer = model.stacks()[stack].layers[0]
    handle = layer.self_attn_layer_norm.register_forward_pre_hook(lambda _, x: seen.append(x[0].detach()))
    loss_of(model)
    handle.remove()
    real = batch()[:, : seen[0].size(1)].ne(PAD)
    assert found[f"{stack}.1.self_attn"] == pytest.approx(seen[0][real].norm(dim=-1).mean().item(), rel=1e-5)


def test_model_update_of_a_known_change(kind):
    """A last LayerNorm 1.1 times as wide moves the output by a tenth of its norm, sqrt(C) a token."""
    model, stack = small(kind), stack_of(kind)
    before = outputs(model, inputs())
    assert before[stack].shape == (25, 16)  # tokens alone
    with torch.no_grad():
        model.stacks()[stack].layers[-1].final_layer_norm.weight.mul_(1.1)
    probe = PROBES["model_update"](model)
    probe.begin(Held(inputs(), before))
    assert probe.values() == {stack: pytest.approx(0.1 * math.sqrt(16), rel=1e-3)}
