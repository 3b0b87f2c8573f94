"""Tests of the properties that every registered method keeps; a new method file is covered without a new test.

Each option of each method gets one check. The others take a covering choice: each method in one kind of model, and a
method that fills every slot in all kinds.
"""

import copy

import pytest
import torch
from torch import nn

from deepnet_fairseq.core import Option, archs, build, load, save
from deepnet_fairseq.core.methods import METHODS, Method, register
from deepnet_fairseq.core.pass_state import copied, pass_state, running
from deepnet_fairseq.core.slots import Residual

from ..support.decoded import step_by_step
from ..support.helpers import PAD, TOLERANCE, VOCAB, batch, logits
from ..support.own_methods import registered
from ..support.single_stacks import EVERY, KINDS, disturb, inputs, loss_of, noisy_model, scores, sizes, small
from ..support.single_stacks import batch as text_batch

pytestmark = pytest.mark.usefixtures("every_slot")

FP32 = TOLERANCE[torch.float32]
TRANSLATION, LM, MASKED = EVERY
MODIFIED = [f"{name}+pro_res+qk_norm" for name in ("deepnorm", "pre_ln", "keel") if name in METHODS]


def spread(names):
    """Give each name one of the three kinds of model, in turn."""
    return [(EVERY[number % len(EVERY)], name) for number, name in enumerate(names)]


CHOICE = [*spread(sorted(METHODS)), *((kind, "every_slot") for kind in EVERY), *spread(MODIFIED)]


def option_values(option):
    """Return the values that a flag can give an option, without its default."""
    values = option.choices or ()
    if not values and option.default is False:
        values = (True,)
    return [value for value in values if value != option.default]


def variants():
    """Yield (name, options): every method, and every method with each of its options at each value a flag can give."""
    for name, cls in sorted(METHODS.items()):
        yield name, {}
        for key, option in cls.options.items():
            for value in option_values(option):
                yield name, {f"{name}_{key}": value}
    for name in MODIFIED:
        yield name, {}
    yield "every_slot", {}


def language_model_variants():
    """Yield (kind, variant): each variant in one kind of language model, those with an option in the causal one."""
    for number, (name, options) in enumerate(variants()):
        kind = LM if options else KINDS[number % 2]
        yield kind, (name, options)
    yield LM, ("every_slot", {})


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


def padded_left(tokens, places=2):
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
    src, prev = batch()
    second_src = src[1:2, 4:]  # the second row without its padding
    second_prev = prev[1:2]

    batched = logits(model, src, prev)
    alone = logits(model, second_src, second_prev)
    source_padded_right = logits(model, padded_right(second_src, 4), second_prev)
    target_padded_left = logits(model, src[1:], padded_left(prev[1:], 2))
    with torch.no_grad():
        decoded = step_by_step(model, prev[1:], model.encoder(src[1:]))  # rows without padding in their target

    assert_same(batched[1:2], alone)
    assert_same(source_padded_right, alone)
    assert_same(target_padded_left[:, 2:], batched[1:])
    assert_same(decoded, batched[1:])


@pytest.mark.parametrize(("kind", "variant"), language_model_variants(), ids=variant_id)
def test_a_texts_scores_do_not_depend_on_batch_padding_or_caching(kind, variant):
    name, options = variant
    model = noisy_model(kind, 3, **config_fields(name), **options)
    tokens = text_batch()
    first_row = tokens[:1, :-2]  # without its padding
    among_others = torch.cat([padded_left(first_row, 2), tokens[1:]])

    batched = scores(model, tokens)
    alone = scores(model, first_row)
    mates = scores(model, among_others)

    assert_same(batched[:1, :-2], alone)
    assert_same(scores(model, padded_left(first_row, 2))[:, 2:], alone)
    assert_same(mates[:1, 2:], alone)
    assert torch.isfinite(mates).all()
    if kind == LM:
        real = tokens.ne(PAD)
        with torch.no_grad():
            decoded = step_by_step(model, tokens)
        assert_same(decoded[real], batched[real])


@pytest.mark.parametrize(("kind", "variant"), language_model_variants(), ids=variant_id)
def test_only_a_masked_model_looks_ahead(kind, variant):
    """A word changes the scores at its place and later ones, in a masked model earlier ones too, and no other text."""
    name, options = variant
    model = noisy_model(kind, 3, **config_fields(name), **options)
    tokens = text_batch()
    place = 5
    changed = tokens.clone()
    changed[1, place] = (tokens[1, place] + 1) % (VOCAB - 10) + 5

    difference = (scores(model, changed) - scores(model, tokens)).abs().amax(-1)

    assert not difference[[0, 2]].any()  # the other texts of the batch
    assert (difference[1, place:] > FP32).all()
    if kind == MASKED:
        assert (difference[1, :place] > FP32).all()
    else:
        assert not difference[1, :place].any()


def reversed_in_time(value):
    """Reverse the order of tokens in tensors (B, T, ..), in lists and dictionaries too."""
    if isinstance(value, torch.Tensor):
        return value.flip(1)
    if isinstance(value, dict):
        return {key: reversed_in_time(one) for key, one in value.items()}
    if isinstance(value, list):
        return [reversed_in_time(one) for one in value]
    return value


