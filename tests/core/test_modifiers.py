"""Tests of modifiers by their formulas, around methods that use the same slot, and of their flags.

test_methods.py covers decoding, saving and recomputation of modified methods.
"""

import math

import pytest
import torch

from deepnet_fairseq.core.archs import LM, MASKED_LM
from deepnet_fairseq.core.config import namespace
from deepnet_fairseq.core.modifiers import MODIFIERS, Modifier, Rising, register_modifier
from deepnet_fairseq.core.profile import profile_omegas
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.building import build

from ..support import observing
from ..support.helpers import VOCAB
from ..support.single_stacks import EVERY, awake, batch, inputs, loss_of, scores, sizes, small


def rising(model):
    """Return the factor a of every branch, in forward order."""
    return [module.a.item() for module in model.modules() if isinstance(module, Rising)]


@pytest.mark.parametrize("kind", EVERY)
def test_branches_rise_layer_by_layer(kind):
    """ProRes branches rise layer by layer by the paper's schedule a(l, t) = min(t / (T l), 1), with T = 1000."""
    model = small(kind, 3, pro_res=True)
    branches = [2, 3] if len(model.stacks()) == 2 else [2]
    for done, expected in ((0, [1e-3, 5e-4, 1 / 3e3]), (999, [1, 0.5, 1 / 3]), (1999, [1, 1, 2 / 3]), (9999, [1] * 3)):
        model.set_num_updates(done)
        of_layers = [a for number in branches for a in expected for _ in range(number)]
        assert rising(model) == pytest.approx(of_layers, rel=1e-6)
    short = small(kind, 3, pro_res=True, pro_res_updates=10)
    short.set_num_updates(14)
    assert rising(short)[: branches[0] * 2] == pytest.approx([1] * branches[0] + [0.75] * branches[0])


@pytest.mark.parametrize("method", ["deepnorm", "normformer", "rezero"])
def test_a_branch_counts_as_much_as_its_a(method):
    """A method under ProRes computes with a f in place of each f, whatever follows the branch."""
    model, plain = (noisy_model(LM, method=method, **more) for more in ({"pro_res": True}, {}))
    inside = {name.replace("outer.self_attn.0.0.", "outer.self_attn.0."): v for name, v in model.state_dict().items()}
    plain.load_state_dict({name: inside[name] for name in plain.state_dict()})
    model.set_num_updates(99)
    for layer in plain.decoder.layers:
        for sublayer, site in layer.sites.items():
            a = 100 / (1000 * site.layer)
            layer.residual[sublayer].register_forward_pre_hook(lambda _, given, a=a: (given[0], a * given[1]))
    tokens = batch()
    assert torch.allclose(scores(model, tokens), scores(plain, tokens), atol=1e-5)
    assert not torch.allclose(scores(model, tokens), scores(noisy_model(LM, method=method), tokens), atol=1e-2)


def test_layers_share_one_vector_and_part_when_moved():
    """Layers share one vector of factors, so that an update is one kernel for a stack.

    A cast separates the layers until the next update.
    """
    model = small(MASKED_LM, 3, pro_res=True)
    for _ in range(2):
        model.set_num_updates(1)
        storages = {m.a.untyped_storage().data_ptr() for m in model.modules() if isinstance(m, Rising)}
        assert len(storages) == 1 and all(m.a.dtype == torch.float32 for m in model.modules() if isinstance(m, Rising))
        model.half().float()
    other = small(MASKED_LM, 3, pro_res=True)
    other.load_state_dict(model.state_dict())
    assert rising(other) == rising(model) == pytest.approx([2e-3, 2e-3, 1e-3, 1e-3, 2 / 3e3, 2 / 3e3])


def test_admin_measures_branches_that_count_fully():
    """Admin profiles branches at full strength under ProRes, whose factors it restores."""
    net_input = {"src_tokens": batch(), "src_lengths": None}
    model = small(LM, method="admin", pro_res=True)
    model.set_num_updates(99)
    before = rising(model)
    omegas = [profile_omegas(one, net_input, 1) for one in (model, small(LM, method="admin"))]
    assert list(omegas[0].values()) == pytest.approx(list(omegas[1].values())) and omegas[0].values() != {1.0}
    assert rising(model) == before


@pytest.mark.parametrize("method", ["deepnorm", "pre_ln"])
def test_queries_and_keys_are_normalised_by_head(method):
    """QK-norm computes softmax(LN(q) LN(k) / sqrt(d)) v with statistics over d of each head, in cross-attention too."""
    model = noisy_model(EVERY[0], method=method, qk_norm=True)
    layer = model.decoder.layers[1]
    x, memory = (torch.randn(2, length, 16, generator=torch.Generator().manual_seed(length)) for length in (5, 7))
    own, cross = layer.self_attn, layer.encoder_attn
    for attention, source in ((own, x), (cross, memory)):
        q, k, v = (
            linear(of).unflatten(-1, (2, 8)).transpose(1, 2)
            for linear, of in ((attention.q_proj, x), (attention.k_proj, source), (attention.v_proj, source))
        )
        q, k = (
            (z - z.mean(-1, keepdim=True))
            / (z.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
            * attention.heads[role].weight
            for z, role in ((q, "q"), (k, "k"))
        )
        expected = (q @ k.transpose(2, 3) / math.sqrt(8)).softmax(-1) @ v
        with torch.no_grad():
            output = attention(x, source)
        assert torch.allclose(output, attention.out_proj(expected.transpose(1, 2).flatten(2)), atol=1e-5)
    assert attention.heads["q"].weight.shape == (8,) and attention.heads["q"].bias is None


@pytest.mark.parametrize("method", ["deepnorm", "pre_ln"])
def test_half_precision_probes_and_gradients(method):
    fields = {"method": method, "pro_res": True, "qk_norm": True}
    model, tokens = small(LM, **fields).train(), batch()
    loss_of(model).backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.any() for p in model.parameters())
    held = {"src_tokens": tokens, "src_lengths": None}
    probes = observing.observe(model, [tokens], "learned_scale", loss=lambda m, t: m(t)[0].sum(), held=held)
    assert probes["learned_scale"]["decoder.1.self_attn.heads.k.median"] == 1.0
    full = scores(model.eval(), tokens)
    assert torch.allclose(scores(model.bfloat16(), tokens).float(), full, atol=0.1)
    assert all(m.a.dtype == torch.float32 for m in model.modules() if isinstance(m, Rising))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pro_res": True, "pro_res_updates": 0}, "--pro-res-updates 0: must be at least 1"),
        ({"pro_res_updates": 5}, "--pro-res-updates: an option of --pro-res; give that too, or drop it"),
    ],
)
def test_flags_that_make_no_sense(fields, message):
    with pytest.raises(UserError, match=message):
        namespace(LM, **fields)


def test_a_modifier_of_one_s_own():
    """A modifier's name is registered once; registering it again is an error."""
    assert sorted(MODIFIERS) == ["pro_res", "qk_norm"]
    with pytest.raises(ValueError, match="twice"):
        register_modifier("pro_res")(type("Other", (Modifier,), {}))


def test_a_checkpoint_without_them_is_refused():
    plain, modified = (build(LM, VOCAB, **sizes(LM, 1), **more) for more in ({}, {"qk_norm": True, "pro_res": True}))
    with pytest.raises(UserError, match="another --method or modifier"):
        modified.load_state_dict(plain.state_dict())
    with pytest.raises(UserError, match="trained with another --method"):
        plain.load_state_dict(modified.state_dict())
    assert scores(modified, *inputs(LM)).isfinite().all()
