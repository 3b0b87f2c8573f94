"""Tests of the two modifiers by their formulas, around methods that use the same slot, and of their flags.

A modifier changes any method by a flag of its own: `pro_res` multiplies branches by a factor that rises in training,
`qk_norm` normalises queries and keys. test_methods.py covers decoding, saving and recomputation of modified methods.
`small(kind, layers)` builds a model of width 16 with 2 heads, `noisy_model` one with noise on all parameters.
"""

import inspect
import math

import pytest
import torch

from deepnet_fairseq.core.archs import LM, MASKED_LM, MODEL_NAME
from deepnet_fairseq.core.config import namespace
from deepnet_fairseq.core.methods import Option
from deepnet_fairseq.core.modifiers import MODIFIERS, Modifier, Rising, register_modifier
from deepnet_fairseq.core.probes import PROBES
from deepnet_fairseq.core.profile import profile_omegas
from deepnet_fairseq.plugin.building import build

from ..support.errors import refused
from ..support.helpers import VOCAB
from ..support.single_stacks import EVERY_KIND as EVERY_KIND
from ..support.single_stacks import batch, inputs, loss_of, noisy_model, scores, sizes, small


def rising_modules(model):
    """Return the modules by which ProRes multiplies branches, in forward order."""
    return [module for module in model.modules() if isinstance(module, Rising)]


def rising_factors(model):
    """Return the factor a of every branch, in forward order."""
    return [module.a.item() for module in rising_modules(model)]


def of_every_branch(kind, factors_of_layers):
    """Repeat the factor of each layer for every branch of it, in every stack of a kind of model."""
    branches_of_layers = [2, 3] if kind == MODEL_NAME else [2]  # of encoder and decoder; of the only stack
    factors = []
    for branches in branches_of_layers:
        for factor in factors_of_layers:
            factors += [factor] * branches
    return factors


@pytest.mark.parametrize(
    ("updates_done", "factors"),  # of layers 1, 2 and 3 in the next update, t = updates_done + 1
    [
        (0, [1 / 1000, 1 / 2000, 1 / 3000]),
        (999, [1, 1 / 2, 1 / 3]),
        (1999, [1, 1, 2 / 3]),
        (9999, [1, 1, 1]),
    ],
)
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_branches_rise_layer_by_layer(kind, updates_done, factors):
    """ProRes branches rise by the paper's schedule a(l, t) = min(t / (T l), 1), with T = 1000."""
    model = small(kind, 3, pro_res=True)

    model.set_num_updates(updates_done)

    assert rising_factors(model) == pytest.approx(of_every_branch(kind, factors), rel=1e-6)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_branches_rise_in_as_many_updates_as_the_option_says(kind):
    """The option pro_res_updates is T of the schedule a(l, t) = min(t / (T l), 1)."""
    model = small(kind, 3, pro_res=True, pro_res_updates=10)

    model.set_num_updates(14)

    factors_at_15 = [1, 15 / (10 * 2), 15 / (10 * 3)]
    assert rising_factors(model) == pytest.approx(of_every_branch(kind, factors_at_15))


def with_names_of_plain_model(state):
    """Return a state dict with the names of a model without ProRes.

    ProRes puts NormFormer's module on a branch's output into a sequence, in front of its factor.
    """
    return {name.replace("outer.self_attn.0.0.", "outer.self_attn.0."): value for name, value in state.items()}


@pytest.mark.parametrize("method", ["deepnorm", "normformer", "rezero"])
def test_a_rising_method_computes_with_a_f_in_place_of_f(method):
    """A merge reads a shortcut x and a branch f. In a model without ProRes, hooks on the merges multiply f by a."""
    rising = noisy_model(LM, method=method, pro_res=True)
    hooked = noisy_model(LM, method=method)
    state = with_names_of_plain_model(rising.state_dict())
    hooked.load_state_dict({name: state[name] for name in hooked.state_dict()})
    tokens = batch()
    scores_without_factors = scores(hooked, tokens)

    def scale_branch(a):
        def hook(_merge, given):
            x, f = given
            return x, a * f

        return hook

    for layer in hooked.decoder.layers:
        for sublayer, site in layer.sites.items():
            a = 100 / (1000 * site.layer)  # t / (T l)
            layer.residual[sublayer].register_forward_pre_hook(scale_branch(a))
    rising.set_num_updates(99)

    assert torch.allclose(scores(rising, tokens), scores(hooked, tokens), atol=1e-5)
    assert not torch.allclose(scores(rising, tokens), scores_without_factors, atol=1e-2)


@pytest.mark.parametrize("cast_before", [False, True])  # a cast separates the layers until the next update
def test_layers_share_one_vector_of_factors(cast_before):
    """One shared vector lets an update write the factors of a stack by one kernel."""
    model = small(MASKED_LM, 3, pro_res=True)
    if cast_before:
        model.set_num_updates(1)
        model.half().float()

    model.set_num_updates(1)

    storages = {module.a.untyped_storage().data_ptr() for module in rising_modules(model)}
    assert len(storages) == 1
    assert {module.a.dtype for module in rising_modules(model)} == {torch.float32}


