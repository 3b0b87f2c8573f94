"""Tests of the properties that every registered method keeps; a new method file is covered without a new test.

Each switch of each method, and each choice of an option, gets one check; options that are numbers keep their defaults.
Other checks take each method in one kind of model, and `every_slot` in all kinds. `every_slot` is a method of
tests/support that fills every slot, registered while a test runs.

A slot is a place in a layer for a module of the method. A variant is (name, options): a method's name with its
modifiers, as "deepnorm+qk_norm", and further fields of the config. `noisy_model` builds a model of width 16 with noise
on all parameters; `inputs(kind)` are the arguments of a call of it.
"""

import copy
import inspect

import pytest
import torch
from torch import nn

from deepnet_fairseq.core import Option, archs, build, load, save
from deepnet_fairseq.core.methods import METHODS, Method, get_method, register
from deepnet_fairseq.core.methods.base import is_of_package
from deepnet_fairseq.core.pass_state import copied, pass_state, running
from deepnet_fairseq.core.slots import Residual

from ..support.decoded import step_by_step
from ..support.errors import refused
from ..support.helpers import FIRST, PAD, TOLERANCE, VOCAB, batch, logits
from ..support.own_methods import method_with, registered
from ..support.single_stacks import EVERY_KIND as EVERY_KIND
from ..support.single_stacks import SINGLE_STACKS as LANGUAGE_MODELS
from ..support.single_stacks import batch as text_batch
from ..support.single_stacks import disturb, inputs, loss_of, noisy_model, scores, sizes, small

pytestmark = pytest.mark.usefixtures("every_slot")

FP32 = TOLERANCE[torch.float32]
TRANSLATION, LM, MASKED = EVERY_KIND
MODIFIED = [f"{name}+pro_res+qk_norm" for name in ("deepnorm", "pre_ln", "keel") if name in METHODS]


def spread(names):
    """Give each name one of the three kinds of model, in turn."""
    return [(EVERY_KIND[number % len(EVERY_KIND)], name) for number, name in enumerate(names)]


CASES = [*spread(sorted(METHODS)), *((kind, "every_slot") for kind in EVERY_KIND), *spread(MODIFIED)]
every_method = pytest.mark.parametrize(("kind", "name"), CASES)


def option_values(option):
    """Return the choices of an option, or True for a switch, without its default; none for a number or a text."""
    values = option.choices or ()
    if not values and option.default is False:
        values = (True,)
    return [value for value in values if value != option.default]


def variants():
    """Yield (name, options): every method, and every method with each of the `option_values` of one of its options."""
    for name, cls in sorted(METHODS.items()):
        yield name, {}
        for key, option in cls.options.items():
            for value in option_values(option):
                yield name, {f"{name}_{key}": value}
    for name in MODIFIED:
        yield name, {}
    yield "every_slot", {}


def language_model_variants():
    """Yield (kind, variant): each variant in one kind of language model, those with an option in the causal one.

    every_slot comes in both kinds.
    """
    *of_methods, every_slot = variants()
    for number, (name, options) in enumerate(of_methods):
        kind = LM if options else LANGUAGE_MODELS[number % 2]
        yield kind, (name, options)
    for kind in LANGUAGE_MODELS:
        yield kind, every_slot


CAUSAL_VARIANTS = [variant for kind, variant in language_model_variants() if kind == LM]
MASKED_VARIANTS = [variant for kind, variant in language_model_variants() if kind == MASKED]


def variant_id(parameter):
    """Return the part of a test's id for a kind of model, which is a text, or for a variant."""
    if isinstance(parameter, str):
        return parameter
    name, options = parameter
    own = [f"{key.removeprefix(name + '_')}={value}" for key, value in options.items()]
    return "-".join([name, *own])


def config_fields(name):
    """Return the fields of "deepnorm+qk_norm", a method and its modifiers."""
    method, *modifiers = name.split("+")
    return {"method": method} | dict.fromkeys(modifiers, True)


def padded_left(tokens, places):
    padding = torch.full((len(tokens), places), PAD)
    return torch.cat([padding, tokens], 1)


def padded_right(tokens, places):
    padding = torch.full((len(tokens), places), PAD)
    return torch.cat([tokens, padding], 1)


def assert_same(actual, expected):
    assert actual.shape == expected.shape
    assert torch.allclose(actual, expected, atol=FP32)


