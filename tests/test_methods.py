"""What every registered method must keep; a new method file is tested here without a new test."""

import copy

import pytest
import torch
from torch import nn

from deepnet_fairseq.methods import METHODS, Method, register

from .support.every_slot import EverySlot
from .support.helpers import PAD, TOLERANCE, batch, logits, small

FP32 = TOLERANCE[torch.float32]


@pytest.fixture
def every_slot():
    """Registered on the fly."""
    register("every_slot")(EverySlot)
    yield "every_slot"
    del METHODS["every_slot"]


def variants():
    """Every method, and every method with each of its options at each value a flag can give."""
    for name, cls in sorted(METHODS.items()):
        yield name, {}
        for key, option in cls.options.items():
            others = option.choices or ((True,) if option.default is False else ())
            for value in others:
                if value != option.default:
                    yield name, {f"{name}_{key}": value}
    yield "every_slot", {}


def spelled(variant):
    name, options = variant
    return "-".join([name, *(f"{key.removeprefix(name + '_')}={value}" for key, value in options.items())])


@pytest.fixture(params=variants(), ids=spelled)
def fields(request, every_slot):
    """Config fields of one variant."""
    name, options = request.param
    return {"method": name} | options


@pytest.fixture(params=[*sorted(METHODS), "every_slot"])
def method(request, every_slot):
    return request.param


def awake(layers=2, **fields):
    """A model past its start: methods begin with branches at 0 or factors at 1, which would hide mistakes."""
    model = small(layers, **fields)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        for embedding in (model.encoder.embed_tokens, model.decoder.embed_tokens):
            embedding.weight[PAD] = 0
    return model


def loss_of(model):
    src, prev = batch()
    scores = model(src, None, prev)[0]
    return nn.functional.cross_entropy(scores.flatten(0, 1), prev.flatten(), ignore_index=PAD)


def incremental(model, src, prev):
    """Scores of one-token-at-a-time decoding, (B, T, V)."""
    with torch.no_grad():
        memory = model.encoder(src)
        state = {}
        steps = [model.decoder(prev[:, : t + 1], memory, incremental_state=state)[0] for t in range(prev.size(1))]
    return torch.cat(steps, 1)


def test_incremental_equals_full(fields):
    model = awake(3, **fields)
    src, prev = batch()
    prev = prev[1:]  # incremental decoding starts from rows without padding
    assert torch.allclose(incremental(model, src[1:], prev), logits(model, src[1:], prev), atol=FP32)


def test_incremental_with_reordered_rows(fields):
    """Steps, a reorder that drops and repeats rows, more steps = full decoding of the reordered rows."""
    model = awake(2, **fields)
    src, prev = batch()
    src, prev, order = src[1:], prev[1:], torch.tensor([1, 1, 0])
    with torch.no_grad():
        memory, state = model.encoder(src), {}
        for t in range(3):
            model.decoder(prev[:, : t + 1], memory, incremental_state=state)
        model.decoder.reorder_incremental_state_scripting(state, order)
        memory = model.encoder.reorder_encoder_out(memory, order)
        last = model.decoder(prev[order][:, :4], memory, incremental_state=state)[0]
    assert torch.allclose(last[:, -1], logits(model, src[order], prev[order][:, :4])[:, -1], atol=FP32)


def test_loaded_equals_saved(fields, tmp_path):
    model = awake(2, **fields)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    torch.manual_seed(7)
    other = awake(2, **fields)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert torch.equal(logits(other.eval(), *batch()), logits(model, *batch()))


@pytest.mark.parametrize("layers", [6, 18, 100])
def test_every_parameter_learns(method, layers):
    """No unused parameter (DDP needs that), no NaN, at depth."""
    model = small(layers, method=method).train()
    loss_of(model).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name


def test_checkpointed_activations_give_the_same_gradients(fields):
    plain = awake(2, **fields, dropout=0.2).train()
    recomputed = awake(2, **fields, dropout=0.2, checkpoint_activations=True).train()
    calls = {plain: 0, recomputed: 0}
    for model in calls:

        def count(*_, model=model):
            calls[model] += 1

        for layer in [*model.encoder.layers, *model.decoder.layers]:
            layer.fc1.register_forward_hook(count)
        torch.manual_seed(3)
        loss_of(model).backward()
    assert list(calls.values()) == [4, 8]  # recomputed once in the backward pass
    for (name, p), q in zip(plain.named_parameters(), recomputed.parameters(), strict=True):
        assert not p.requires_grad or torch.equal(p.grad, q.grad), name


def test_batch_mates_and_padding_do_not_matter(fields):
    model = awake(3, **fields)
    src, prev = batch()
    alone_src, alone_prev = src[1:2, 4:], prev[1:2]
    right = torch.cat([alone_src, torch.full((1, 4), PAD)], 1)
    expected = logits(model, alone_src, alone_prev)
    assert torch.allclose(logits(model, src, prev)[1:2], expected, atol=FP32)
    assert torch.allclose(logits(model, right, alone_prev), expected, atol=FP32)


def test_left_padded_target(fields):
    """--left-pad-target: the scores of a target do not depend on padding before it."""
    model = awake(2, **fields)
    src, prev = batch()
    padded = torch.cat([torch.full((3, 2), PAD), prev], 1)
    difference = logits(model, src[1:], padded[1:])[:, 2:] - logits(model, src[1:], prev[1:])
    assert difference.abs().max() <= FP32


@pytest.mark.parametrize("flag", ["dropout", "attention_dropout", "activation_dropout"])
def test_dropout_acts_in_training_only(fields, flag):
    model = awake(2, **fields, **{flag: 0.3}).train()
    assert not torch.equal(logits(model, *batch()), logits(model, *batch()))
    model.eval()
    assert torch.equal(logits(model, *batch()), logits(model, *batch()))


def test_training_lowers_the_loss(fields):
    """A few optimiser steps on one batch lower its loss."""
    model = small(2, **fields, dropout=0.1, attention_dropout=0.1, activation_dropout=0.1).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3


def test_half_precision_stays_finite(method):
    model = small(100, method=method).to(torch.bfloat16)
    assert torch.isfinite(logits(model, *batch())).all()


def test_norms_stand_where_the_method_says(method):
    """One LayerNorm a branch, one more a stack for pre-norm (those in slots belong to the method)."""
    model = small(2, method=method)
    place = METHODS[method].norm
    norms = [name for name, _ in model.named_modules() if name.endswith("layer_norm") and "inner" not in name]
    assert len(norms) == {"post": 10, "pre": 12, "none": 0}[place]


def test_registering_twice_is_refused(every_slot):
    with pytest.raises(ValueError, match="twice"):
        register("every_slot")(type("Other", (Method,), {}))


def test_hidden_states_on_request_only(fields):
    model = awake(2, **fields)
    src, prev = batch()
    with torch.no_grad():
        assert model(src, None, prev)[1]["inner_states"] == []
        states = model(src, None, prev, return_all_hiddens=True)[1]["inner_states"]
    assert [tuple(s.shape) for s in states] == [(prev.size(1), 3, 16)] * 3


def test_model_can_be_copied(fields):
    """EMA and sharded trainers deep-copy the model."""
    model = awake(2, **fields)
    assert torch.equal(logits(copy.deepcopy(model), *batch()), logits(model, *batch()))


def test_tied_embeddings_are_one_parameter():
    model = small(1, share_all_embeddings=True)
    assert model.encoder.embed_tokens.weight is model.decoder.output_projection.weight
