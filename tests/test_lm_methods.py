"""What every registered method must keep in a language model; a new method file is tested here without a new test."""

import copy
from functools import lru_cache

import pytest
import torch

from deepnet_fairseq import archs
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.methods import METHODS

from .support.helpers import PAD, TOLERANCE, VOCAB
from .support.single_stacks import KINDS, awake, batch, loss_of, scores, small, stack_of
from .test_methods import every_slot, spelled, variants  # noqa: F401

FP32 = TOLERANCE[torch.float32]


@pytest.fixture(params=variants(), ids=spelled)
def fields(request, every_slot):  # noqa: F811
    """Config fields of one variant of a method."""
    name, options = request.param
    return {"method": name} | options


@pytest.fixture(params=[*sorted(METHODS), "every_slot"])
def method(request, every_slot):  # noqa: F811
    return request.param


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def assert_same_gradients(model, other):
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        assert not p.requires_grad or torch.equal(p.grad, q.grad), name


def test_loaded_equals_saved(kind, fields, tmp_path):
    model, other = awake(kind, **fields), small(kind, **fields)
    assert not torch.equal(scores(other, batch()), scores(model, batch()))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert torch.equal(scores(other, batch()), scores(model, batch()))


@pytest.mark.parametrize("layers", [6, 18, 100])
def test_every_parameter_learns(kind, method, layers):
    """No unused parameter (DDP needs that), no NaN, at depth; the masked model's head too. Nor any NaN in bf16."""
    model = small(kind, layers, method=method).train()
    loss_of(model).backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
    assert torch.isfinite(scores(model.to(torch.bfloat16), batch())).all()


def test_checkpointed_activations_give_the_same_gradients(kind, fields):
    """By twos of three layers, so that the last group is smaller."""
    models = [awake(kind, 3, **fields, dropout=0.2, attention_dropout=0.1, **more).train() for more in
              ({}, {"checkpoint_every": 2})]  # fmt: skip
    calls = [0, 0]
    for number, model in enumerate(models):

        def count(*_, number=number):
            calls[number] += 1

        for layer in model.stacks()[stack_of(kind)].layers:
            layer.fc1.register_forward_hook(count)
        torch.manual_seed(3)
        loss_of(model).backward()
    assert calls == [3, 6]  # recomputed once in the backward pass
    assert_same_gradients(*models)


def test_batch_mates_and_padding_do_not_matter(kind, fields):
    """A row alone is that row in a batch, with padding on its right and on its left."""
    model, tokens = awake(kind, 3, **fields), batch()
    row = tokens[:1, :-2]
    alone = scores(model, row)
    left = torch.cat([torch.full((1, 2), PAD), row], 1)
    mates = torch.cat([left, tokens[1:]])
    assert torch.allclose(scores(model, tokens)[:1, :-2], alone, atol=FP32)
    assert torch.allclose(scores(model, left)[:, 2:], alone, atol=FP32)
    assert torch.allclose(scores(model, mates)[:1, 2:], alone, atol=FP32)
    assert torch.isfinite(scores(model, mates)).all()


def test_who_sees_what_follows(kind, fields):
    """Another token at place 5: no score of a causal model before that place changes, all of a masked model's do."""
    model, tokens = awake(kind, **fields), batch()
    other = tokens.clone()
    other[1, 5] = (tokens[1, 5] + 1) % (VOCAB - 10) + 5
    change = (scores(model, other) - scores(model, tokens)).abs().amax(-1)
    assert not change[[0, 2]].any()
    assert (change[1, 5:] > FP32).all()
    if kind == archs.LM:
        assert not change[1, :5].any()
    else:
        assert (change[1, :5] > FP32).all()


@pytest.mark.parametrize("flag", ["dropout", "attention_dropout", "activation_dropout"])
def test_dropout_acts_in_training_only(kind, method, flag):
    model = awake(kind, method=method, **{flag: 0.3}).train()
    assert not torch.equal(scores(model, batch()), scores(model, batch()))
    model.eval()
    assert torch.equal(scores(model, batch()), scores(model, batch()))


def test_training_lowers_the_loss(kind, method):
    model = small(kind, method=method, dropout=0.1, activation_dropout=0.1).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3


def test_norms_stand_where_the_method_says(kind, method):
    """One LayerNorm a branch, one more a stack for pre-norm (those in slots belong to the method)."""
    stack = small(kind, 2, method=method).stacks()[stack_of(kind)]
    norms = [name for name, _ in stack.named_modules() if name.endswith("layer_norm") and "inner" not in name]
    assert len(norms) == {"post": 4, "pre": 5, "none": 0}[METHODS[method].norm]


def test_no_layer_attends_elsewhere(kind, method):
    model = small(kind, 2, method=method)
    assert set(model.stacks()) == {stack_of(kind)}
    assert all(list(layer.sites) == ["self_attn", "ffn"] for layer in model.stacks()[stack_of(kind)].layers)
    assert not [name for name in model.state_dict() if "encoder_attn" in name]


def test_model_can_be_copied(kind, fields):
    """EMA and sharded trainers deep-copy the model."""
    model = awake(kind, **fields)
    assert torch.equal(scores(copy.deepcopy(model), batch()), scores(model, batch()))


def test_hidden_states_on_request(kind, method):
    model = awake(kind, method=method)
    with torch.no_grad():
        assert not model(batch())[1]["inner_states"]
        states = model(batch(), return_all_hiddens=True)[1]["inner_states"]
    assert [tuple(state.shape) for state in states] == [(9, 3, 16)] * 3


moved, fresh = lru_cache(awake), lru_cache(small)


@pytest.mark.parametrize("saved", sorted(METHODS))
def test_checkpoints_of_other_methods(kind, saved):
    """What loads computes the same scores (methods that differ at the start only); all else is refused in one line."""
    source = moved(kind, method=saved)
    for built in METHODS:
        model = fresh(kind, method=built)
        try:
            model.load_state_dict(source.state_dict())
        except UserError as error:
            assert saved != built and "--method" in str(error) and "\n" not in str(error)
        else:
            assert torch.equal(scores(model, batch()), scores(source, batch())), built
