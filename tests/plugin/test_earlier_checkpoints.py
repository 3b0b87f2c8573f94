"""Tests that checkpoints of an earlier version load, resume and translate as before; see golden/training.py."""

import json
import shutil

import pytest
import torch
from fairseq import checkpoint_utils

from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError

from ..golden.training import CHECKPOINTS, DATA, GOLDEN, KINDS, RESUMED, train, translate

EXPECTED = json.loads((GOLDEN / "expected.json").read_text())


def numbers(hypothesis: str) -> tuple[float, str]:
    score, tokens = hypothesis.split("\t")
    return float(score), tokens


@pytest.mark.parametrize("kind", EXPECTED)
def test_checkpoint_resumes_with_the_losses_of_then(kind, tmp_path):
    """A golden checkpoint resumes with the recorded losses of updates 5 to 8, to three decimals."""
    shutil.copytree(CHECKPOINTS / kind, tmp_path, dirs_exist_ok=True)
    assert train(kind, tmp_path, RESUMED) == pytest.approx(EXPECTED[kind]["losses"], abs=0.0021)


@pytest.mark.parametrize("kind", EXPECTED)
def test_checkpoint_translates_as_then(kind):
    wanted, actual = EXPECTED[kind]["translations"], translate(kind, CHECKPOINTS / kind)
    assert actual.keys() == wanted.keys()
    for number, hypothesis in wanted.items():
        (score, tokens), (now_score, now_tokens) = numbers(hypothesis), numbers(actual[number])
        assert now_tokens == tokens and now_score == pytest.approx(score, abs=1e-3)


@pytest.mark.parametrize("kind", EXPECTED)
def test_checkpoint_and_its_average_export(kind, tmp_path):
    """A golden checkpoint translates as recorded after averaging and export, EMA and language tags included."""
    mean, plain = tmp_path / "mean.pt", tmp_path / "checkpoint_last.pt"
    data = DATA / ("many" if kind == "multilingual" else "pair")
    for words in (
        ("average", CHECKPOINTS / kind / "checkpoint_last.pt", "--out", mean),
        ("export", mean, "--to", "transformer", "--out", plain),
        ("export", mean, "--to", "ctranslate2", "--out", tmp_path / "ct2", "--data", data, "--subwords", "none"),
    ):
        main([str(word) for word in words])
    assert torch.load(plain)["cfg"]["model"]["_name"] == "transformer" and (tmp_path / "ct2" / "model.bin").is_file()
    tokens = {number: numbers(hypothesis)[1] for number, hypothesis in translate(kind, tmp_path).items()}
    assert tokens == {number: numbers(wanted)[1] for number, wanted in EXPECTED[kind]["translations"].items()}


def test_a_checkpoint_in_shards_is_refused():
    """A checkpoint in shards is refused in one line that names the commit that gathers them."""
    with pytest.raises(UserError, match=r"checkpoint_last.pt: lies in shards, which commit 45b0f76 .* gathers"):
        checkpoint_utils.load_checkpoint_to_cpu(str(CHECKPOINTS / "fully_sharded" / "checkpoint_last.pt"))


def test_every_kind_has_its_checkpoint():
    assert sorted(KINDS) == sorted(path.name for path in CHECKPOINTS.iterdir())