def test_a_model_with_rising_branches_is_saved_and_loaded_after_a_cast():
    model = small(MASKED_LM, 3, pro_res=True)
    model.set_num_updates(1)
    model.half().float()

    loaded = small(MASKED_LM, 3, pro_res=True)
    loaded.load_state_dict(model.state_dict())

    factors_at_2 = [2 / 1000, 2 / 2000, 2 / 3000]
    assert rising_factors(loaded) == pytest.approx(of_every_branch(MASKED_LM, factors_at_2))


def test_admin_profiles_branches_at_full_strength():
    """Admin's omegas are those of a model without ProRes. The factors of ProRes are restored after profiling."""
    net_input = {"src_tokens": batch(), "src_lengths": None}
    rising = small(LM, method="admin", pro_res=True)
    plain = small(LM, method="admin")
    rising.set_num_updates(99)
    factors_before = rising_factors(rising)

    omegas = profile_omegas(rising, net_input, seed=1)

    expected = profile_omegas(plain, net_input, seed=1)
    assert list(omegas.values()) == pytest.approx(list(expected.values()))
    assert set(omegas.values()) != {1.0}  # their values before profiling
    assert rising_factors(rising) == factors_before


D = 8  # features of each of two heads


def by_head(y):
    """Split (B, T, 2 D) into heads, (B, 2, T, D)."""
    return y.unflatten(-1, (2, D)).transpose(1, 2)


def normalised(z, norm):
    """Compute LayerNorm by its formula over the features of each head, with a module's gain and no bias."""
    centred = z - z.mean(-1, keepdim=True)
    std = (z.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return centred / std * norm.weight


every_base = pytest.mark.parametrize("method", ["deepnorm", "pre_ln"])


@pytest.mark.parametrize("attention_name", ["self_attn", "encoder_attn"])
@every_base
def test_queries_and_keys_are_normalised_by_head(method, attention_name):
    """QK-norm computes softmax(LN(q) LN(k) / sqrt(d)) v with statistics over d of each head, in cross-attention too."""
    layer = noisy_model(MODEL_NAME, method=method, qk_norm=True).decoder.layers[1]
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
def test_the_probe_learned_scale_reports_the_gains_of_the_norms_on_keys(method):
    model = modified_model(method)

    values = PROBES["learned_scale"](model).values()

    assert values["decoder.1.self_attn.heads.k.median"] == 1.0  # gains begin at 1


@every_base
def test_modified_models_keep_factors_in_float32_in_half_precision(method):
    model = modified_model(method)
    tokens = batch()

    in_float32 = scores(model, tokens)
    in_bfloat16 = scores(model.bfloat16(), tokens).float()

    assert {module.a.dtype for module in rising_modules(model)} == {torch.float32}
    assert torch.allclose(in_bfloat16, in_float32, atol=0.1)


def test_a_number_of_updates_below_one_is_refused():
    with refused("--pro-res-updates 0"):
        namespace(LM, pro_res=True, pro_res_updates=0)


def test_an_option_without_its_modifier_is_refused_with_the_modifiers_flag():
    with refused() as caught:
        namespace(LM, pro_res_updates=5)

    assert caught.value.subject == "--pro-res-updates"
    assert "--pro-res" in caught.value.way_out


def test_the_modifiers_are_pro_res_and_qk_norm():
    assert sorted(MODIFIERS) == ["pro_res", "qk_norm"]


def test_a_modifiers_name_cannot_be_registered_twice():
    another = type("Another", (Modifier,), {})

    with refused("pro_res") as caught:
        register_modifier("pro_res")(another)

    assert inspect.getfile(MODIFIERS["pro_res"]) in caught.value.way_out
    assert __file__ in caught.value.way_out


def test_a_modifiers_default_outside_the_choices_is_refused():
    options = {"by": Option("brnch", "", ("branch", "layer"))}
    wrong = type("Wrong", (Modifier,), {"options": options})

    with refused("Wrong", "'by'"):
        register_modifier("wrong")(wrong)

    assert "wrong" not in MODIFIERS


@pytest.fixture
def plain_model():
    return build(LM, VOCAB, **sizes(LM, 1))


@pytest.fixture
def model_with_both_modifiers():
    return build(LM, VOCAB, **sizes(LM, 1), qk_norm=True, pro_res=True)


def test_a_modified_model_refuses_a_checkpoint_without_modifiers(plain_model, model_with_both_modifiers):
    """The model can be used after the refusal."""
    with refused("modifier"):
        model_with_both_modifiers.load_state_dict(plain_model.state_dict())

    assert scores(model_with_both_modifiers, *inputs(LM)).isfinite().all()


def test_a_plain_model_refuses_a_checkpoint_of_modifiers(plain_model, model_with_both_modifiers):
    with refused("modifier"):
        plain_model.load_state_dict(model_with_both_modifiers.state_dict())