@pytest.mark.parametrize("variant", variants(), ids=variant_id)
def test_a_translations_scores_do_not_depend_on_batch_padding_or_caching(variant):
    name, options = variant
    model = noisy_model(TRANSLATION, 3, **config_fields(name), **options)
    src, prev = batch()  # three rows: the second source begins with 4 of padding, the first target ends with some
    second_src = src[1:2, 4:]
    second_prev = prev[1:2]
    later_src = src[1:]
    later_prev = prev[1:]  # without padding

    batched = logits(model, src, prev)
    alone = logits(model, second_src, second_prev)
    source_padded_right = logits(model, padded_right(second_src, places=4), second_prev)
    target_padded_left = logits(model, later_src, padded_left(later_prev, places=2))
    with torch.no_grad():
        cached = step_by_step(model, later_prev, model.encoder(later_src))

    assert_same(batched[1:2], alone)
    assert_same(source_padded_right, alone)
    assert_same(target_padded_left[:, 2:], batched[1:])
    assert_same(cached, batched[1:])


@pytest.mark.parametrize(("kind", "variant"), language_model_variants(), ids=variant_id)
def test_a_texts_scores_do_not_depend_on_batch_padding_or_caching(kind, variant):
    name, options = variant
    model = noisy_model(kind, 3, **config_fields(name), **options)
    tokens = text_batch()  # three rows, of which the first ends with 2 of padding
    first_row = tokens[:1, :-2]
    first_row_padded_left = padded_left(first_row, places=2)

    batched = scores(model, tokens)
    alone = scores(model, first_row)
    alone_padded_left = scores(model, first_row_padded_left)
    batched_padded_left = scores(model, torch.cat([first_row_padded_left, tokens[1:]]))

    assert_same(batched[:1, :-2], alone)
    assert_same(alone_padded_left[:, 2:], alone)
    assert_same(batched_padded_left[:1, 2:], alone)
    assert torch.isfinite(batched_padded_left).all()
    if kind == LM:  # a masked model does not decode
        real = tokens.ne(PAD)
        with torch.no_grad():
            cached = step_by_step(model, tokens)
        assert_same(cached[real], batched[real])


PLACE = 5  # of a word that is replaced


def changes_by_another_word(model):
    """Replace a word of the second of three texts; return how much the scores at each token change, (B, T)."""
    tokens = text_batch()
    changed = tokens.clone()
    changed[1, PLACE] = FIRST if tokens[1, PLACE] != FIRST else FIRST + 1

    differences = scores(model, changed) - scores(model, tokens)  # (B, T, V)
    return differences.abs().amax(-1)


@pytest.mark.parametrize("variant", CAUSAL_VARIANTS, ids=variant_id)
def test_a_causal_model_does_not_look_ahead(variant):
    """A word changes the scores at its place and at later ones, not at earlier ones or in other texts."""
    name, options = variant
    model = noisy_model(LM, 3, **config_fields(name), **options)

    changes = changes_by_another_word(model)

    assert (changes[1, PLACE:] > FP32).all()
    assert not changes[1, :PLACE].any()
    assert not changes[[0, 2]].any()


@pytest.mark.parametrize("variant", MASKED_VARIANTS, ids=variant_id)
def test_a_masked_model_looks_both_ways(variant):
    """A word changes the scores everywhere in its text, and in no other text."""
    name, options = variant
    model = noisy_model(MASKED, 3, **config_fields(name), **options)

    changes = changes_by_another_word(model)

    assert (changes[1] > FP32).all()
    assert not changes[[0, 2]].any()


def reversed_in_time(value):
    """Reverse the order of tokens in tensors (B, T, ..), in lists and dictionaries too."""
    if isinstance(value, torch.Tensor):
        return value.flip(1)
    if isinstance(value, dict):
        return {key: reversed_in_time(one) for key, one in value.items()}
    if isinstance(value, list):
        return [reversed_in_time(one) for one in value]
    return value


def slots_of_branches(model):
    """Return the modules in slots of a model's branches, with addresses as "decoder.3.ffn.inner", in a list."""
    slots = []
    for stack in model.stacks().values():
        slots += [(address, slot) for address, slot in stack.slots() if address.count(".") == 3]
    return slots


@every_method
def test_slots_see_each_token_alone(kind, name):
    """Slots treat each token alone, as incremental decoding needs: reversing the order of tokens changes nothing.

    Each slot is called twice: in a forward pass, and by a hook with its inputs reversed. The hook also reverses the
    state of the pass, by which modules of several layers share tensors.
    """
    model = noisy_model(kind, 3, **config_fields(name))
    state_before = {}  # slot -> state of the pass when it is called
    compared = set()

    def keep_state(slot, given):
        state_before[slot] = copied(pass_state())

    def comparison(address):
        def compare(slot, given, y):
            with running(reversed_in_time(state_before[slot])):
                again = slot.forward(*map(reversed_in_time, given))
            assert torch.allclose(again.flip(1), y, atol=FP32), f"{address} looks along time"
            compared.add(slot)

        return compare

    for address, slot in slots_of_branches(model):
        slot.register_forward_pre_hook(keep_state)
        slot.register_forward_hook(comparison(address))
    with torch.no_grad():
        model(*inputs(kind))

    least_branches = len(model.stacks()) * 3 * 2  # two a layer; each has at least the slot that merges it
    assert len(compared) >= least_branches


