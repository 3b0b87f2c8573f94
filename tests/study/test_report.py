"""Tests of `deepnet report`: the papers' tables from recorded runs, and its notes on them."""

from __future__ import annotations

import re
import statistics
import tomllib
from urllib.parse import unquote

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.tables import TABLES, read_tables

from ..support.helpers import ROOT
from ..support.reported import ENVIRONMENT, grid, log, printed, run, score

PAGE = (ROOT / "docs" / "reports.md").read_text()
SEEDS = (27.61, 27.82, 28.13)  # BLEU of DeepNorm at 18L-18L; the paper has 28.8
MEAN, SD = statistics.fmean(SEEDS), statistics.stdev(SEEDS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Provide runs of Table 1, one of each kind; Post-LN at 18L-18L diverged, as in the paper."""
    root = tmp_path_factory.mktemp("report") / "runs"
    for seed, bleu in enumerate(SEEDS, start=1):
        run(root, "table1", f"deepnorm-18-{seed}", seed=seed, bleu=bleu)
    run(root, "table1", "post-18", "post_ln", diverged="diverged at update 812\n")
    run(root, "table1", "post-50", "post_ln", 50, diverged="")
    run(root, "table1", "post-50-2", "post_ln", 50, seed=2, diverged="")
    run(root, "table1", "post-100", "post_ln", 100, stuck="stuck at update 400: validation loss 8.05 bits")
    run(root, "table1", "pre-18", "pre_ln", bleu=28.25)
    run(root, "table1", "admin-6", "admin", 6, trained=False, bleu=99.0)  # its score must not be shown
    run(root, "table1", "admin-18", "admin")
    run(root, "table1", "branchnorm-18", "branchnorm", bleu=28.5)  # no row of the paper
    run(root, "table1", "dlcl-50", "dlcl", 50, bleu=27.0)  # diverged in the paper only
    return root


def test_overview_beside_the_paper(runs, capsys):
    overview = grid(printed(capsys, runs, "--table", "1"), "Overview")
    rows = {(row["model"], row["layers"]): row["BLEU"] for row in overview}
    assert [layers for model, layers in rows if model == "DeepNorm"] == ["6L-6L", "18L-18L", "50L-50L", "100L-100L"]
    for method, depth, cell in (
        ("DeepNorm", "6L-6L", "not run (27.8)"),
        ("DeepNorm", "18L-18L", f"{MEAN:.2f} ± {SD:.2f}, n=3 (28.8)"),
        ("Post-LN", "18L-18L", "diverged at update 812 (diverged)"),
        ("Post-LN", "50L-50L", "diverged, n=2 (diverged)"),
        ("Post-LN", "100L-100L", "stuck (at the frequencies of words) (diverged)"),
        ("Admin", "6L-6L", "running (update 200) (27.9)"),
        ("Admin", "18L-18L", "not scored (28.8)"),
        ("BranchNorm", "18L-18L", "28.50"),
    ):
        assert rows[method, depth] == cell
    assert list(rows)[-1] == ("BranchNorm", "18L-18L") and len(rows) == 41


def test_runs_one_by_one(runs, capsys):
    text = printed(capsys, runs, "--table", "1")
    (row,) = [row for row in grid(text, "Runs") if row["run"] == "pre-18"]
    assert row["sacreBLEU \\[95%\\]"] == r"27.25 \[26.65, 27.65\]"  # 27.15 +- 0.5, the samples' mean
    assert row["cost"] == "24 GPU-hours"  # three hours on eight GPUs
    assert (row["BLEU"], row["updates"], row["trained with"]) == ("28.25", "200", "1")
    assert row["log"] == "[log](table1/pre-18/train.log)"


def test_published_tables_hold_together():
    """A table's keys distinguish all its rows, and every column has a published number where papers give one."""
    sizes = {name: len(table.rows) for name, table in TABLES.items()}
    assert sizes == {
        "1": 40, "2": 5, "3": 2, "admin_wmt14": 33, "admin_iwslt14": 6, "iwslt14": 100, "normformer_ablation": 6,
        "normformer_clm": 10, "normformer_mlm": 2, "opus100": 5, "admin_wmt14_deepnmt": 8,
    }  # fmt: skip
    for name, table in TABLES.items():
        bare = {column for column in table.columns if not any(column in row for row in table.rows.values())}
        assert bare <= ({"X-En", "En-X"} if name == "opus100" else {"test", "TER"}), name


def perplexities(root, name, lr, valid=None, method="normformer", variant="scale_residual", seed=1, **others):
    """Write a run of NormFormer's table of causal language models, 125M."""
    if valid is not None:
        sets = {"valid": {"perplexity": valid}, "test": {"perplexity": valid + 1}}
        others["score"] = {"kind": "perplexity", "sets": sets}
    return run(root, "normformer_clm", name, method, 12, seed, lr=lr, size="125M", variant=variant, **others)


def test_each_learning_rate_has_a_row(tmp_path, capsys):
    """Each learning rate has a row, in order, with its seeds and divergences; a missing run shows as such."""
    perplexities(tmp_path, "best-1", "1e-3", 20.31)
    perplexities(tmp_path, "best-2", "1e-3", 20.61, seed=2)
    perplexities(tmp_path, "lucky", "3e-3", 20.52)
    perplexities(tmp_path, "high", "6e-3", diverged="diverged at update 812\n")
    perplexities(tmp_path, "low", "5e-4", 30.0)
    perplexities(tmp_path, "pre", "1e-3", 21.5, "pre_ln", "")
    perplexities(tmp_path, "pre-later", "3e-3", None, "pre_ln", "", trained=False)
    perplexities(tmp_path, "post", "3e-3", None, "post_ln", "", diverged="diverged at update 5\n")
    text = printed(capsys, tmp_path, "--table", "normformer_clm")
    rows = {(row["model"], row["size"], row["variant"], row["lr"]): row["valid"] for row in grid(text, "Overview")}
    best = f"{statistics.fmean((20.31, 20.61)):.2f} ± {statistics.stdev((20.31, 20.61)):.2f}, n=2"
    cells = [
        (lr, cell) for (model, _, variant, lr), cell in rows.items() if variant == r"scale\_residual" and lr != "–"
    ]
    assert cells == [("5e-4", "30.00 (20.11)"), ("1e-3", f"{best} (20.11)"), ("3e-3", "20.52 (20.11)"),
                     ("6e-3", "diverged at update 812 (20.11)")]  # fmt: skip
    assert rows["Pre-LN", "125M", "–", "1e-3"] == "21.50 (21.09)"
    assert rows["Pre-LN", "125M", "–", "3e-3"] == "running (update 200) (21.09)"
    assert rows["Post-LN", "125M", "–", "3e-3"] == "diverged at update 5"
    assert rows["NormFormer", "2.7B", "–", "–"].startswith("not run (")
    assert "Lower is better" in text and "BLEU" not in text.split("Trained with")[0] and "Warning" not in text


def test_warnings(tmp_path, capsys):
    run(tmp_path, "table1", "a", bleu=28.0, batch_tokens=4096, paper_batch_tokens=524288)
    run(tmp_path, "table1", "b", score=score(28.0, kind="sacrebleu"))
    run(tmp_path, "table1", "c", "admin", bleu=28.0, smoke=True, batch_tokens=1, paper_batch_tokens=524288)
    run(tmp_path, "table1", "d", "dlcl", bleu=28.0, corpus="of DATA", paper_corpus="wmt17_en_de")
    text = printed(capsys, tmp_path, "--table", "1")
    assert "> **Miniature on generated data: do not compare its numbers with the paper's.**" in text
    assert re.findall(r"\*\*Warning:\*\* (.*)", text.replace("\\", "")) == [
        "an update has 4096 tokens, the paper's 524288: a",
        "the published numbers are tokenised BLEU, these are sacrebleu: b",
        "trained and tested on the corpus of DATA, the paper's is wmt17_en_de: d",
        "miniatures and runs in full stand in one table",
    ]


def test_documented_example_of_a_table(tmp_path, capsys, monkeypatch):
    """The documented example of a table works, with a metric other than BLEU and rows not keyed by depth."""
    example = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL).group(1)
    monkeypatch.setitem(TABLES, "lm", read_tables(tomllib.loads(example))["lm"])
    run(tmp_path, "lm", "a", "pre_ln", 12, size="125M", score={"sets": {"test": {"perplexity": 20.5}}})
    text = printed(capsys, tmp_path, "--table", "lm")
    (row,) = grid(text, "Overview")
    assert (row["model"], row["size"], row["perplexity"]) == ("Pre-LN", "125M", "20.50 (21.09)")
    assert "Lower is better" in text and "BLEU" not in text.split("\n## Notes")[0]


