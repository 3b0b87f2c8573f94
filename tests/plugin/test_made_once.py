"""Tests that a method is made once and handed on, between the command line and the first update."""

from __future__ import annotations

import copy

import pytest

from deepnet_fairseq.core import build
from deepnet_fairseq.core.methods import Method
from deepnet_fairseq.plugin.opening import opening_line
from deepnet_fairseq.plugin.trainer import batches_by_update, build_trainer, make_update, parse_training_flags

from ..conftest import TRAIN_FLAGS


@pytest.fixture
def methods_made(monkeypatch):
    """Provide a list of the methods that are made."""
    methods = []
    original = Method.__init__

    def note(self, *args, **options):
        methods.append(self)
        original(self, *args, **options)

    monkeypatch.setattr(Method, "__init__", note)
    return methods


@pytest.mark.parametrize("modifiers", [{}, {"pro_res": True, "qk_norm": True}])
def test_build_makes_one_method(methods_made, modifiers):
    model = build("deepnet_transformer_tiny", encoder_layers=2, decoder_layers=2, **modifiers)

    assert len(methods_made) == 1
    assert model.method.depth("decoder") == 2


def test_a_training_makes_two_methods(methods_made, data):
    """One checks the command line, the other fills the model's slots and is asked by everybody else."""
    arch = ("--arch=deepnet_transformer_tiny", "--encoder-layers=2", "--decoder-layers=2")
    args = parse_training_flags([str(data), *TRAIN_FLAGS, *arch, "--no-save"])
    assert len(methods_made) == 1

    trainer = build_trainer(args)
    opening_line(trainer)
    make_update(trainer, next(batches_by_update(trainer)))

    assert len(methods_made) == 2
    assert trainer.get_model().method is methods_made[1]


def test_a_model_with_modifiers_is_copied_with_its_method():
    model = build("deepnet_transformer_tiny", encoder_layers=2, decoder_layers=2, qk_norm=True)

    copied = copy.deepcopy(model)

    assert model.method.name == "deepnorm"
    assert copied.method.name == "deepnorm"
