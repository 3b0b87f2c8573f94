"""NormFormer's tables: a row is its best learning rate, lower is better, beside what was published."""

from __future__ import annotations

import statistics

import pytest

from deepnet_fairseq.analysis.report.tables import TABLES
from deepnet_fairseq.cli import main

from .support.reported import as_json, grid, printed, run

SMALL = {"size": "125M", "variant": "scale_residual"}


def scored(valid, test=None):
    sets = {"valid": {"perplexity": valid}, "test": {"perplexity": test or valid + 1}}
    return {"kind": "perplexity", "sets": sets}


def row(root, name, lr, valid=None, method="normformer", seed=1, table="normformer_clm", **others):
    """A run of a language model of 12 layers."""
    score = {} if valid is None else {"score": scored(valid)}
    return run(root, table, name, method, 12, seed, lr=lr, **(SMALL | score | others))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A grid of four rates with two seeds at the best, and one that diverged; Pre-LN with one run to come."""
    root = tmp_path_factory.mktemp("report") / "runs"
    row(root, "low", "1e-4", 24.5)
    row(root, "best-1", "1e-3", 20.31)
    row(root, "best-2", "1e-3", 20.61, seed=2)
    row(root, "lucky", "3e-3", 20.52)
    row(root, "high", "6e-3", diverged="diverged at update 812\n")
    row(root, "pre", "1e-3", 21.5, "pre_ln", variant="")
    row(root, "pre-later", "3e-3", method="pre_ln", variant="", trained=False)
    row(root, "post", "3e-3", method="post_ln", variant="", diverged="diverged at update 5\n")
    row(root, "post-low", "1e-3", method="post_ln", variant="", diverged="diverged at update 9\n")
    return root


def test_a_row_is_its_best_learning_rate(runs, capsys):
    text = printed(capsys, runs, "--table", "normformer_clm")
    rows = {(row["model"], row["size"], row["variant"]): row for row in grid(text, "Beside the paper")}
    best = rows["NormFormer", "125M", "scale\\_residual"]
    mean, sd = statistics.fmean((20.31, 20.61)), statistics.stdev((20.31, 20.61))
    assert best["lr"] == "1e-3" and best["runs"] == "2" and best["valid"] == f"{mean:.2f} ± {sd:.2f}, n=2"
    assert best["valid, paper"] == "20.11" and best["test"].startswith("21.46")
    pre = rows["Pre-LN", "125M", "–"]
    assert (pre["lr"], pre["valid"], pre["valid, paper"]) == ("1e-3", "21.50", "21.09")
    post = rows["Post-LN", "125M", "–"]
    assert post["lr"] == "–" and post["valid"] == "diverged at update 5, diverged at update 9"
    assert rows["NormFormer", "2.7B", "–"]["valid"] == "not run"
    assert "Lower is better" in text and "secondary" in text and "BLEU" not in text.split("Trained with")[0]


def test_all_runs_are_listed(runs, capsys):
    rows = {row["run"]: row for row in grid(printed(capsys, runs, "--table", "normformer_clm"), "Runs")}
    assert len(rows) == 9 and rows["low"]["lr"] == "1e-4" and rows["low"]["valid"] == "24.50"
    assert rows["high"]["state"] == "diverged at update 812" and rows["high"]["valid"] == "–"


def test_json_names_the_best(runs, capsys):
    report = as_json(capsys, runs, "normformer_clm")
    assert report["metric"]["higher_is_better"] is False and not report["warnings"]
    (best,) = (one for one in report["results"] if one["method"] == "normformer" and one["runs"])
    assert best["best"] == ["best-1", "best-2"] and len(best["runs"]) == 5
    cell = best["cells"]["valid"]
    assert cell["published"] == 20.11 and cell["difference"] == pytest.approx(20.46 - 20.11) and cell["n"] == 2


def test_twins_are_told_of(tmp_path, capsys):
    """The same rate and the same seed; another rate is no twin."""
    for name, lr in (("a", "1e-3"), ("b", "1e-3"), ("c", "3e-3")):
        row(tmp_path, name, lr, 20.5)
    report = as_json(capsys, tmp_path, "normformer_clm")
    assert report["warnings"] == ["same row and same seed, yet counted as several: a, b"]


@pytest.mark.parametrize(
    "table, facts, published",
    [
        ("normformer_ablation", {"variant": "scale_residual+no_ffn_norm"}, 16.14),
        ("normformer_mlm", {"variant": "", "size": "base"}, 3.31),
    ],
)
def test_other_tables(table, facts, published, tmp_path, capsys):
    row(tmp_path, "a", "1e-3", published + 0.5, table=table, **facts)
    found = [one for one in as_json(capsys, tmp_path, table)["results"] if one["runs"]]
    assert [one["cells"]["valid"]["difference"] for one in found] == [pytest.approx(0.5)]
    page = tmp_path / "page.html"
    main(["report", str(tmp_path), "--table", table, "--format", "html", "--out", str(page)])
    assert "perplexity" in page.read_text() and page.stat().st_size > 10_000


def test_a_run_without_its_rate(tmp_path):
    run(tmp_path, "normformer_clm", "a", "pre_ln", 12, size="125M", variant="")
    with pytest.raises(SystemExit, match="run.json: lr is missing"):
        main(["report", str(tmp_path), "--table", "normformer_clm"])


def test_published_improvements():
    """As the abstract has it: 0.27 better at 1.3B; and every part of the ablation is worth something."""
    rows = {(row.facts["method"], row.facts["size"]): row for row in TABLES["normformer_clm"].rows}
    gain = rows["pre_ln", "1.3B"].published["valid"] - rows["normformer", "1.3B"].published["valid"]
    assert gain == pytest.approx(0.27)
    whole, *others = (row.published["valid"] for row in TABLES["normformer_ablation"].rows)
    assert all(whole < other for other in others) and max(others) == others[-1]
