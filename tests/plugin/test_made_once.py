"""Tests that a thing is made once and handed on: the method, between the command line and the first update."""

import copy

import pytest

from deepnet_fairseq.core import build
from deepnet_fairseq.core.methods import Method
from deepnet_fairseq.plugin.opening import opening_line
from deepnet_fairseq.plugin.trainer import batches_by_update, build_trainer, make_update, parse_training_flags

from ..conftest import TRAIN_FLAGS


@pytest.fixture
def made(monkeypatch):
    """Provide a list of the methods that are made."""
    methods = []
    original = Method.__init__

    def counted(self, *args, **options):
        methods.append(self)
        original(self, *args, **options)

    monkeypatch.setattr(Method, "__init__", counted)
    return methods


@pytest.mark.parametrize("modifiers", [{}, {"pro_res": True, "qk_norm": True}])
def test_build_makes_one_method(made, modifiers):
    model = build("deepnet_transformer_tiny", encoder_layers=2, decoder_layers=2, **modifiers)
    assert len(made) == 1
    assert model.method.depth("decoder") == 2


def test_a_training_makes_two(made, data):
    """One checks the command line, the other fills the model's slots and is asked by everybody else."""
    flags = [str(data), *TRAIN_FLAGS, "--arch=deepnet_transformer_tiny", "--encoder-layers=2", "--decoder-layers=2"]
    args = parse_training_flags([*flags, "--no-save"])
    assert len(made) == 1

    trainer = build_trainer(args)
    opening_line(trainer)
    make_update(trainer, next(batches_by_update(trainer)))
    assert len(made) == 2
    assert trainer.get_model().method is made[1]


def test_a_model_with_modifiers_is_copied_with_its_method():
    model = build("deepnet_transformer_tiny", encoder_layers=2, decoder_layers=2, qk_norm=True)
    copied = copy.deepcopy(model)
    assert copied.method.name == model.method.name == "deepnorm"
