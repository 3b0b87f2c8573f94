"""What a report says of the runs behind its numbers."""

from __future__ import annotations

import re

import pytest

from deepnet_fairseq.analysis.report import table
from deepnet_fairseq.analysis.report.tables import TABLES
from deepnet_fairseq.analysis.report.wall_time import training_hours

from .support.helpers import ROOT
from .support.reported import ENVIRONMENT, as_json, grid, log, printed, run, score
from .support.translated import noisy, sentences, write_corpus, write_generated

PAGE = (ROOT / "docs" / "reports.md").read_text()


def test_seeds_of_which_some_diverged(tmp_path, capsys):
    for seed, bleu in enumerate((27.0, 28.0), start=1):
        run(tmp_path, "table1", f"s{seed}", seed=seed, bleu=bleu)
    for seed in (3, 4):
        run(tmp_path, "table1", f"s{seed}", seed=seed, diverged="diverged at update 300")
    (row,) = grid(printed(capsys, tmp_path, "--table", "1"), "Beside the paper")
    assert row["BLEU"] == "27.50 ± 0.71, n=2, diverged at update 300, n=2" and row["runs"] == "4"


def test_every_environment_has_a_footnote(tmp_path, capsys):
    run(tmp_path, "table1", "a", "admin", bleu=28.0)
    run(tmp_path, "table1", "b", "deepnorm", bleu=28.0, environment=ENVIRONMENT | {"commit": "fed", "modified": True})
    run(tmp_path, "table1", "c", "deepnorm", seed=2, bleu=28.0, environment=None)
    cpu = {"hardware": "CPU, 2 cores: X", "gpus": 0, "started": "later"}
    run(tmp_path, "table1", "d", "pre_ln", bleu=28.0, environment=ENVIRONMENT | cpu)
    other_day = ENVIRONMENT | {"started": "another day", "gpus": 4}
    run(tmp_path, "table1", "e", "pre_ln", 50, bleu=28.0, environment=other_day)
    text = printed(capsys, tmp_path, "--table", "1")
    rows = {row["method"]: row for row in grid(text, "Overview")}
    assert rows["Admin"]["18L-18L"] == "28.00<sup>a</sup> (28.8)"
    assert rows["DeepNorm"]["18L-18L"] == "28.00 ± 0.00, n=2<sup>c, d</sup> (28.8)"
    assert rows["Pre-LN"]["50L-50L"] == "28.00<sup>a</sup> (28.0)"  # of a: neither day nor number of GPUs counts
    assert "- <sup>c</sup> commit fed (modified), deepnet\\_fairseq 0.1" in text
    assert "- <sup>d</sup> environment not recorded\n" in text
    assert re.search(r"- <sup>b</sup> commit abc1234, .*; CPU, 2 cores: X$", text, re.MULTILINE)
    assert "**Warning:** trained from a modified working tree, so the commit does not tell all: b\n" in text
    costs = {row["run"]: row["cost"] for row in grid(text, "Runs")}
    assert costs == {"a": "24 GPU-hours", "b": "24 GPU-hours", "c": "–", "d": "3.00 CPU-hours", "e": "12 GPU-hours"}


def test_miniatures_are_not_compared(tmp_path, capsys):
    run(tmp_path, "table1", "a", bleu=28.0, smoke=True, batch_tokens=800, paper_batch_tokens=524288)
    text = printed(capsys, tmp_path, "--table", "1")
    assert "> **Miniature on generated data: numbers say nothing about the paper's.**" in text
    assert "difference" not in text and "an update has" not in text
    report = as_json(capsys, tmp_path)
    assert report["miniature"] and all(r["cells"]["bleu"]["difference"] is None for r in report["results"])
    for form in ("tex", "html"):
        assert "Miniature on generated data" in printed(capsys, tmp_path, "--table", "1", "--format", form)


def test_warnings(tmp_path, capsys):
    run(tmp_path, "table1", "a", bleu=28.0, batch_tokens=4096, paper_batch_tokens=524288)
    run(tmp_path, "table1", "b", score=score(28.0, kind="sacrebleu"))
    run(tmp_path, "table1", "c", "admin", bleu=28.0, smoke=True, batch_tokens=1, paper_batch_tokens=524288)
    run(tmp_path, "table1", "d", "dlcl", bleu=28.0, corpus="of DATA", paper_corpus="wmt17_en_de")
    assert as_json(capsys, tmp_path)["warnings"] == [
        "same row and same seed, yet counted as several: a, b",
        "the published numbers are tokenised BLEU, these are not: b (sacrebleu)",
        "trained and tested on the corpus of DATA, the paper's is wmt17_en_de: d",
        "an update has 4096 tokens, the paper's 524288: a",
        "miniatures and runs in full stand in one table",
    ]


