"""Recorded runs -> the papers' tables, `deepnet report`."""

from __future__ import annotations

import re
import statistics

import pytest

from deepnet_fairseq.analysis.report.tables import TABLES
from deepnet_fairseq.cli import main

from .support.reported import as_json, grid, log, printed, results_by_place, run

SEEDS = (27.61, 27.82, 28.13)  # BLEU of DeepNorm 18L-18L, published 28.8


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Table 1 with a run of each kind; Post-LN, 18L-18L, diverged, as in the paper."""
    root = tmp_path_factory.mktemp("report") / "runs"
    for seed, bleu in enumerate(SEEDS, start=1):
        run(root, "table1", f"deepnorm-18-{seed}", seed=seed, bleu=bleu)
    run(root, "table1", "post-18", "post_ln", diverged="diverged at update 812\n")
    run(root, "table1", "post-50", "post_ln", 50, diverged="")
    run(root, "table1", "pre-18", "pre_ln", bleu=28.25)
    run(root, "table1", "admin-6", "admin", 6, trained=False, bleu=99.0)  # a score that is not to be shown
    run(root, "table1", "admin-18", "admin")
    run(root, "table1", "branchnorm-18", "branchnorm", bleu=28.5)  # not in the paper
    run(root, "table1", "dlcl-50", "dlcl", 50, bleu=27.0)  # diverged in the paper alone
    return root


def test_overview_beside_the_paper(runs, capsys):
    rows = {row["method"]: row for row in grid(printed(capsys, runs, "--table", "1"), "Overview")}
    mean, sd = statistics.fmean(SEEDS), statistics.stdev(SEEDS)
    assert rows["DeepNorm"] == {
        "method": "DeepNorm",
        "6L-6L": "not run (27.8)",
        "18L-18L": f"{mean:.2f} ± {sd:.2f}, n=3 (28.8)",
        "50L-50L": "not run (29.0)",
        "100L-100L": "not run (28.9)",
    }
    assert rows["Post-LN"]["18L-18L"] == "diverged at update 812 (diverged)"
    assert rows["Post-LN"]["50L-50L"] == "diverged (diverged)"
    assert rows["Post-LN"]["100L-100L"] == "not run (diverged)"
    assert rows["Admin"]["6L-6L"] == "running (update 200) (27.9)"
    assert rows["Admin"]["18L-18L"] == "not scored (28.8)"
    assert rows["BranchNorm"]["18L-18L"] == "28.50" and rows["BranchNorm"]["6L-6L"] == "not run"
    assert list(rows)[-1] == "BranchNorm" and len(rows) == 11


def test_differences_by_hand(runs, capsys):
    rows = grid(printed(capsys, runs, "--table", "1"), "Beside the paper")
    found = {(row["model"], row["layers"]): row for row in rows}
    assert len(found) == 8
    deep, pre = found["DeepNorm", "18L-18L"], found["Pre-LN", "18L-18L"]
    assert (pre["BLEU"], pre["paper"], pre["difference"]) == ("28.25", "28.1", "+0.15")
    assert (deep["paper"], deep["difference"], deep["runs"]) == ("28.8", "−0.95", "3")  # 83.56 / 3 - 28.8
    assert pre["sacreBLEU"] == "27.25" and pre["chrF"] == "50.00"
    assert found["DLCL", "50L-50L"]["paper"] == "diverged" and found["DLCL", "50L-50L"]["difference"] == "–"
    assert found["BranchNorm", "18L-18L"]["paper"] == "–"
    assert found["Post-LN", "18L-18L"]["difference"] == found["Post-LN", "18L-18L"]["chrF"] == "–"


def test_json_is_the_markdown_in_full(runs, capsys):
    report = as_json(capsys, runs)
    found = results_by_place(report)
    cell = found["deepnorm", "18L-18L"]["cells"]["bleu"]
    assert cell["mean"] == pytest.approx(statistics.fmean(SEEDS)) and cell["sd"] == pytest.approx(
        statistics.stdev(SEEDS)
    )
    assert cell["n"] == 3 and cell["difference"] == pytest.approx(statistics.fmean(SEEDS) - 28.8)
    one = found["pre_ln", "18L-18L"]["cells"]["bleu"]
    assert (one["mean"], one["sd"], one["published"]) == (28.25, None, 28.1)
    assert found["post_ln", "18L-18L"]["cells"]["bleu"]["published"] == "diverged"
    assert found["branchnorm", "18L-18L"]["cells"]["bleu"]["published"] is None
    states = {run["name"]: run["state"] for run in report["runs"]}
    assert states == {
        "admin-18": "not scored",
        "admin-6": "running",
        "branchnorm-18": "scored",
        "deepnorm-18-1": "scored",
        "deepnorm-18-2": "scored",
        "deepnorm-18-3": "scored",
        "dlcl-50": "scored",
        "post-18": "diverged",
        "post-50": "diverged",
        "pre-18": "scored",
    }
    (diverged,) = [run for run in report["runs"] if run["name"] == "post-18"]
    assert diverged["diverged_at"] == 812 and diverged["score"] is None
    rows = grid(printed(capsys, runs, "--table", "1"), "Runs")
    assert [row["run"].replace("\\", "") for row in rows] == [run["name"] for run in report["runs"]]
    for row, recorded in zip(rows, report["runs"], strict=True):
        value = recorded["values"]["bleu"]
        assert row["BLEU"] == ("–" if value is None else f"{value:.2f}")


def test_row_of_a_run(runs, capsys):
    (row,) = [row for row in grid(printed(capsys, runs, "--table", "1"), "Runs") if row["run"] == "pre-18"]
    assert row["sacreBLEU \\[95%\\]"] == r"27.25 \[26.65, 27.65\]"  # 27.15 +- 0.5, the mean of the samples
    assert row["cost"] == "24 GPU-hours"  # three hours on eight
    assert row["updates"] == "200" and row["trained with"] == "a"
    assert row["log"] == "[train.log](table1/pre-18/train.log)"


@pytest.mark.parametrize("table", sorted(TABLES))
def test_published_tables_hold_together(table):
    """What is printed of each table is there, in rows told apart by the table's keys."""
    rows = TABLES[table].rows
    trained = [tuple(row.facts[key] for key in TABLES[table].keys) for row in rows if row.facts]
    assert len(set(trained)) == len(trained) > 0
    columns = {column.key for column in TABLES[table].columns}
    assert all(set(row.published) <= columns for row in rows)
    counts = {"1": 40, "2": 5, "3": 2, "iwslt14": 100, "opus100": 5, "admin_wmt14": 33}
    counts |= {"normformer_clm": 10, "normformer_ablation": 6, "normformer_mlm": 2}
    assert len(rows) == counts[table]