def core_model(kind, name):
    """Build a model by the core alone, with noise on its parameters, after 7 updates."""
    model = disturb(build(kind, VOCAB, **sizes(kind, 2), **config_fields(name))).eval()
    model.set_num_updates(7)
    return model


def assert_equal_models(actual, expected, kind):
    """Check that two models have the same weights, in the same order, and the same scores."""
    weights = expected.state_dict()
    assert list(actual.state_dict()) == list(weights)
    for name, tensor in actual.state_dict().items():
        assert torch.equal(tensor, weights[name]), name
    assert torch.equal(scores(actual, *inputs(kind)), scores(expected, *inputs(kind)))


@every_method
def test_a_saved_model_is_loaded_with_its_config_weights_and_scores(kind, name, tmp_path):
    model = core_model(kind, name)
    path = tmp_path / "model.pt"
    save(model, path)

    loaded = load(path)

    assert type(loaded) is type(model)
    assert not loaded.training
    assert loaded.built_from == model.built_from
    assert_equal_models(loaded, model, kind)


@every_method
def test_loading_a_model_draws_no_random_numbers(kind, name, tmp_path):
    path = tmp_path / "model.pt"
    save(core_model(kind, name), path)
    random_state = torch.get_rng_state()

    load(path)

    assert torch.equal(torch.get_rng_state(), random_state)


@every_method
def test_a_deep_copy_has_the_same_weights_and_scores(kind, name):
    """Exponential moving averages make deep copies of models."""
    model = core_model(kind, name)

    assert_equal_models(copy.deepcopy(model), model, kind)


BY_DEFAULT = ("deepnorm", "every_slot")  # an update of 100 layers takes a second


@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(*case, marks=() if case[1] in BY_DEFAULT else pytest.mark.smoke) for case in CASES],
)
def test_gradients_are_finite_at_100_layers_and_so_are_scores_in_bfloat16(kind, name):
    """Every parameter that is trained gets a gradient, as DDP needs."""
    model = small(kind, 100, **config_fields(name)).train()

    loss_of(model).backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, parameter_name
            assert torch.isfinite(parameter.grad).all(), parameter_name

    scores_in_bfloat16 = scores(model.to(torch.bfloat16), *inputs(kind))
    assert torch.isfinite(scores_in_bfloat16).all()


def count_runs_of_layers(model):
    """Return a list that grows by one entry whenever a layer runs."""
    runs = []
    for stack in model.stacks().values():
        for layer in stack.layers:
            layer.fc1.register_forward_hook(lambda *_: runs.append(1))
    return runs


@every_method
def test_checkpointed_activations_give_the_same_gradients(kind, name):
    """Layers are recomputed in groups of two, the third one by itself, with the same dropout."""
    fields = config_fields(name) | {"dropout": 0.2, "attention_dropout": 0.1}
    plain = noisy_model(kind, 3, **fields).train()
    recomputing = noisy_model(kind, 3, **fields, checkpoint_every=2).train()
    runs_of_plain = count_runs_of_layers(plain)
    runs_of_recomputing = count_runs_of_layers(recomputing)

    for model in (plain, recomputing):
        torch.manual_seed(3)
        loss_of(model).backward()

    layers = 3 * len(archs.STACKS[kind])
    assert len(runs_of_plain) == layers
    assert len(runs_of_recomputing) == 2 * layers
    recomputed = dict(recomputing.named_parameters())
    for parameter_name, parameter in plain.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(parameter.grad, recomputed[parameter_name].grad), parameter_name


every_dropout = pytest.mark.parametrize("flag", ["dropout", "attention_dropout", "activation_dropout"])
every_kind = pytest.mark.parametrize("kind", EVERY_KIND)


@every_dropout
@every_kind
def test_dropout_acts_in_training(kind, flag):
    model = noisy_model(kind, method="every_slot", **{flag: 0.3}).train()

    first = scores(model, *inputs(kind))
    second = scores(model, *inputs(kind))

    assert not torch.equal(first, second)


@every_dropout
@every_kind
def test_dropout_does_not_act_in_evaluation(kind, flag):
    model = noisy_model(kind, method="every_slot", **{flag: 0.3}).eval()

    first = scores(model, *inputs(kind))
    second = scores(model, *inputs(kind))

    assert torch.equal(first, second)


