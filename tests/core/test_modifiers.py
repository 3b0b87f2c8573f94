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
from deepnet_fairseq.plugin.building import build

from ..support import observing
from ..support.errors import refused
from ..support.helpers import VOCAB
from ..support.single_stacks import EVERY, batch, inputs, loss_of, noisy_model, scores, sizes, small

BRANCHES = {"encoder": 2, "decoder": 3}  # of a layer of a translator; a language model's layer has 2


def rising_modules(model):
    return [module for module in model.modules() if isinstance(module, Rising)]


def rising_factors(model):
    """Return the factor a of every branch, in forward order."""
    return [module.a.item() for module in rising_modules(model)]


def of_every_branch(model, factors_of_layers):
    """Repeat the factor of each layer for every branch of it, in every stack."""
    stacks = model.stacks()
    factors = []
    for stack in stacks:
        branches = BRANCHES[stack] if len(stacks) == 2 else 2
        for factor in factors_of_layers:
            factors += [factor] * branches
    return factors


@pytest.mark.parametrize(
    ("updates_done", "factors"),
    [
        (0, [1 / 1000, 1 / 2000, 1 / 3000]),
        (999, [1, 1 / 2, 1 / 3]),
        (1999, [1, 1, 2 / 3]),
        (9999, [1, 1, 1]),
    ],
)
@pytest.mark.parametrize("kind", EVERY)
def test_branches_rise_layer_by_layer(kind, updates_done, factors):
    """ProRes branches rise by the paper's schedule a(l, t) = min(t / (T l), 1), with T = 1000."""
    model = small(kind, 3, pro_res=True)

    model.set_num_updates(updates_done)

    assert rising_factors(model) == pytest.approx(of_every_branch(model, factors), rel=1e-6)


@pytest.mark.parametrize("kind", EVERY)
def test_branches_rise_in_as_many_updates_as_the_option_says(kind):
    model = small(kind, 3, pro_res=True, pro_res_updates=10)

    model.set_num_updates(14)

    assert rising_factors(model) == pytest.approx(of_every_branch(model, [1, 15 / 20, 15 / 30]))


def without_rising(state):
    """Return a state dict with the names that it has without ProRes, whose factor stands behind another module."""
    return {name.replace("outer.self_attn.0.0.", "outer.self_attn.0."): value for name, value in state.items()}


@pytest.mark.parametrize("method", ["deepnorm", "normformer", "rezero"])
def test_a_rising_method_computes_with_a_f_in_place_of_f(method):
    """So it is whatever follows the branch."""
    rising = noisy_model(LM, method=method, pro_res=True)
    plain = noisy_model(LM, method=method)
    unscaled = noisy_model(LM, method=method)
    state = without_rising(rising.state_dict())
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    tokens = batch()

    rising.set_num_updates(99)
    for layer in plain.decoder.layers:
        for sublayer, site in layer.sites.items():
            a = 100 / (1000 * site.layer)
            layer.residual[sublayer].register_forward_pre_hook(lambda _, given, a=a: (given[0], a * given[1]))

    assert torch.allclose(scores(rising, tokens), scores(plain, tokens), atol=1e-5)
    assert not torch.allclose(scores(rising, tokens), scores(unscaled, tokens), atol=1e-2)


@pytest.mark.parametrize("cast_before", [False, True])  # a cast separates the layers until the next update
def test_layers_share_one_vector_of_factors(cast_before):
    """So that an update is one kernel for a stack."""
    model = small(MASKED_LM, 3, pro_res=True)
    if cast_before:
        model.set_num_updates(1)
        model.half().float()

    model.set_num_updates(1)

    storages = {module.a.untyped_storage().data_ptr() for module in rising_modules(model)}
    assert len(storages) == 1
    assert {module.a.dtype for module in rising_modules(model)} == {torch.float32}


def test_factors_are_loaded_after_a_cast():
    model = small(MASKED_LM, 3, pro_res=True)
    model.set_num_updates(1)
    model.half().float()

    other = small(MASKED_LM, 3, pro_res=True)
    other.load_state_dict(model.state_dict())

    assert rising_factors(model) == pytest.approx(of_every_branch(model, [2 / 1000, 2 / 2000, 2 / 3000]))
    assert rising_factors(other) == rising_factors(model)


