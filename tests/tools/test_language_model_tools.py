"""Tests of the project's tools on language models: divergence, checks, and refusals."""

from __future__ import annotations

import pytest
import torch

from deepnet_fairseq.cli import main
from deepnet_fairseq.core import archs

from ..support.diverging import Training
from ..support.errors import refusal
from ..support.lm_trainings import FLAGS, KINDS, make_text

STACK = {"causal": "decoder", "masked": "encoder"}
OTHER = {"causal": "encoder", "masked": "decoder"}


@pytest.fixture(scope="module")
def binarised_text(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_divergence_is_found_in_its_layer(binarised_text, tmp_path, kind):
    training = Training(binarised_text, tmp_path, *KINDS[kind], common=FLAGS)
    last_layer = training.model.stacks()[STACK[kind]].layers[-1]
    with torch.no_grad():
        last_layer.fc1.bias.fill_(float("inf"))

    line = training.diverge()

    assert "update 1: loss" in line
    assert line.endswith(f"{STACK[kind]}.2.ffn (forward)")


@pytest.fixture(params=KINDS)
def kind_and_report(request, binarised_text, capsys):
    """Provide a kind of model and what `deepnet check` prints of ten updates."""
    main(["check", "--updates", "10", str(binarised_text), *FLAGS, *KINDS[request.param]])
    return request.param, capsys.readouterr().out


def test_check_shows_the_one_stack_of_a_language_model(kind_and_report):
    kind, printed = kind_and_report

    assert printed.splitlines()[0].startswith("2L deepnorm")
    assert "verdict: stable" in printed
    assert f"grad {STACK[kind]}" in printed
    assert OTHER[kind] not in printed
    assert "nan" not in printed


def test_check_names_the_models_that_it_is_for(binarised_text):
    line = refusal("check", binarised_text, "--task", "language_modeling", "--arch", "transformer_lm", *FLAGS)

    assert "--arch transformer_lm: " in line
    for name in archs.STACKS:
        assert name in line