@every_kind
def test_hidden_states_are_returned_on_request(kind):
    model = noisy_model(kind, 2)
    given = inputs(kind)
    last_stacks_tokens = given[-1]

    with torch.no_grad():
        states = model(*given, return_all_hiddens=True)[1]["inner_states"]

    rows, length = last_stacks_tokens.shape
    expected_shape = (length, rows, 16)  # (T, B, C), as in fairseq
    assert [tuple(state.shape) for state in states] == [expected_shape] * 3  # of the embedding and two layers


@every_kind
def test_hidden_states_are_not_returned_unasked(kind):
    model = noisy_model(kind, 2)

    with torch.no_grad():
        extra = model(*inputs(kind))[1]

    assert not extra["inner_states"]


def test_a_methods_name_cannot_be_registered_twice():
    another = type("Another", (Method,), {})
    first_file = inspect.getfile(METHODS["every_slot"])

    with refused("every_slot") as caught:
        register("every_slot")(another)

    assert first_file in caught.value.way_out
    assert __file__ in caught.value.way_out
    assert METHODS["every_slot"] is not another


@pytest.mark.parametrize(
    ("key", "option"),
    [
        pytest.param("norm", Option(1.0, ""), id="an attribute"),
        pytest.param("depth", Option(1.0, ""), id="a method"),
        pytest.param("title", Option("", ""), id="an attribute that register sets"),
        pytest.param("num_encoder_layers", Option(1, ""), id="an attribute that the constructor sets"),
        pytest.param("own", Option(1.0, ""), id="an attribute of the class"),
        pytest.param("by", Option("brnch", "", ("branch", "layer")), id="a default outside the choices"),
        pytest.param("by", Option(None, "", ("branch", "layer")), id="no default among the choices"),
        pytest.param("by-layer", Option(1.0, ""), id="no name of Python's"),
    ],
)
def test_an_option_that_cannot_work_is_refused_with_its_class(key, option):
    wrong = type("Wrong", (Method,), {"own": None, "options": {key: option}})

    with refused("Wrong", repr(key)):
        register("wrong")(wrong)

    assert "wrong" not in METHODS


class TwiceTheBranch(nn.ModuleList):
    """A merge x + 2 f that is an empty list of modules, and therefore false as a truth value."""

    def forward(self, x, f, state=None):
        return x + 2 * f

    branch_and_sum = Residual.branch_and_sum
    scales = Residual.scales


def test_a_merge_whose_truth_value_is_false_is_not_replaced_by_a_sum():
    method = type("Twice", (Method,), {"equation": "", "paper": "", "residual": lambda self, site: TwiceTheBranch()})

    with registered(method) as name:
        model = small(archs.MODEL_NAME, method=name)

    for layer in model.encoder.layers:
        assert isinstance(layer.residual["ffn"], TwiceTheBranch)


@pytest.mark.parametrize(
    ("default", "values"), [(True, "flag"), (3, "number"), (0.5, "number"), (None, "text"), ("a", "text")]
)
def test_an_option_without_choices_takes_values_of_its_defaults_type(default, values):
    """A table of options shows the type in the column "values"."""
    assert Option(default, "help").values == values


def test_a_merge_may_define_branch_and_sum_by_its_former_name():
    """The former name is `added`."""

    class Doubling(Residual):
        def added(self, x, f):
            return 2 * f, x + 2 * f

    x = torch.tensor([1.0])
    f = torch.tensor([3.0])

    assert Doubling().branch_and_sum(x, f) == (6.0, 7.0)


# Names that no method has


def test_an_unknown_method_is_refused_with_the_nearest_name_and_not_with_a_list():
    with refused("--method deepnrom") as caught:
        get_method("deepnrom")

    assert "deepnorm?" in caught.value.way_out
    assert "rezero" not in caught.value.way_out


def test_a_name_like_no_other_is_refused_with_all_names():
    with refused("--method xyz") as caught:
        get_method("xyz")

    assert "rezero" in caught.value.way_out


@pytest.mark.parametrize("name", ["deepnrom", "xyz"])
def test_a_user_dir_is_asked_for_only_if_none_has_registered_a_method(name, monkeypatch):
    for registered_name, method in list(METHODS.items()):
        if not is_of_package(method):  # another test's
            monkeypatch.delitem(METHODS, registered_name)

    with refused(f"--method {name}") as without:
        get_method(name)
    with registered(method_with()), refused(f"--method {name}") as with_own:
        get_method(name)

    assert "--user-dir" in without.value.way_out
    assert "--user-dir" not in with_own.value.way_out