def test_admin_profiles_branches_at_full_strength():
    """ProRes's factors are restored after it."""
    net_input = {"src_tokens": batch(), "src_lengths": None}
    rising = small(LM, method="admin", pro_res=True)
    plain = small(LM, method="admin")
    rising.set_num_updates(99)
    before = rising_factors(rising)

    omegas = profile_omegas(rising, net_input, 1)
    expected = profile_omegas(plain, net_input, 1)

    assert list(omegas.values()) == pytest.approx(list(expected.values()))
    assert set(omegas.values()) != {1.0}
    assert rising_factors(rising) == before


D = 8  # features of a head


def by_head(y):
    return y.unflatten(-1, (2, D)).transpose(1, 2)


def normalised(z, norm):
    """Compute LayerNorm without a bias over the features of each head."""
    centred = z - z.mean(-1, keepdim=True)
    std = (z.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return centred / std * norm.weight


@pytest.mark.parametrize("attention_name", ["self_attn", "encoder_attn"])
@pytest.mark.parametrize("method", ["deepnorm", "pre_ln"])
def test_queries_and_keys_are_normalised_by_head(method, attention_name):
    """QK-norm computes softmax(LN(q) LN(k) / sqrt(d)) v with statistics over d of each head, in cross-attention too."""
    layer = noisy_model(EVERY[0], method=method, qk_norm=True).decoder.layers[1]
    attention = getattr(layer, attention_name)
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(5))
    memory = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(7))
    source = x if attention_name == "self_attn" else memory

    q = normalised(by_head(attention.q_proj(x)), attention.heads["q"])
    k = normalised(by_head(attention.k_proj(source)), attention.heads["k"])
    v = by_head(attention.v_proj(source))
    heads = (q @ k.transpose(2, 3) / math.sqrt(D)).softmax(-1) @ v
    expected = attention.out_proj(heads.transpose(1, 2).flatten(2))
    with torch.no_grad():
        actual = attention(x, source)

    assert torch.allclose(actual, expected, atol=1e-5)
    assert attention.heads["q"].weight.shape == (D,)
    assert attention.heads["q"].bias is None


every_base = pytest.mark.parametrize("method", ["deepnorm", "pre_ln"])


def modified_model(method):
    """Build a causal model with both modifiers."""
    return small(LM, method=method, pro_res=True, qk_norm=True)


@every_base
def test_every_parameter_of_a_modified_model_learns(method):
    model = modified_model(method).train()

    loss_of(model).backward()

    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.any(), name


@every_base
def test_learned_scale_reports_the_norms_of_heads(method):
    tokens = batch()
    held = {"src_tokens": tokens, "src_lengths": None}

    values = observing.observe(
        modified_model(method).train(),
        [tokens],
        "learned_scale",
        loss=lambda model, tokens: model(tokens)[0].sum(),
        held=held,
    )

    assert values["learned_scale"]["decoder.1.self_attn.heads.k.median"] == 1.0


@every_base
def test_modified_models_keep_factors_in_float32_in_half_precision(method):
    model = modified_model(method)
    tokens = batch()

    full = scores(model, tokens)
    half = scores(model.bfloat16(), tokens).float()

    assert torch.allclose(half, full, atol=0.1)
    assert {module.a.dtype for module in rising_modules(model)} == {torch.float32}


def test_an_option_out_of_its_range_is_refused():
    with refused("--pro-res-updates 0"):
        namespace(LM, pro_res=True, pro_res_updates=0)


def test_an_option_without_its_modifier_is_refused():
    with refused() as caught:
        namespace(LM, pro_res_updates=5)

    assert caught.value.subject == "--pro-res-updates"
    assert "--pro-res" in caught.value.way_out


def test_the_modifiers_are_two():
    assert sorted(MODIFIERS) == ["pro_res", "qk_norm"]


def test_a_modifiers_name_is_registered_once():
    with pytest.raises(ValueError, match="pro_res"):
        register_modifier("pro_res")(type("Other", (Modifier,), {}))


def plain_and_modified():
    plain = build(LM, VOCAB, **sizes(LM, 1))
    modified = build(LM, VOCAB, **sizes(LM, 1), qk_norm=True, pro_res=True)
    return plain, modified


def test_a_modified_model_refuses_a_checkpoint_without_modifiers():
    plain, modified = plain_and_modified()

    with refused() as caught:
        modified.load_state_dict(plain.state_dict())

    assert "modifier" in str(caught.value)
    assert scores(modified, *inputs(LM)).isfinite().all()


def test_a_plain_model_refuses_a_checkpoint_of_modifiers():
    plain, modified = plain_and_modified()

    with refused() as caught:
        plain.load_state_dict(modified.state_dict())

    assert "modifier" in str(caught.value)