# Tables with columns of their own.


def test_multilingual_tables(tmp_path, capsys):
    scored = {"bleu": 31.5, "kind": "sacrebleu", "to_english": 33.0, "from_english": 30.0, "directions": {}}
    shape = {"log": log(("10:00:00", "11:00:00"))}
    run(tmp_path, "table2", "deep", layers=100, score=scored, **shape)
    run(tmp_path, "opus100", "deeper", layers=500, score=scored | {"missing": {"test": ["de-en"]}}, **shape)
    rows = grid(printed(capsys, tmp_path, "--table", "2"), "Overview")
    by_model = {(row["model"], row["layers"]): row for row in rows}
    deep = by_model["DeepNorm", "100L-100L"]
    assert [deep[c] for c in ("X→En", "En→X", "Avg")] == ["33.00 (33.2)", "30.00 (29.0)", "31.50 (31.1)"]
    assert by_model["Zhang et al. 2020", "24L-24L"]["Avg"] == "not run (27.7)"
    deeper = by_model["DeepNorm", "500L-500L"]
    assert deeper["Avg"].startswith("scored in part (")

    sets = {name: {"bleu": bleu} for name, bleu in (("wmt", 34.0), ("opus", 22.0), ("flores", 19.1))}
    run(tmp_path, "table3", "m2m", layers=100, score={"bleu": 25.0, "kind": "sacrebleu", "sets": sets}, **shape)
    row = grid(printed(capsys, tmp_path, "--table", "3"), "Overview")[1]
    cells = [row[key].split(" (")[0] for key in ("WMT", "OPUS", "TED", "Flores")]
    assert cells == ["34.00", "22.00", "not scored", "19.10"]
    theirs = {"system": "M2M-100", "score": {"sets": {"flores": {"bleu": 13.5}}}}
    run(tmp_path, "table3", "m2m100", "pre_ln", 24, **shape | theirs)
    rows = grid(printed(capsys, tmp_path, "--table", "3"), "Overview")
    assert [(row["model"], row["WMT"], row["Flores"]) for row in rows if row["layers"] == "24L-24L"] == [
        ("M2M-100", "not scored (31.9)", "13.50 (13.6)")]  # fmt: skip


