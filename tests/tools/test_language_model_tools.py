"""Tests on language models of what finds divergence: the message of fairseq-train, and `deepnet check`."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from typing import NamedTuple

import pytest
import torch

from deepnet_fairseq.cli import main
from deepnet_fairseq.core import archs

from ..support.diverging import Training
from ..support.errors import refusal
from ..support.lm_trainings import FLAGS, KINDS, make_text

STACK = {"causal": "decoder", "masked": "encoder"}  # the only stack of a model
MISSING_STACK = {"causal": "encoder", "masked": "decoder"}


@pytest.fixture(scope="module")
def binarised_text(tmp_path_factory):
    """Provide a folder of binarised lines, in which words follow from each other."""
    return make_text(tmp_path_factory.mktemp("text"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_divergence_is_found_in_its_layer(binarised_text, tmp_path, kind):
    """The message names the first update, and the forward pass through the feed-forward branch of the second layer."""
    training = Training(binarised_text, tmp_path, *KINDS[kind], common=FLAGS)
    last_layer = training.model.stacks()[STACK[kind]].layers[-1]
    with torch.no_grad():
        last_layer.fc1.bias.fill_(float("inf"))

    line = training.diverge()

    assert "update 1:" in line
    assert f"{STACK[kind]}.2.ffn (forward)" in line


class Check(NamedTuple):
    """What `deepnet check` prints of ten updates of a model."""

    kind: str  # of the model, "causal" or "masked"
    printed: str


@pytest.fixture(scope="module", params=KINDS)
def checked(request, binarised_text) -> Check:
    with redirect_stdout(StringIO()) as printed:
        main(["check", "--updates", "10", str(binarised_text), *FLAGS, *KINDS[request.param]])
    return Check(request.param, printed.getvalue())


def test_check_shows_the_one_stack_of_a_language_model(checked):
    assert checked.printed.startswith("2L deepnorm")  # of two stacks it would be 2L-2L
    assert f"grad {STACK[checked.kind]}" in checked.printed
    assert MISSING_STACK[checked.kind] not in checked.printed


def test_check_has_all_numbers_of_a_language_model_and_a_verdict(checked):
    assert "nan" not in checked.printed
    assert "verdict: stable" in checked.printed


def test_check_names_the_models_that_it_is_for(binarised_text):
    """fairseq's transformer_lm is none of the models that `deepnet check` is for."""
    line = refusal("check", binarised_text, "--task", "language_modeling", "--arch", "transformer_lm", *FLAGS)

    assert "--arch transformer_lm: " in line
    for name in archs.STACKS:
        assert name in line