def test_wall_time_is_that_of_the_attempts(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(
        "2026-11-21 08:00:00 | INFO | fairseq.tasks.text_to_speech | Please install tensorboardX\n"
        + log(("09:00:00", "10:00:00"))
        + "Traceback (most recent call last):\n"
        + "2026-11-21 14:00:00 | INFO | fairseq.distributed.utils | distributed init (rank 0): tcp://localhost:1\n"
        + log(("14:10:00", "16:40:00"))
    )
    assert training_hours(path) == pytest.approx(3.5)
    path.write_text("2026-11-21 09:00:00 | INFO | fairseq_cli.train | Namespace(arch='x')\n")
    assert training_hours(path) == 0
    path.write_text("now | INFO | train_inner | {}\n")
    assert training_hours(path) is None and training_hours(tmp_path / "none") is None


def test_parameters_from_the_log(tmp_path, capsys):
    said = "2026-11-21 10:00:01 | INFO | fairseq_cli.train | num. shared model params: 61,362,176 (num. trained: 1)\n"
    run(tmp_path, "table1", "a", bleu=28.0, log=log(("10:00:00", "11:00:00")) + said)
    sharded = {"command": "fairseq-train data --ddp-backend fully_sharded", "log": said + log(("10:00:00", "11:00:00"))}
    run(tmp_path, "table1", "b", "admin", bleu=28.0, **sharded)
    rows = grid(printed(capsys, tmp_path, "--table", "1"), "Beside the paper")
    assert {row["model"]: row["parameters"] for row in rows} == {"DeepNorm": "61M", "Admin": "–"}


def test_significance_against_the_baseline(tmp_path, capsys):
    """A twin of the baseline, a far worse system, and one of another depth, which has no rival."""
    references = sentences(60)
    data = write_corpus(tmp_path / "corpus", {"test.de-en": references})
    said = {"command": f"fairseq-train {data} --arch x"}
    for name, method, layers, rate in (
        ("base", "pre_ln", 18, 0.2),
        ("twin", "admin", 18, 0.2),
        ("worse", "deepnorm", 18, 0.8),
        ("alone", "deepnorm", 6, 0.2),
    ):
        folder = run(tmp_path, "table1", name, method, layers, bleu=28.0, **said)
        write_generated(folder / "generated.txt", noisy(references, rate), references)
    found = {entry["name"]: entry for entry in as_json(capsys, tmp_path)["runs"]}
    assert found["twin"]["p"] == 1.0 and found["twin"]["baseline_run"] == "base"
    assert found["worse"]["p"] == pytest.approx(1 / 1001)
    assert found["alone"]["p"] is found["base"]["p"] is None
    rows = {row["run"]: row for row in grid(printed(capsys, tmp_path, "--table", "1"), "Runs")}
    cells = {name: row["p against pre\\_ln"] for name, row in rows.items()}
    assert cells == {"base": "baseline", "twin": "1.000", "worse": "\\<0.001", "alone": "–"}
    other = {entry["name"]: entry["p"] for entry in as_json(capsys, tmp_path, "1", "--baseline", "admin")["runs"]}
    assert other["base"] == 1.0 and other["twin"] is None


def test_documented_keys_of_the_json(tmp_path, capsys):
    """docs/reports.md lists those that are there, in their order."""
    run(tmp_path, "table1", "a", bleu=28.0)
    report = as_json(capsys, tmp_path)
    result, (recorded,), (environment,) = report["results"][0], report["runs"], report["environments"].values()
    listed = re.search(r"<!-- keys -->\n(.*)<!-- /keys -->", PAGE, re.DOTALL).group(1)
    documented = [re.findall(r"`(\w+)`", line.split("|")[2]) for line in listed.splitlines()[2:]]
    assert documented == [list(part) for part in (report, result, result["cells"]["bleu"], recorded, environment)]


def test_documented_example_of_a_table(tmp_path, capsys, monkeypatch):
    """A metric that is no BLEU, and rows that are not told apart by their depth."""
    names = vars(table).copy()
    exec(re.search(r"```python\n(TABLE = .*?)```", PAGE, re.DOTALL).group(1), names)
    monkeypatch.setitem(TABLES, "lm", names["TABLE"])
    run(tmp_path, "lm", "a", "pre_ln", 12, size="125M", score={"perplexity": 20.5})
    text = printed(capsys, tmp_path, "--table", "lm")
    (row,) = grid(text, "Beside the paper")
    assert (row["model"], row["size"], row["perplexity"], row["difference"]) == ("Pre-LN", "125M", "20.50", "−0.59")
    assert "Lower is better" in text and "BLEU" not in text.split("\n## Notes")[0]