def test_published_means():
    """Table 2's averages are those of its two columns, but for rounding."""
    for row in TABLES["2"].rows:
        values = row.published
        assert abs((values["to_english"] + values["from_english"]) / 2 - values["bleu"]) < 0.11


def test_multilingual_tables(tmp_path, capsys):
    scored = {"bleu": 31.5, "kind": "sacrebleu", "to_english": 33.0, "from_english": 30.0, "directions": {}}
    shape = {"log": log(("10:00:00", "11:00:00")), "parameters": 862_900_000}
    run(tmp_path, "table2", "deep", layers=100, score=scored, **shape)
    run(tmp_path, "opus100", "deeper", layers=500, score=scored | {"missing": {"test": ["de-en"]}}, **shape)
    rows = grid(printed(capsys, tmp_path, "--table", "2"), "Beside the paper")
    found = {(row["model"], row["layers"]): row for row in rows}
    deep = found["DeepNorm", "200"]
    assert deep["parameters"] == "863M (863M)"
    assert [deep[c] for c in ("X→En", "En→X", "Avg")] == ["33.00", "30.00", "31.50"]
    assert [deep[f"{c}, paper"] for c in ("X→En", "En→X", "Avg")] == ["33.2", "29.0", "31.1"]
    assert found["Zhang et al. 2020", "48"]["Avg"] == "–" and found["Zhang et al. 2020", "48"]["Avg, paper"] == "27.7"
    assert found["DeepNorm", "1000"]["Avg"] == "scored in part"

    sets = {name: {"bleu": bleu} for name, bleu in (("wmt", 34.0), ("opus", 22.0), ("flores", 19.1))}
    run(tmp_path, "table3", "m2m", layers=100, score={"bleu": 25.0, "kind": "sacrebleu", "sets": sets}, **shape)
    (cells,) = [r["cells"] for r in as_json(capsys, tmp_path, "3")["results"] if r["method"] == "deepnorm"]
    assert {key: cell["mean"] for key, cell in cells.items()} == {
        "wmt": 34.0,
        "opus": 22.0,
        "ted": None,
        "flores": 19.1,
    }
    assert cells["ted"]["state"] == "not scored" and cells["flores"]["difference"] == pytest.approx(0.5)