@pytest.mark.parametrize(("kind", "name"), CHOICE)
def test_slots_see_each_token_alone(kind, name):
    """Slots treat each token alone, as incremental decoding needs: reversing the order of tokens changes nothing."""
    model = noisy_model(kind, 3, **config_fields(name))
    state_before = {}
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

    for stack in model.stacks().values():
        for address, slot in stack.slots():
            of_a_branch = address.count(".") == 3
            if of_a_branch:
                slot.register_forward_pre_hook(keep_state)
                slot.register_forward_hook(comparison(address))
    with torch.no_grad():
        model(*inputs(kind))

    branches_of_a_language_model = 3 * 2
    assert len(compared) >= len(model.stacks()) * branches_of_a_language_model


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


@pytest.mark.parametrize(("kind", "name"), CHOICE)
def test_a_saved_model_is_loaded_with_its_config_weights_and_scores(kind, name, tmp_path):
    model = core_model(kind, name)
    path = tmp_path / "model.pt"
    save(model, path)
    random_state = torch.get_rng_state()

    loaded = load(path)

    assert torch.equal(torch.get_rng_state(), random_state)
    assert type(loaded) is type(model)
    assert not loaded.training
    assert loaded.built_from == model.built_from
    assert_equal_models(loaded, model, kind)


@pytest.mark.parametrize(("kind", "name"), CHOICE)
def test_a_deep_copy_has_the_same_weights_and_scores(kind, name):
    """Exponential moving averages copy models so."""
    model = core_model(kind, name)

    assert_equal_models(copy.deepcopy(model), model, kind)


@pytest.mark.parametrize(("kind", "name"), CHOICE)
def test_every_parameter_learns_at_100_layers(kind, name):
    """Every parameter gets a finite gradient at 100 layers, which DDP needs; scores in bf16 are finite."""
    model = small(kind, 100, **config_fields(name)).train()

    loss_of(model).backward()

    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, parameter_name
            assert torch.isfinite(parameter.grad).all(), parameter_name
    half = model.to(torch.bfloat16)
    assert torch.isfinite(scores(half, *inputs(kind))).all()


def count_runs_of_layers(model):
    """Return a list that grows by one entry whenever a layer runs."""
    runs = []
    for stack in model.stacks().values():
        for layer in stack.layers:
            layer.fc1.register_forward_hook(lambda *_: runs.append(1))
    return runs


@pytest.mark.parametrize(("kind", "name"), CHOICE)
def test_checkpointed_activations_give_the_same_gradients(kind, name):
    """Recomputation in groups of two of three layers gives the same gradients, and runs each layer once more."""
    fields = config_fields(name) | {"dropout": 0.2, "attention_dropout": 0.1}
    plain = noisy_model(kind, 3, **fields).train()
    recomputing = noisy_model(kind, 3, **fields, checkpoint_every=2).train()
    layers = 3 * len(archs.STACKS[kind])
    runs_of_plain = count_runs_of_layers(plain)
    runs_of_recomputing = count_runs_of_layers(recomputing)

    for model in (plain, recomputing):
        torch.manual_seed(3)
        loss_of(model).backward()

    assert len(runs_of_plain) == layers
    assert len(runs_of_recomputing) == 2 * layers
    for (parameter_name, p), q in zip(plain.named_parameters(), recomputing.parameters(), strict=True):
        if p.requires_grad:
            assert torch.equal(p.grad, q.grad), parameter_name


@pytest.mark.parametrize("flag", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("kind", EVERY)
def test_dropout_acts_in_training_only(kind, flag):
    model = noisy_model(kind, method="every_slot", **{flag: 0.3})
    given = inputs(kind)

    model.train()
    assert not torch.equal(scores(model, *given), scores(model, *given))

    model.eval()
    assert torch.equal(scores(model, *given), scores(model, *given))


@pytest.mark.parametrize("kind", EVERY)
def test_hidden_states_are_returned_on_request_only(kind):
    model = noisy_model(kind, 2)
    given = inputs(kind)
    length = given[-1].size(1)

    with torch.no_grad():
        unasked = model(*given)[1]["inner_states"]
        states = model(*given, return_all_hiddens=True)[1]["inner_states"]

    assert not unasked
    assert [tuple(state.shape) for state in states] == [(length, 3, 16)] * 3  # of the embedding and two layers


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="every_slot"):
        register("every_slot")(type("Other", (Method,), {}))


class TwiceTheBranch(nn.ModuleList):
    """A merge x + 2 f that is an empty list of modules, as one is whose branch has nothing to learn."""

    def forward(self, x, f, state=None):
        return x + 2 * f

    branch_and_sum = Residual.branch_and_sum
    scales = Residual.scales


def test_a_merge_without_modules_inside_is_not_replaced():
    method = type("Twice", (Method,), {"equation": "", "paper": "", "residual": lambda self, site: TwiceTheBranch()})

    with registered(method) as name:
        model = small(archs.MODEL_NAME, method=name)

    for layer in model.encoder.layers:
        assert isinstance(layer.residual["ffn"], TwiceTheBranch)


@pytest.mark.parametrize(
    ("default", "values"), [(True, "flag"), (3, "number"), (0.5, "number"), (None, "text"), ("a", "text")]
)
def test_a_table_of_options_names_the_type_of_the_default(default, values):
    assert Option(default, "help").values == values


def test_a_merge_may_tell_its_terms_under_their_old_name():
    """Methods of before define `added`, which is branch_and_sum by now."""

    class Doubling(Residual):
        def added(self, x, f):
            return 2 * f, x + 2 * f

    x = torch.tensor([1.0])
    f = torch.tensor([3.0])

    assert Doubling().branch_and_sum(x, f) == (6.0, 7.0)