def test_a_miniature_shows_what_was_run(tmp_path, capsys):
    """A miniature's report leaves out rows without runs."""
    for name, layers in (("a", 2), ("b", 6)):
        run(tmp_path, "opus100", name, layers=layers, score={"bleu": 1.0}, smoke=True)
    text = printed(capsys, tmp_path, "--table", "opus100")
    assert [row["layers"] for row in grid(text, "Overview")] == ["2L-2L", "6L-6L"] and "not run |" not in text
    assert [row["layers"] for row in grid(text, "Runs")] == ["2L-2L", "6L-6L"]


def test_columns_of_admins_tables(tmp_path, capsys):
    """Tables of Admin have a separate column for TER."""
    edits = {"ter": {"score": 54.0, "mean": 54.1, "ci": 0.5, "signature": "tok:tercom"}}
    run(tmp_path, "admin_wmt14", "a", "admin", 6, corpus="wmt14_en_de", score=score(27.7, **edits))
    text = printed(capsys, tmp_path, "--table", "admin_wmt14")
    (row,) = [row for row in grid(text, "Overview") if (row["model"], row["BLEU"]) == ("Admin", "27.70 (27.9)")]
    assert row["TER"] == "54.00 (54.1)"


@pytest.mark.parametrize(
    "words, message",
    [
        (["--table", "4"], "--table 4: no such table; choose one of 1, 2, 3, "),
        (["--table", "2"], "table2: holds no runs; record some with scripts/table2_opus100.sh"),
        (["--table", "1", "--out", "/"], "--out /: is a folder"),
        (["--table", "1", "--out", "/no/such/folder/x.md"], "--out /no/such"),
    ],
)
def test_mistakes(words, message, runs):
    with pytest.raises(SystemExit) as stop:
        main(["report", str(runs), *words])
    assert message in str(stop.value) and "\n" not in str(stop.value)


HOSTILE = "a <i>&'\"|_name%20"


def test_text_is_escaped_and_links_follow_the_file(tmp_path, capsys):
    odd = ENVIRONMENT | {"hardware": "8 x <b>GPU</b> & 100% of_it", "commit": "{x}"}
    run(tmp_path, "iwslt14", HOSTILE, "post_ln", layers=20, diverged="diverged at update 150", environment=odd)
    (tmp_path / "out").mkdir()
    words = ["report", str(tmp_path), "--table", "iwslt14"]
    main([*words, "--out", str(tmp_path / "out" / "a.md")])
    assert capsys.readouterr().out == f"wrote {tmp_path / 'out' / 'a.md'}\n"
    page = (tmp_path / "out" / "a.md").read_text()
    assert page.replace("](../", "](") == printed(capsys, *words[1:])
    assert not re.search(r"(?<!\\)<(?!https:)", page) and "diverged at update 150 (0.1)" in page
    (link,) = re.findall(r"\(([^)]*name%2520[^)]*)\)", page)
    assert (tmp_path / "out" / unquote(link)).resolve() == (tmp_path / "iwslt14" / HOSTILE / "train.log").resolve()