def test_rows_by_corpus(tmp_path, capsys):
    for corpus, bleu in (("wmt14_en_de", 27.5), ("wmt14_en_fr", 41.0)):
        run(tmp_path, "admin_wmt14", corpus, "admin", 6, bleu=bleu, corpus=corpus)
    found = results_by_place(as_json(capsys, tmp_path, "admin_wmt14"))
    assert found["admin", "wmt14_en_de 6L-6L"]["cells"]["bleu"]["difference"] == pytest.approx(-0.4)
    assert found["admin", "wmt14_en_fr 6L-6L"]["cells"]["bleu"]["difference"] == pytest.approx(-0.47)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--table", "4"], "--table 4: no such table; choose one of 1, 2, 3, admin_wmt14, iwslt14"),
        (["--table", "2"], "table2: holds no runs; record some with scripts/table2_opus100.sh"),
        (["--table", "iwslt14"], "iwslt14: holds no runs; record some with scripts/iwslt14_de_en.sh"),
        (["--table", "1", "--baseline", "best"], "--baseline best: no such method"),
        (["--table", "1", "--out", "/"], "--out /: is a folder"),
    ],
)
def test_mistakes(words, message, runs):
    with pytest.raises(SystemExit) as stop:
        main(["report", str(runs), *words])
    assert message in str(stop.value) and "\n" not in str(stop.value)


@pytest.mark.parametrize(
    "name, text", [("run.json", "{"), ("score.json", '{"bleu": "high"}'), ("environment.json", "[]")]
)
def test_a_broken_file_is_named_and_nothing_is_written(name, text, tmp_path):
    folder = run(tmp_path, "table1", "a", bleu=28.0)
    (folder / name).write_text(text)
    with pytest.raises(SystemExit, match=re.escape(str(folder / name))):
        main(["report", str(tmp_path), "--table", "1", "--out", str(tmp_path / "report.md")])
    assert [path.name for path in tmp_path.iterdir()] == ["table1"]


def test_depths_of_the_runs_alone_stand_in_their_place(tmp_path, capsys):
    run(tmp_path, "table1", "a", layers=12, bleu=28.0)
    run(tmp_path, "opus100", "b", layers=18, score={"bleu": 28.0})
    run(tmp_path, "admin_wmt14", "c", "admin", 3, bleu=27.0, corpus="wmt14_en_de")
    header = list(grid(printed(capsys, tmp_path, "--table", "1"), "Overview")[0])
    assert header == ["method", "6L-6L", "12L-12L", "18L-18L", "50L-50L", "100L-100L"]
    rows = grid(printed(capsys, tmp_path, "--table", "opus100"), "Overview")
    assert [row["layers"] for row in rows] == ["12", "20", "36", "100", "200", "1000"]
    header = list(grid(printed(capsys, tmp_path, "--table", "admin_wmt14"), "Overview")[0])
    depths = ["3L-3L", "6L-6L", "12L-12L", "18L-18L", "60L-12L"]
    assert header[1:6] == [f"wmt14\\_en\\_de {depth}" for depth in depths] and len(header) == 13


def test_several_formats_are_those_of_single_calls(tmp_path, capsys):
    run(tmp_path, "table1", "a", bleu=28.0)
    main(["report", str(tmp_path), "--table", "1", "--format", "md,html,json", "--out", str(tmp_path / "all")])
    assert capsys.readouterr().out.splitlines() == [f"wrote {tmp_path}/all.{form}" for form in ("md", "html", "json")]
    for form in ("md", "html", "json"):
        main(["report", str(tmp_path), "--table", "1", "--format", form, "--out", str(tmp_path / "one")])
        assert (tmp_path / f"all.{form}").read_bytes() == (tmp_path / "one").read_bytes()
    for flags, message in ((("--format", "md,html"), "--out"), (("--format", "doc"), "--format doc: choose from md,")):
        with pytest.raises(SystemExit, match=message):
            main(["report", str(tmp_path), "--table", "1", *flags])
