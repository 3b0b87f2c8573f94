"""From plain text to answers by the programs themselves: the script, fairseq-train, fairseq-eval-lm, score-choices."""

from __future__ import annotations

import json
import re

import pytest

from .support.helpers import USER_DIR, run
from .support.plain_text import VOCAB, a_texts  # noqa: F401
from .test_scripts import bash

TRAIN = (
    "--user-dir", USER_DIR, "--cpu", "--task", "language_modeling", "--arch", "deepnet_lm_tiny_6",
    "--sample-break-mode", "eos", "--tokens-per-sample", "256", "--max-tokens", "2000", "--optimizer", "adam",
    "--lr", "5e-3", "--max-update", "10", "--num-workers", "0", "--no-epoch-checkpoints", "--disable-validation",
)  # fmt: skip


@pytest.mark.smoke
def test_from_text_to_answers(texts, tmp_path):
    """Two sentences as choices behind nothing have the log-likelihood that fairseq-eval-lm gives its words."""
    data, checkpoint = tmp_path / "bin", tmp_path / "save" / "checkpoint_last.pt"
    done = bash("scripts/prepare_lm_text.sh", *texts, data, "--vocab", VOCAB, "--workers", "2")
    assert f"wrote {data}" in done.stdout
    run("fairseq-train", data, *TRAIN, "--save-dir", tmp_path / "save")
    given = ("--user-dir", USER_DIR, "--cpu", "--path", checkpoint, "--gen-subset", "valid", "--output-word-probs")
    said = run("fairseq-eval-lm", data, *given, "--sample-break-mode", "eos").stdout
    pieces = {}
    for number, line in re.findall(r"INFO \| fairseq_cli.eval_lm \| (\d+) (.*)", said):
        pieces[int(number)] = [float(value) for value in re.findall(r"\[(-?[\d.]+)\]", line)]
    lines = texts[1].read_text(encoding="utf-8").split("\n")
    first, second = lines[:2]
    item = {"context": "", "choices": [first, second], "answer": 0}
    (tmp_path / "items.jsonl").write_text(json.dumps(item))
    out = tmp_path / "out.jsonl"
    said = run("deepnet", "score-choices", tmp_path / "items.jsonl", "--path", checkpoint, "--results", out).stdout
    assert "1 item;" in said and "chance 50.0%" in said
    scored = json.loads(out.read_text())["choices"]
    for choice, printed in zip(scored, (pieces[0], pieces[1]), strict=True):
        assert choice["pieces"] == len(printed) - 1  # it scores </s> as well
        assert choice["log_p"] == pytest.approx(sum(printed[:-1]), abs=0.005 * len(printed))  # of two decimals each
