"""Logs and translations -> the quickstart's table."""

import json

import pytest

from deepnet_fairseq.analysis.comparison import compare
from deepnet_fairseq.analysis.logs import read_log
from deepnet_fairseq.analysis.scoring import bleu, hypotheses
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


def generated(tmp_path, sentences):
    path = tmp_path / "generated.txt"
    order = reversed(list(enumerate(sentences)))  # fairseq prints longest first
    path.write_text("".join(f"S-{n}\tx\nH-{n}\t-0.1\ty\nD-{n}\t-0.1\t{text}\n" for n, text in order))
    return path


def test_scores_in_the_order_of_the_test_set(tmp_path):
    sentences = ["lo cani eabria ta libri rubie .", "elo dona ta libri a nu cani .", "tas libris eabrian en ta cani ."]
    (tmp_path / "reference").write_text("\n".join(sentences) + "\n")
    path = generated(tmp_path, sentences)
    assert hypotheses(path) == sentences
    score, signature = bleu(path, tmp_path / "reference")
    assert score == pytest.approx(100)
    assert "tok:13a" in signature
    path = generated(tmp_path, sentences[1:] + sentences[:1])
    assert bleu(path, tmp_path / "reference")[0] < 50


def test_missing_translations(tmp_path):
    path = generated(tmp_path, ["a", "b"])
    path.write_text(path.read_text().replace("D-0", "X-0"))
    with pytest.raises(UserError, match="missing"):
        hypotheses(path)
    (tmp_path / "reference").write_text("a\nb\nc\n")
    with pytest.raises(UserError, match="2 translations for 3 lines"):
        bleu(generated(tmp_path, ["a", "b"]), tmp_path / "reference")


def test_table_and_picture(tmp_path):
    sentences = ["lo cani eabria ta libri rubie .", "elo dona ta libri a nu cani ."]
    (tmp_path / "reference").write_text("\n".join(sentences) + "\n")
    for name in ("deepnorm", "post_ln"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.log").write_text(line(25, 9.0, 10) + line(50, 5.0, 20))
        generated(tmp_path / name, sentences)
    runs = [tmp_path / "deepnorm", tmp_path / "post_ln"]
    table = compare(runs, tmp_path / "reference", tmp_path / "loss.png")
    rows = [row.split() for row in table.splitlines()]
    assert rows[2][:4] == ["deepnorm", "50", "7.00", "100.00"]
    assert rows[3][0] == "post_ln"
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_columns_align():
    assert render([["a", "number"], ["long name", "5"]]) == "a          number\n---------  ------\nlong name       5"
