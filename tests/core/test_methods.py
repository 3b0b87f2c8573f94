"""Tests of the properties that every registered method keeps; a new method file is covered without a new test.

Each option of each method gets one check. The others take a covering choice: each method in one kind of model, and a
method that fills every slot in all kinds.
"""

import copy

import pytest
import torch

from deepnet_fairseq.core import archs, build, load, save
from deepnet_fairseq.core.methods import METHODS, Method, register
from deepnet_fairseq.core.pass_state import copied, pass_state, running

from ..support.every_slot import EverySlot
from ..support.helpers import PAD, TOLERANCE, VOCAB, batch, logits
from ..support.single_stacks import EVERY, KINDS, awake, disturb, inputs, loss_of, scores, sizes, small
from ..support.single_stacks import batch as text

FP32 = TOLERANCE[torch.float32]
TRANSLATION, LM, MASKED = EVERY
CHOICE = [(EVERY[number % len(EVERY)], name) for number, name in enumerate(sorted(METHODS))]
CHOICE += [(kind, "every_slot") for kind in EVERY]
MODIFIED = [f"{name}+pro_res+qk_norm" for name in ("deepnorm", "pre_ln", "keel") if name in METHODS]
CHOICE += [(EVERY[number % len(EVERY)], name) for number, name in enumerate(MODIFIED)]


@pytest.fixture(autouse=True)
def every_slot():
    """Register a method that fills every slot, for one test."""
    register("every_slot")(EverySlot)
    yield "every_slot"
    del METHODS["every_slot"]


def variants():
    """Yield every method, and every method with each of its options at each value a flag can give."""
    for name, cls in sorted(METHODS.items()):
        yield name, {}
        for key, option in cls.options.items():
            others = option.choices or ((True,) if option.default is False else ())
            for value in others:
                if value != option.default:
                    yield name, {f"{name}_{key}": value}
    yield from ((name, {}) for name in MODIFIED)
    yield "every_slot", {}


def fields(name):
    """Return the config of "deepnorm+qk_norm", a method and its modifiers."""
    method, *modifiers = name.split("+")
    return {"method": method} | dict.fromkeys(modifiers, True)


def texts():
    """Yield each variant in one kind of language model, those with an option in the causal one."""
    for number, (name, options) in enumerate(variants()):
        yield LM if options else KINDS[number % 2], (name, options)
    yield LM, ("every_slot", {})


def spelled(variant):
    if isinstance(variant, str):  # the name of a kind of model
        return variant
    name, options = variant
    return "-".join([name, *(f"{key.removeprefix(name + '_')}={value}" for key, value in options.items())])


def left(tokens, places=2):
    """Pad tokens on the left."""
    return torch.cat([torch.full((len(tokens), places), PAD), tokens], 1)


def close(actual, expected):
    return torch.allclose(actual, expected, atol=FP32)


def step_by_step(model, tokens, *memory):
    """Compute scores (B, T, V) by decoding one token at a time."""
    places, state = range(1, tokens.size(1) + 1), {}
    with torch.no_grad():
        return torch.cat([model.decoder(tokens[:, :t], *memory, incremental_state=state)[0] for t in places], 1)


@pytest.mark.parametrize("variant", variants(), ids=spelled)
def test_padding_batch_mates_and_the_way_of_decoding_do_not_matter(variant):
    """Scores of a translation do not depend on its batch, on padding, or on decoding token by token."""
    name, options = variant
    model, (src, prev) = awake(TRANSLATION, 3, **fields(name), **options), batch()
    batched, alone = logits(model, src, prev), logits(model, src[1:2, 4:], prev[1:2])
    assert close(batched[1:2], alone)
    assert close(logits(model, torch.cat([src[1:2, 4:], torch.full((1, 4), PAD)], 1), prev[1:2]), alone)
    assert close(logits(model, src[1:], left(prev[1:]))[:, 2:], batched[1:])
    with torch.no_grad():
        memory = model.encoder(src[1:])
    assert close(step_by_step(model, prev[1:], memory), batched[1:])  # begins with rows without padding


@pytest.mark.parametrize(("kind", "variant"), texts(), ids=spelled)
def test_the_same_of_a_text(kind, variant):
    """Scores of a text do not depend on its batch, on padding, or on decoding; only masked models look ahead."""
    name, options = variant
    model, tokens = awake(kind, 3, **fields(name), **options), text()
    batched, row = scores(model, tokens), tokens[:1, :-2]
    alone, mates = scores(model, row), torch.cat([left(row), tokens[1:]])
    assert close(batched[:1, :-2], alone)
    assert close(scores(model, left(row))[:, 2:], alone)
    assert close(scores(model, mates)[:1, 2:], alone) and torch.isfinite(scores(model, mates)).all()
    if kind == LM:
        assert close(step_by_step(model, tokens)[tokens.ne(PAD)], batched[tokens.ne(PAD)])
    other = tokens.clone()
    other[1, 5] = (tokens[1, 5] + 1) % (VOCAB - 10) + 5
    change = (scores(model, other) - batched).abs().amax(-1)
    assert not change[[0, 2]].any() and (change[1, 5:] > FP32).all()
    assert (change[1, :5] > FP32).all() if kind == MASKED else not change[1, :5].any()


