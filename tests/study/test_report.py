"""Tests of `deepnet report --table`: the papers' tables from recorded runs, and its notes on them.

A report is a Markdown page. Its section "Overview" has a row for each model of the paper's table, with cells such as
"28.50 (28.8)": the mean over the model's runs, and the paper's number. Its section "Runs" has a row for each run.
"""

from __future__ import annotations

import re
import statistics
import tomllib
from pathlib import Path
from urllib.parse import unquote

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.tables import TABLES, read_tables, render_report

from ..support.errors import assert_refused, refused
from ..support.helpers import ROOT
from ..support.reported import (
    ENVIRONMENT,
    bilingual_score,
    printed_report,
    table_of_section,
    train_log,
    write_run,
)

BLEU_OF_DEEPNORM = (27.61, 27.82, 28.13)  # at 18L-18L with seeds 1, 2 and 3; the paper has 28.8


def mean_and_deviation(values):
    """Return "MEAN ± SD, n=COUNT" as tables print it."""
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}, n={len(values)}"


# Table 1, with runs of each kind.


@pytest.fixture(scope="module")
def runs_of_table1(tmp_path_factory):
    """Provide runs of DeepNet's Table 1 in every state: scored, diverged, stuck, running, not yet scored.

    The log of each has losses up to update 200.
    """
    root = tmp_path_factory.mktemp("report") / "runs"
    for seed, bleu in enumerate(BLEU_OF_DEEPNORM, start=1):
        write_run(root, "table1", f"deepnorm-18-{seed}", seed=seed, bleu=bleu)
    write_run(root, "table1", "post-18", "post_ln", diverged="diverged at update 812\n")
    write_run(root, "table1", "post-50", "post_ln", 50, diverged="")  # at an unknown update
    write_run(root, "table1", "post-50-2", "post_ln", 50, seed=2, diverged="")
    write_run(root, "table1", "post-100", "post_ln", 100, stuck="stuck at update 400: validation loss 8.05 bits")
    write_run(root, "table1", "pre-18", "pre_ln", bleu=28.25)
    write_run(root, "table1", "admin-6", "admin", 6, trained=False, bleu=99.0)  # of an earlier training
    write_run(root, "table1", "admin-18", "admin")  # without a score
    write_run(root, "table1", "branchnorm-18", "branchnorm", bleu=28.5)  # the paper has no BranchNorm
    write_run(root, "table1", "dlcl-50", "dlcl", 50, bleu=27.0)  # diverged in the paper
    return root


@pytest.fixture(scope="module")
def overview(runs_of_table1):
    """Provide (model, depth) -> BLEU, in the order of the report's overview."""
    rows = table_of_section(render_report(runs_of_table1, "1"), "Overview")
    return {(row["model"], row["layers"]): row["BLEU"] for row in rows}


@pytest.mark.parametrize(
    ("method", "depth", "cell"),
    [
        ("DeepNorm", "6L-6L", "not run (27.8)"),
        ("DeepNorm", "18L-18L", f"{mean_and_deviation(BLEU_OF_DEEPNORM)} (28.8)"),
        ("Post-LN", "18L-18L", "diverged at update 812 (diverged)"),
        ("Post-LN", "50L-50L", "diverged, n=2 (diverged)"),
        ("Post-LN", "100L-100L", "stuck (at the frequencies of words) (diverged)"),
        ("Admin", "6L-6L", "running (update 200) (27.9)"),
        ("Admin", "18L-18L", "not scored (28.8)"),
        ("BranchNorm", "18L-18L", "28.50"),
        ("DLCL", "50L-50L", "27.00 (diverged)"),
    ],
)
def test_a_cell_has_what_came_of_its_runs_beside_the_papers_number(method, depth, cell, overview):
    assert overview[method, depth] == cell


def test_depths_of_a_method_are_in_order(overview):
    depths = [depth for method, depth in overview if method == "DeepNorm"]

    assert depths == ["6L-6L", "18L-18L", "50L-50L", "100L-100L"]


