"""deepnet score --paper perplexity: what fairseq-eval-lm and fairseq-validate logged."""

from __future__ import annotations

import json

import pytest

from deepnet_fairseq.analysis.scoring import score
from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError

STAMP = "2026-11-21 21:41:29 | INFO |"
CAUSAL = f"""{STAMP} fairseq_cli.eval_lm | {{'_name': None}}
{STAMP} fairseq_cli.eval_lm | Evaluated 12,131 tokens in 3.4s (3592.84 tokens/s)
{STAMP} fairseq_cli.eval_lm | Loss (base 2): 4.3301, Perplexity: 20.11
"""
MASKED = f"""{STAMP} fairseq_cli.validate | {{'_name': None}}
2026-11-21 21:49:22 | WARNING | fairseq.tasks.fairseq_task | 19 samples have invalid sizes and will be skipped
{STAMP} valid | {{"valid_loss": "1.727", "valid_ppl": "3.31", "valid_wps": "0"}}
"""


def test_published_perplexities(tmp_path):
    """fairseq's own, to its two decimals."""
    (tmp_path / "causal.txt").write_text(CAUSAL)
    assert score(tmp_path / "causal.txt", paper="perplexity") == {
        "kind": "perplexity", "perplexity": 20.11, "loss": 4.3301, "tokens": 12131, "seconds": 3.4,
    }  # fmt: skip
    (tmp_path / "masked.txt").write_text(MASKED)
    found = score(tmp_path / "masked.txt", paper="perplexity")
    assert (found["perplexity"], found["loss"]) == (3.31, 1.727)


def test_a_folder_of_subsets(tmp_path, capsys):
    folder = tmp_path / "evaluated"
    folder.mkdir()
    (folder / "valid.txt").write_text(CAUSAL)
    (folder / "test.txt").write_text(CAUSAL.replace("4.3301", "5.0"))
    (folder / "other.txt.part").write_text("begun")
    main(["score", str(folder), "--paper", "perplexity", "--out", str(tmp_path / "score.json")])
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "score.json").read_text()) and found["kind"] == "perplexity"
    assert {name: one["perplexity"] for name, one in found["sets"].items()} == {"valid": 20.11, "test": 32.0}


def test_the_last_evaluation_counts(tmp_path):
    (tmp_path / "log").write_text(CAUSAL + CAUSAL.replace("4.3301", "3.0").replace("12,131", "7"))
    found = score(tmp_path / "log", paper="perplexity")
    assert (found["perplexity"], found["tokens"]) == (8.0, 7)


BROKEN = {
    "empty": "",
    "no loss": f"{STAMP} fairseq_cli.eval_lm | Evaluated 12 tokens in 3.4s\n",
    "nan": CAUSAL.replace("4.3301", "nan"),
    "beyond floats": CAUSAL.replace("4.3301", "2000.0"),
    "words": CAUSAL.replace("4.3301", "low"),
    "no JSON": MASKED.replace('"valid_ppl"', "valid_ppl"),
    "of another subset": MASKED.replace("valid_loss", "test_loss"),
    "a list": f'{STAMP} valid | {{"valid_loss": [1]}}\n',
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_logs(case, tmp_path):
    path = tmp_path / "valid.txt"
    path.write_text(BROKEN[case])
    for place in (path, tmp_path):
        with pytest.raises(UserError, match="valid.txt: (has no loss of|a loss of .* has no perplexity)"):
            score(place, paper="perplexity")


def test_mistakes(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin").write_bytes(CAUSAL.encode() + b"\xe9")
    (tmp_path / "log").write_text(CAUSAL)
    for name, message in (
        ("empty", "empty: holds no log of an evaluation, SUBSET.txt"),
        ("absent", "absent: no such file"),
        ("latin", "latin: is no UTF-8 text"),
    ):
        with pytest.raises(UserError, match=message):
            score(tmp_path / name, paper="perplexity")
    for more in ({"data": tmp_path}, {"tokenize": "13a"}, {"partial": True}):
        with pytest.raises(UserError, match="--paper perplexity: is of logs; drop"):
            score(tmp_path / "log", paper="perplexity", **more)
