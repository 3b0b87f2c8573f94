"""Tests of the project's tools on language models: divergence, checks, and refusals."""

from __future__ import annotations

import pytest
import torch

from deepnet_fairseq.cli import main
from deepnet_fairseq.core import archs

from ..support.diverging import Training
from ..support.lm_trainings import FLAGS, KINDS, make_text

STACK = {"causal": "decoder", "masked": "encoder"}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_divergence_is_found_in_its_layer(text, tmp_path, kind):
    training = Training(text, tmp_path, *KINDS[kind], common=FLAGS)
    with torch.no_grad():
        next(reversed(training.model.stacks()[STACK[kind]].layers)).fc1.bias.fill_(float("inf"))
    assert training.diverge() == f"diverged at update 1: loss not finite, first at {STACK[kind]}.2.ffn (forward)"


@pytest.mark.parametrize("kind", KINDS)
def test_check_speaks_of_the_one_stack(text, kind, capsys):
    main(["check", "--updates", "10", str(text), *FLAGS, *KINDS[kind]])
    printed = capsys.readouterr().out
    absent = ({"encoder", "decoder"} - {STACK[kind]}).pop()
    assert printed.splitlines()[0].startswith("2L deepnorm") and "verdict: stable" in printed
    assert f"grad {STACK[kind]}" in printed and absent not in printed and "nan" not in printed


def test_check_is_for_our_models(text):
    with pytest.raises(SystemExit) as ended:
        main(["check", str(text), "--task", "language_modeling", "--arch", "transformer_lm", *FLAGS])
    assert " and ".join(archs.STACKS) in ended.value.code and "\n" not in ended.value.code