def test_a_run_that_the_paper_lacks_has_the_last_row(overview):
    rows_of_paper = 10 * 4  # methods and depths

    assert len(overview) == rows_of_paper + 1
    assert list(overview)[-1] == ("BranchNorm", "18L-18L")


def test_runs_are_listed_one_by_one(runs_of_table1):
    rows = table_of_section(render_report(runs_of_table1, "1"), "Runs")

    (row,) = [row for row in rows if row["run"] == "pre-18"]
    assert row["BLEU"] == "28.25"
    # bilingual_score puts sacreBLEU one below BLEU; the mean of its samples is 27.15, and the interval +- 0.5
    assert row["sacreBLEU \\[95%\\]"] == r"27.25 \[26.65, 27.65\]"
    assert row["updates"] == "200"
    assert row["cost"] == "24 GPU-hours"  # three hours on eight GPUs
    assert row["trained with"] == "1"
    assert row["log"] == "[log](table1/pre-18/train.log)"


def test_the_command_prints_the_report(runs_of_table1, capsys):
    printed = printed_report(capsys, runs_of_table1, "--table", "1")

    assert printed.rstrip("\n") == render_report(runs_of_table1, "1").rstrip("\n")


def test_an_unknown_table_is_refused_with_those_there_are(runs_of_table1):
    with refused("--table 4") as caught:
        render_report(runs_of_table1, "4")

    assert "1, 2, 3, " in caught.value.way_out


def test_a_table_without_runs_is_refused_with_its_script(runs_of_table1):
    with refused(runs_of_table1 / "table2") as caught:
        render_report(runs_of_table1, "2")

    assert "scripts/table2_opus100.sh" in caught.value.way_out


@pytest.mark.parametrize("out", ["/", "/no/such/folder/x.md"])
def test_an_out_that_cannot_be_written_is_refused(out, runs_of_table1):
    assert_refused(f"--out {out}", "report", runs_of_table1, "--table", "1", "--out", out)


@pytest.mark.parametrize(
    ("table", "subject"), [("4", "--table 4"), ("2", "table2")], ids=["unknown table", "table without runs"]
)
def test_the_command_refuses_a_table_in_one_line(table, subject, runs_of_table1):
    assert_refused(subject, "report", runs_of_table1, "--table", table)


# The published numbers.


def test_every_row_of_the_papers_tables_is_there():
    """Rows that the keys of a table do not tell apart would replace each other."""
    sizes = {name: len(table.rows) for name, table in TABLES.items()}

    assert sizes == {
        "1": 40, "2": 5, "3": 2, "admin_wmt14": 33, "admin_iwslt14": 6, "iwslt14": 100, "normformer_ablation": 6,
        "normformer_clm": 10, "normformer_mlm": 2, "opus100": 5, "admin_wmt14_deepnmt": 8,
    }  # fmt: skip


COLUMNS_WITHOUT_NUMBERS = {  # table -> columns of which its paper has no numbers
    "admin_iwslt14": {"TER"},
    "normformer_ablation": {"test"},
    "normformer_clm": {"test"},
    "normformer_mlm": {"test"},
    "opus100": {"X-En", "En-X"},
}


@pytest.mark.parametrize("name", TABLES)
def test_every_column_has_a_published_number_where_papers_give_one(name):
    table = TABLES[name]

    columns_with_numbers = set().union(*table.rows.values())  # a row is column -> number

    columns_without_numbers = set(table.columns) - columns_with_numbers
    assert columns_without_numbers == COLUMNS_WITHOUT_NUMBERS.get(name, set())


# NormFormer's table, whose rows have learning rates.


def write_language_model(root, name, lr, valid=None, method="normformer", variant="scale_residual", **others):
    """Write a run of a causal language model of 125M parameters.

    lr: its learning rate. valid: its validation perplexity, None if it was not scored. variant: "scale_residual" is
    NormFormer with factors on the residual connections.
    """
    score = None
    if valid is not None:
        sets = {"valid": {"perplexity": valid}, "test": {"perplexity": valid + 1}}
        score = {"kind": "perplexity", "sets": sets}
    facts = {"lr": lr, "size": "125M", "variant": variant}
    write_run(root, "normformer_clm", name, method, layers=12, score=score, **facts, **others)


