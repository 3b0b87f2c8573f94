"""Tests that checkpoints of an earlier version load, resume and translate as before.

golden/checkpoints holds a checkpoint of four updates for each kind of training in golden/training.py. For each kind but
fully_sharded, which is refused, golden/expected.json holds the losses after a resume and the translations at that time.
"""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq.cli import main

from ..golden.training import CHECKPOINTS, DATA, GOLDEN, KINDS, RESUMED, train, translate
from ..support.errors import refused
from ..support.marks import smoke_but

EXPECTED = json.loads((GOLDEN / "expected.json").read_text())  # kind -> "losses", "translations"
GATHERS_SHARDS = "45b0f76"  # a commit that still reads checkpoints in shards


def score_of(hypothesis: str) -> float:
    """Return the score of a hypothesis, which is "SCORE<tab>TOKENS"."""
    score, _tokens = hypothesis.split("\t")
    return float(score)


def tokens_of(hypothesis: str) -> str:
    _score, tokens = hypothesis.split("\t")
    return tokens


@pytest.mark.parametrize("kind", smoke_but(("fp16", "admin"), EXPECTED))
def test_an_earlier_checkpoint_resumes_with_the_recorded_losses(kind, tmp_path):
    """A golden checkpoint resumes with the recorded losses of updates 5 to 8, which are logged to three decimals."""
    shutil.copytree(CHECKPOINTS / kind, tmp_path, dirs_exist_ok=True)

    losses = train(kind, tmp_path, updates=RESUMED)

    assert losses == pytest.approx(EXPECTED[kind]["losses"], abs=0.0021)


@pytest.mark.parametrize("kind", EXPECTED)
def test_an_earlier_checkpoint_translates_as_recorded(kind):
    expected = EXPECTED[kind]["translations"]

    translations = translate(kind, CHECKPOINTS / kind)

    assert translations.keys() == expected.keys()
    for sentence, hypothesis in expected.items():
        assert tokens_of(translations[sentence]) == tokens_of(hypothesis)
        assert score_of(translations[sentence]) == pytest.approx(score_of(hypothesis), abs=1e-3)


@pytest.mark.parametrize("kind", smoke_but(("ema", "multilingual"), EXPECTED))
def test_an_earlier_checkpoint_translates_as_recorded_after_export(kind, tmp_path):
    """The export is a checkpoint of fairseq's own transformer; EMA and language tags are among the kinds."""
    mean = tmp_path / "mean.pt"
    exported = tmp_path / "checkpoint_last.pt"
    main(["average", str(CHECKPOINTS / kind / "checkpoint_last.pt"), "--out", str(mean)])
    main(["export", str(mean), "--to", "transformer", "--out", str(exported)])
    assert torch.load(exported)["cfg"]["model"]["_name"] == "transformer"

    translations = translate(kind, tmp_path)

    expected = EXPECTED[kind]["translations"]
    assert translations.keys() == expected.keys()
    for sentence, hypothesis in expected.items():
        assert tokens_of(translations[sentence]) == tokens_of(hypothesis)


@pytest.mark.parametrize("kind", EXPECTED)
def test_an_earlier_checkpoint_exports_to_ctranslate2(kind, tmp_path):
    mean = tmp_path / "mean.pt"
    main(["average", str(CHECKPOINTS / kind / "checkpoint_last.pt"), "--out", str(mean)])
    data = DATA / ("many" if kind == "multilingual" else "pair")
    out = tmp_path / "ct2"

    main(["export", str(mean), "--to", "ctranslate2", "--out", str(out), "--data", str(data), "--subwords", "none"])

    assert (out / "model.bin").is_file()


def test_a_checkpoint_in_shards_is_refused_with_the_commit_that_gathers_them():
    path = CHECKPOINTS / "fully_sharded" / "checkpoint_last.pt"

    with refused(path) as caught:
        checkpoint_utils.load_checkpoint_to_cpu(str(path))

    assert GATHERS_SHARDS in caught.value.way_out


def test_every_kind_of_training_has_its_golden_checkpoint():
    assert sorted(KINDS) == sorted(path.name for path in CHECKPOINTS.iterdir())
