"""Tests of `deepnet score --paper perplexity`: perplexities from logs of fairseq.

fairseq-eval-lm prints the loss of a causal model, and fairseq-validate that of a masked one, in bits a token. The
perplexity is 2 to the power of the loss.
"""

import json
import re

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.scoring.scores import score

from ..support.errors import refused

STAMP = "2026-11-21 21:41:29 | INFO |"
CAUSAL = f"""{STAMP} fairseq_cli.eval_lm | {{'_name': None}}
{STAMP} fairseq_cli.eval_lm | Evaluated 12,131 tokens in 3.4s (3592.84 tokens/s)
{STAMP} fairseq_cli.eval_lm | Loss (base 2): 4.3301, Perplexity: 20.11
"""
MASKED = f"""{STAMP} fairseq_cli.validate | {{'_name': None}}
2026-11-21 21:49:22 | WARNING | fairseq.tasks.fairseq_task | 19 samples have invalid sizes and will be skipped
{STAMP} valid | {{"valid_loss": "1.727", "valid_ppl": "3.31", "valid_wps": "0"}}
"""


@pytest.fixture
def logs(tmp_path):
    """Provide a folder of logs: of a causal model on two sets, the second evaluated twice, and of a masked model."""
    of_later_evaluation = CAUSAL.replace("4.3301", "5.0")
    (tmp_path / "valid.txt").write_text(CAUSAL)
    (tmp_path / "test.txt").write_text(CAUSAL + of_later_evaluation)
    (tmp_path / "masked.txt").write_text(MASKED)
    return tmp_path


def test_perplexities_are_those_of_the_last_evaluation_in_each_log(logs, capsys):
    main(["score", str(logs), "--paper", "perplexity", "--json"])

    sets = json.loads(capsys.readouterr().out)["sets"]
    assert sets.keys() == {"valid", "test", "masked"}  # names of the logs
    assert sets["valid"] == {"perplexity": 20.11, "loss": 4.3301}
    assert sets["test"]["perplexity"] == 2**5.0
    assert sets["masked"]["perplexity"] == 3.31


def test_the_printed_table_has_perplexity_and_loss_of_each_set(logs, capsys):
    main(["score", str(logs), "--paper", "perplexity"])

    assert re.search(r"valid +20\.11 +4\.33\n", capsys.readouterr().out)


def test_a_folder_without_logs_is_refused(tmp_path):
    with refused(tmp_path):
        score(tmp_path, paper="perplexity")


def test_a_log_without_a_loss_is_refused(tmp_path):
    log = tmp_path / "valid.txt"
    log.write_text(MASKED.replace('"valid_loss"', "valid_loss"))  # the line is no JSON then

    with refused(log) as caught:
        score(log, paper="perplexity")

    assert "fairseq-validate" in caught.value.way_out


def test_a_loss_that_is_no_number_is_refused(tmp_path):
    log = tmp_path / "valid.txt"
    log.write_text(CAUSAL.replace("4.3301", "nan"))

    with refused(log) as caught:
        score(log, paper="perplexity")

    assert "nan" in caught.value.way_out