@pytest.fixture(scope="module")
def page_of_language_models(tmp_path_factory):
    """Provide the report of language models with several learning rates, two seeds of one, and divergences.

    The paper's perplexities are 20.11 for NormFormer with factors on residuals, and 21.09 for Pre-LN.
    """
    root = tmp_path_factory.mktemp("language_models")
    write_language_model(root, "best-1", "1e-3", 20.31)
    write_language_model(root, "best-2", "1e-3", 20.61, seed=2)
    write_language_model(root, "higher", "3e-3", 20.52)
    write_language_model(root, "highest", "6e-3", diverged="diverged at update 812\n")
    write_language_model(root, "lowest", "5e-4", 30.0)
    write_language_model(root, "pre", "1e-3", 21.5, method="pre_ln", variant="")
    write_language_model(root, "pre-later", "3e-3", method="pre_ln", variant="", trained=False)
    write_language_model(root, "post", "3e-3", method="post_ln", variant="", diverged="diverged at update 5\n")
    return render_report(root, "normformer_clm")


@pytest.fixture(scope="module")
def language_models(page_of_language_models):
    """Provide (model, size, variant, learning rate) -> cell of "valid", in the order of the overview."""
    rows = table_of_section(page_of_language_models, "Overview")
    return {(row["model"], row["size"], row["variant"], row["lr"]): row["valid"] for row in rows}


def test_learning_rates_have_rows_in_their_order(language_models):
    cells = []
    for (_model, _size, variant, lr), cell in language_models.items():
        was_run = lr != "–"
        if variant == r"scale\_residual" and was_run:
            cells.append((lr, cell))

    assert cells == [
        ("5e-4", "30.00 (20.11)"),
        ("1e-3", f"{mean_and_deviation((20.31, 20.61))} (20.11)"),
        ("3e-3", "20.52 (20.11)"),
        ("6e-3", "diverged at update 812 (20.11)"),
    ]


@pytest.mark.parametrize(
    ("key", "cell"),  # key: model, size, variant, learning rate
    [
        (("Pre-LN", "125M", "–", "1e-3"), "21.50 (21.09)"),
        (("Pre-LN", "125M", "–", "3e-3"), "running (update 200) (21.09)"),
        (("Post-LN", "125M", "–", "3e-3"), "diverged at update 5"),
    ],
)
def test_each_learning_rate_of_a_method_has_a_row(key, cell, language_models):
    assert language_models[key] == cell


def test_a_size_that_was_not_run_has_a_row_that_says_so(language_models):
    assert language_models["NormFormer", "2.7B", "–", "–"].startswith("not run (")


def test_the_report_of_perplexities_says_that_lower_is_better(page_of_language_models):
    tables = page_of_language_models.split("Trained with")[0]  # behind them a list names sacreBLEU's version

    assert "Lower is better" in page_of_language_models
    assert "BLEU" not in tables
    assert "Warning" not in page_of_language_models


# Warnings, and tables that users add.


def warnings_of(page):
    """Return the warnings of a report, without backslashes of Markdown."""
    return re.findall(r"\*\*Warning:\*\* (.*)", page.replace("\\", ""))


@pytest.mark.parametrize(
    ("unlike_the_paper", "facts"),
    [
        ({"bleu": 28.0, "batch_tokens": 4096, "paper_batch_tokens": 524288}, ["4096", "524288"]),
        ({"score": bilingual_score(28.0, kind="sacrebleu")}, ["sacrebleu", "tokenised"]),  # the paper's is tokenised
        ({"bleu": 28.0, "corpus": "of DATA", "paper_corpus": "wmt17_en_de"}, ["of DATA", "wmt17_en_de"]),
    ],
    ids=["batch", "kind of BLEU", "corpus"],
)
def test_a_run_unlike_the_papers_has_a_warning(unlike_the_paper, facts, tmp_path):
    write_run(tmp_path, "table1", "as_in_the_paper", bleu=28.0)
    write_run(tmp_path, "table1", "unlike", "dlcl", **unlike_the_paper)

    (warning,) = warnings_of(render_report(tmp_path, "1"))

    assert "unlike" in warning
    assert "as_in_the_paper" not in warning
    for fact in facts:
        assert fact in warning


