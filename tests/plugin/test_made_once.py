"""Tests that the Method object of a model is made once and handed on, from the command line to the first update."""

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
    """Provide the list of the Method objects made since the test began, in order."""
    methods = []
    original = Method.__init__

    def note_and_make(self, *args, **options):
        methods.append(self)
        original(self, *args, **options)

    monkeypatch.setattr(Method, "__init__", note_and_make)
    return methods


@pytest.mark.parametrize("modifiers", [{}, {"pro_res": True, "qk_norm": True}], ids=["plain", "with modifiers"])
def test_build_makes_one_method(methods_made, modifiers):
    model = build("deepnet_transformer_tiny", encoder_layers=2, decoder_layers=2, **modifiers)

    assert len(methods_made) == 1
    assert model.method.depth("decoder") == 2


ARCH = ("--arch=deepnet_transformer_tiny", "--encoder-layers=2", "--decoder-layers=2")


def test_parsing_the_flags_of_a_training_makes_one_method(methods_made, data):
    """The method checks its options on the command line."""
    parse_training_flags([str(data), *TRAIN_FLAGS, *ARCH, "--no-save"])

    assert len(methods_made) == 1


def test_a_trainer_makes_one_method_which_its_model_keeps(methods_made, data):
    """The model, the log's opening line and the first update ask the same object."""
    args = parse_training_flags([str(data), *TRAIN_FLAGS, *ARCH, "--no-save"])
    methods_made.clear()

    trainer = build_trainer(args)
    opening_line(trainer)
    make_update(trainer, next(batches_by_update(trainer)))

    assert len(methods_made) == 1
    assert trainer.get_model().method is methods_made[0]


def test_a_copied_model_with_modifiers_has_a_method_of_the_same_name():
    """A Modifier passes attributes on to the method inside; deepcopy asks for some before the copy has that method."""
    model = build("deepnet_transformer_tiny", encoder_layers=2, decoder_layers=2, qk_norm=True)

    copied = copy.deepcopy(model)

    assert model.method.name == "deepnorm"
    assert copied.method.name == "deepnorm"