def backwards(value):
    """Reverse the order of tokens in tensors (B, T, ..), in lists and dictionaries too."""
    if isinstance(value, torch.Tensor):
        return value.flip(1)
    if isinstance(value, dict):
        return {key: backwards(one) for key, one in value.items()}
    return [backwards(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("kind", "name"), CHOICE)
def test_slots_see_each_token_alone(kind, name):
    """Slots treat each token alone, as incremental decoding needs: reversing the order of tokens changes nothing."""
    model, before, seen = awake(kind, 3, **fields(name)), {}, set()
    slots = [(address, slot) for stack in model.stacks().values() for address, slot in stack.slots()]
    for address, slot in slots:
        if address.count(".") == 3:  # the slot of a branch

            def keep(slot, given):
                before[slot] = copied(pass_state())

            def compare(slot, given, y, address=address):
                with running(backwards(before[slot])):
                    again = slot.forward(*map(backwards, given))
                assert torch.allclose(again.flip(1), y, atol=FP32), f"{address} looks along time"
                seen.add(slot)

            slot.register_forward_pre_hook(keep)
            slot.register_forward_hook(compare)
    with torch.no_grad():
        model(*inputs(kind))
    assert len(seen) >= len(model.stacks()) * 3 * 2


@pytest.mark.parametrize(("kind", "name"), CHOICE)
def test_saved_loaded_and_copied(kind, name, tmp_path):
    """A model of the core comes back from its file with config, weights and scores; so does a deep copy, as EMA's.

    Loading leaves the random state alone.
    """
    model, path, given = build(kind, VOCAB, **sizes(kind, 2), **fields(name)), tmp_path / "model.pt", inputs(kind)
    disturb(model).eval().set_num_updates(7)
    save(model, path)
    before = torch.get_rng_state()
    loaded = load(path)
    assert torch.equal(torch.get_rng_state(), before)
    assert type(loaded) is type(model) and not loaded.training and loaded.built_from == model.built_from
    for other in (loaded, copy.deepcopy(model)):
        assert list(other.state_dict()) == list(model.state_dict())
        assert all(map(torch.equal, other.state_dict().values(), model.state_dict().values()))
        assert torch.equal(scores(other, *given), scores(model, *given))


@pytest.mark.parametrize(("kind", "name"), CHOICE)
def test_every_parameter_learns_at_100_layers(kind, name):
    """Every parameter gets a finite gradient at 100 layers, which DDP needs; scores in bf16 are finite."""
    model = small(kind, 100, **fields(name)).train()
    loss_of(model).backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, parameter_name
            assert torch.isfinite(parameter.grad).all(), parameter_name
    assert torch.isfinite(scores(model.to(torch.bfloat16), *inputs(kind))).all()


@pytest.mark.parametrize(("kind", "name"), CHOICE)
def test_checkpointed_activations_give_the_same_gradients(kind, name):
    """Recomputation in groups of two of three layers gives the same gradients, and runs each layer once more."""
    models = [awake(kind, 3, **fields(name), dropout=0.2, attention_dropout=0.1, **more).train() for more in
              ({}, {"checkpoint_every": 2})]  # fmt: skip
    calls = [0, 0]
    for number, model in enumerate(models):

        def count(*_, number=number):
            calls[number] += 1

        for stack in model.stacks().values():
            for layer in stack.layers:
                layer.fc1.register_forward_hook(count)
        torch.manual_seed(3)
        loss_of(model).backward()
    layers = 3 * len(archs.STACKS[kind])
    assert calls == [layers, 2 * layers]
    for (parameter_name, p), q in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert not p.requires_grad or torch.equal(p.grad, q.grad), parameter_name


@pytest.mark.parametrize("kind", EVERY)
def test_dropout_acts_in_training_only(kind):
    for flag in ("dropout", "attention_dropout", "activation_dropout"):
        model, given = awake(kind, method="every_slot", **{flag: 0.3}).train(), inputs(kind)
        assert not torch.equal(scores(model, *given), scores(model, *given))
        model.eval()
        assert torch.equal(scores(model, *given), scores(model, *given))


@pytest.mark.parametrize("kind", EVERY)
def test_hidden_states_on_request_only(kind):
    model, given = awake(kind), inputs(kind)
    with torch.no_grad():
        assert not model(*given)[1]["inner_states"]
        states = model(*given, return_all_hiddens=True)[1]["inner_states"]
    assert [tuple(state.shape) for state in states] == [(given[-1].size(1), 3, 16)] * 3


def test_registering_twice_is_refused():
    with pytest.raises(ValueError, match="twice"):
        register("every_slot")(type("Other", (Method,), {}))