def test_a_miniature_is_warned_of_but_not_of_its_batch(tmp_path):
    """A miniature is a run on generated data, whose numbers are not comparable anyway."""
    write_run(tmp_path, "table1", "full", bleu=28.0)
    write_run(tmp_path, "table1", "small", "admin", bleu=28.0, smoke=True, batch_tokens=1, paper_batch_tokens=524288)

    page = render_report(tmp_path, "1")

    (warning,) = warnings_of(page)
    assert "miniatures" in warning
    assert "524288" not in warning
    assert "> **Miniature" in page


def test_the_documented_example_of_a_table_works(tmp_path, monkeypatch):
    """The example has perplexity for a metric, and rows that are keyed by size and not by depth."""
    documentation = (ROOT / "docs" / "reports.md").read_text()
    example = re.search(r"```toml\n(.*?)```", documentation, re.DOTALL).group(1)
    monkeypatch.setitem(TABLES, "lm", read_tables(tomllib.loads(example))["lm"])
    write_run(tmp_path, "lm", "a", "pre_ln", 12, size="125M", score={"sets": {"test": {"perplexity": 20.5}}})

    page = render_report(tmp_path, "lm")

    (row,) = table_of_section(page, "Overview")
    assert row["model"] == "Pre-LN"
    assert row["size"] == "125M"
    assert row["perplexity"] == "20.50 (21.09)"
    assert "Lower is better" in page
    assert "BLEU" not in page.split("\n## Notes")[0]


# Tables with columns of their own.

MULTILINGUAL = {"bleu": 31.5, "kind": "sacrebleu", "to_english": 33.0, "from_english": 30.0, "directions": {}}
ONE_HOUR = train_log(("10:00:00", "11:00:00"))


@pytest.fixture
def rows_of_table2(tmp_path):
    """Provide (model, depth) -> row of Table 2, OPUS-100, whose 500L-500L model lacks the score of a direction.

    Runs of the experiments table2 and opus100 are of the same table.
    """
    missing = {"missing": {"test": ["de-en"]}}
    write_run(tmp_path, "table2", "deep", layers=100, score=MULTILINGUAL, log=ONE_HOUR)
    write_run(tmp_path, "opus100", "deeper", layers=500, score=MULTILINGUAL | missing, log=ONE_HOUR)
    rows = table_of_section(render_report(tmp_path, "2"), "Overview")
    return {(row["model"], row["layers"]): row for row in rows}


def test_table2_has_means_into_and_from_english(rows_of_table2):
    row = rows_of_table2["DeepNorm", "100L-100L"]

    assert row["X→En"] == "33.00 (33.2)"
    assert row["En→X"] == "30.00 (29.0)"
    assert row["Avg"] == "31.50 (31.1)"


def test_table2_has_the_systems_of_others(rows_of_table2):
    assert rows_of_table2["Zhang et al. 2020", "24L-24L"]["Avg"] == "not run (27.7)"


def test_a_mean_over_a_part_of_the_directions_is_not_shown(rows_of_table2):
    assert rows_of_table2["DeepNorm", "500L-500L"]["Avg"].startswith("scored in part (")


def test_table3_has_a_column_for_each_test_set(tmp_path):
    sets = {"wmt": {"bleu": 34.0}, "opus": {"bleu": 22.0}, "flores": {"bleu": 19.1}}
    write_run(tmp_path, "table3", "m2m", layers=100, score={"bleu": 25.0, "kind": "sacrebleu", "sets": sets})

    rows = table_of_section(render_report(tmp_path, "3"), "Overview")

    (row,) = [row for row in rows if row["layers"] == "100L-100L"]
    assert row["model"] == "DeepNorm"
    assert row["WMT"].startswith("34.00 (")
    assert row["OPUS"].startswith("22.00 (")
    assert row["TED"].startswith("not scored (")
    assert row["Flores"].startswith("19.10 (")


