"""Training logs, and tables for the terminal."""

import json

import pytest

from deepnet_fairseq.analysis.logs import read_log
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.text_table import render


def line(update, loss, wall):
    row = {"loss": str(loss), "num_updates": str(update), "wall": str(wall)}
    return f"2026-01-01 00:00:00 | INFO | train_inner | {json.dumps(row)}\n"


def test_a_resumed_run_is_one_curve(tmp_path):
    """The first attempt dies after update 75; the second resumes at 50 and repeats 75."""
    path = tmp_path / "train.log"
    first = line(25, 9.0, 10) + line(50, 8.0, 20) + line(75, 7.5, 30)
    path.write_text("noise\n" + first + line(75, 7.0, 12) + line(100, 6.0, 22))
    log = read_log(path)
    assert (log.updates, log.losses) == ([25, 50, 75, 100], [9.0, 8.0, 7.0, 6.0])
    assert log.seconds == 52
    assert log.final_loss(last=2) == 6.5
    assert not log.diverged


def test_divergence_is_read_from_the_log(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(line(25, 9.0, 10) + "FloatingPointError: gradients are Nan/Inf\n")
    assert read_log(path).diverged


@pytest.mark.parametrize("text", [None, "nothing here\n"])
def test_no_log(text, tmp_path):
    if text is not None:
        (tmp_path / "train.log").write_text(text)
    with pytest.raises(UserError, match=r"train\.log"):
        read_log(tmp_path / "train.log")


def test_columns_align():
    assert render([["a", "number"], ["long name", "5"]]) == "a          number\n---------  ------\nlong name       5"
