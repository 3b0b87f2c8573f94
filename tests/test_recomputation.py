"""Activation checkpointing by groups of layers: the same gradients to the last bit, in less memory, by every route."""

import contextlib

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

from deepnet_fairseq.building import blank_task
from deepnet_fairseq.config import namespace
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.methods import METHODS
from deepnet_fairseq.probes import PROBES
from deepnet_fairseq.recomputation import Recomputation

from . import every_slot
from .helpers import PAD, VOCAB, batch, run, small
from .observing import close, loss_of, net_input, observe

DROPOUT = {"dropout": 0.2, "attention_dropout": 0.1, "activation_dropout": 0.1}
HOW = {
    "each": {"checkpoint_activations": True},
    "two": {"checkpoint_every": 2},
    "five": {"checkpoint_every": 5},  # the last group is smaller
    "all": {"checkpoint_every": 99},
    "offloaded": {"checkpoint_every": 2, "offload_activations": True},
}


def gradients(model, seed=3):
    """Of one training step, and the random state it leaves."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    loss_of(model, net_input()).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}, torch.get_rng_state()


def assert_equal(found, expected):
    (found, random), (expected, other) = found, expected
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.equal(found[name], gradient), name
    assert torch.equal(random, other)


def pair(how, layers=7, **fields):
    """A model that keeps its activations and one that does not, equal weights, in training with dropout."""
    models = [small(layers, **(DROPOUT | fields | more)) for more in ({}, HOW[how])]
    return [model.train() for model in models]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_same_gradients(method, how):
    plain, recomputed = pair(how, method=method)
    assert_equal(gradients(recomputed), gradients(plain))


@pytest.mark.parametrize("fields", [{"dlcl_norm": "post"}, {"dlcl_window": 2}, {"dlcl_normalize_embedding": True}])
def test_same_gradients_through_a_history(fields):
    plain, recomputed = pair("two", method="dlcl", **fields)
    assert_equal(gradients(recomputed), gradients(plain))


def test_same_gradients_in_every_slot(monkeypatch):
    monkeypatch.setitem(METHODS, "every_slot", every_slot.EverySlot)
    monkeypatch.setattr(every_slot.EverySlot, "name", "every_slot", raising=False)
    plain, recomputed = pair("two", method="every_slot")
    assert_equal(gradients(recomputed), gradients(plain))