def test_a_run_of_another_system_has_the_row_of_that_system(tmp_path):
    """M2M-100 is a Pre-LN model that the paper compares with."""
    score = {"sets": {"flores": {"bleu": 13.5}}}
    write_run(tmp_path, "table3", "m2m100", "pre_ln", 24, system="M2M-100", score=score)

    rows = table_of_section(render_report(tmp_path, "3"), "Overview")

    (row,) = [row for row in rows if row["layers"] == "24L-24L"]
    assert row["model"] == "M2M-100"
    assert row["WMT"] == "not scored (31.9)"
    assert row["Flores"] == "13.50 (13.6)"


@pytest.mark.parametrize("section", ["Overview", "Runs"])
def test_the_report_of_a_miniature_has_only_what_was_run(section, tmp_path):
    write_run(tmp_path, "opus100", "a", layers=2, score={"bleu": 1.0}, smoke=True)
    write_run(tmp_path, "opus100", "b", layers=6, score={"bleu": 1.0}, smoke=True)

    page = render_report(tmp_path, "opus100")

    depths = [row["layers"] for row in table_of_section(page, section)]
    assert depths == ["2L-2L", "6L-6L"]  # the paper's table has other depths


def test_tables_of_admin_have_a_column_for_ter(tmp_path):
    ter = {"score": 54.0, "mean": 54.1, "ci": 0.5, "signature": "tok:tercom"}
    score = bilingual_score(27.7, ter=ter)
    write_run(tmp_path, "admin_wmt14", "a", "admin", 6, corpus="wmt14_en_de", score=score)

    rows = table_of_section(render_report(tmp_path, "admin_wmt14"), "Overview")

    (row,) = [row for row in rows if row["model"] == "Admin" and row["BLEU"] == "27.70 (27.9)"]
    assert row["TER"] == "54.00 (54.1)"


# The page as a file, and text that Markdown or HTML would take for their own.

ODD_NAME = "a <i>&'\"|_name%20"


@pytest.fixture
def odd_runs(tmp_path):
    """Provide a run whose name, hardware and commit have characters that mean something in Markdown or HTML."""
    environment = ENVIRONMENT | {"hardware": "8 x <b>GPU</b> & 100% of_it", "commit": "{x}"}
    diverged = "diverged at update 150"
    write_run(tmp_path, "iwslt14", ODD_NAME, "post_ln", layers=20, diverged=diverged, environment=environment)
    return tmp_path


def write_page(odd_runs) -> Path:
    """Write the report into a file one folder below the runs."""
    out = odd_runs / "out" / "a.md"
    out.parent.mkdir()
    main(["report", str(odd_runs), "--table", "iwslt14", "--out", str(out)])
    return out


def test_the_command_says_where_it_wrote_the_page(odd_runs, capsys):
    out = write_page(odd_runs)

    assert capsys.readouterr().out == f"wrote {out}\n"


def test_the_page_in_a_file_is_the_printed_one_but_for_links(odd_runs, capsys):
    out = write_page(odd_runs)
    capsys.readouterr()  # what writing it has printed

    printed = printed_report(capsys, odd_runs, "--table", "iwslt14")

    assert out.read_text().replace("](../", "](") == printed


def test_markdown_and_html_in_names_and_facts_of_runs_are_escaped(odd_runs):
    page = write_page(odd_runs).read_text()

    assert "diverged at update 150 (0.1)" in page
    assert not re.search(r"(?<!\\)<(?!https:)", page)  # every < is escaped, but for links <https:..>


def test_links_of_a_page_lead_to_the_logs_from_where_it_is(odd_runs):
    out = write_page(odd_runs)

    (link,) = re.findall(r"\(([^)]*name%2520[^)]*)\)", out.read_text())  # ODD_NAME's "%20" in a URL

    linked = (out.parent / unquote(link)).resolve()
    assert linked == (odd_runs / "iwslt14" / ODD_NAME / "train.log").resolve()
