"""Recorded runs -> the papers' tables, `deepnet report`: its numbers, and what it says of the runs behind them."""

from __future__ import annotations

import base64
import re
import statistics
from html.parser import HTMLParser

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.study.tables import formats
from deepnet_fairseq.study.tables.definitions import TABLES, read_tables

from .support.helpers import ROOT
from .support.reported import ENVIRONMENT, as_json, grid, log, printed, results_by_place, run, score
from .support.translated import noisy, sentences, write_corpus, write_generated

PAGE = (ROOT / "docs" / "reports.md").read_text()
SEEDS = (27.61, 27.82, 28.13)  # BLEU of DeepNorm 18L-18L, published 28.8
MEAN, SD = statistics.fmean(SEEDS), statistics.stdev(SEEDS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Table 1 with a run of each kind; Post-LN, 18L-18L, diverged, as in the paper."""
    root = tmp_path_factory.mktemp("report") / "runs"
    for seed, bleu in enumerate(SEEDS, start=1):
        run(root, "table1", f"deepnorm-18-{seed}", seed=seed, bleu=bleu)
    run(root, "table1", "post-18", "post_ln", diverged="diverged at update 812\n")
    run(root, "table1", "post-50", "post_ln", 50, diverged="")
    run(root, "table1", "post-50-2", "post_ln", 50, seed=2, diverged="")
    run(root, "table1", "post-100", "post_ln", 100, stuck="stuck at update 400: validation loss 8.05 bits")
    run(root, "table1", "pre-18", "pre_ln", bleu=28.25)
    run(root, "table1", "admin-6", "admin", 6, trained=False, bleu=99.0)  # a score that is not to be shown
    run(root, "table1", "admin-18", "admin")
    run(root, "table1", "branchnorm-18", "branchnorm", bleu=28.5)  # not in the paper
    run(root, "table1", "dlcl-50", "dlcl", 50, bleu=27.0)  # diverged in the paper alone
    return root


def test_overview_beside_the_paper(runs, capsys):
    rows = {row["method"]: row for row in grid(printed(capsys, runs, "--table", "1"), "Overview")}
    assert rows["DeepNorm"] == {
        "method": "DeepNorm",
        "6L-6L": "not run (27.8)",
        "18L-18L": f"{MEAN:.2f} ± {SD:.2f}, n=3 (28.8)",
        "50L-50L": "not run (29.0)",
        "100L-100L": "not run (28.9)",
    }
    assert rows["Post-LN"]["18L-18L"] == "diverged at update 812 (diverged)"
    assert rows["Post-LN"]["50L-50L"] == "diverged, n=2 (diverged)"
    assert rows["Post-LN"]["100L-100L"] == "stuck (at the frequencies of words) (diverged)"
    assert rows["ReZero"]["100L-100L"] == "not run (diverged)"
    assert rows["Admin"]["6L-6L"] == "running (update 200) (27.9)"
    assert rows["Admin"]["18L-18L"] == "not scored (28.8)"
    assert rows["BranchNorm"]["18L-18L"] == "28.50" and rows["BranchNorm"]["6L-6L"] == "not run"
    assert list(rows)[-1] == "BranchNorm" and len(rows) == 11


def test_differences_by_hand(runs, capsys):
    text = printed(capsys, runs, "--table", "1")
    found = {(row["model"], row["layers"]): row for row in grid(text, "Beside the paper")}
    assert len(found) == 9
    deep, pre = found["DeepNorm", "18L-18L"], found["Pre-LN", "18L-18L"]
    assert (pre["BLEU"], pre["paper"], pre["difference"]) == ("28.25", "28.1", "+0.15")
    assert (deep["paper"], deep["difference"], deep["runs"]) == ("28.8", "−0.95", "3")  # 83.56 / 3 - 28.8
    assert pre["sacreBLEU"] == "27.25" and pre["chrF"] == "50.00"
    assert found["DLCL", "50L-50L"]["paper"] == "diverged" and found["DLCL", "50L-50L"]["difference"] == "–"
    assert found["BranchNorm", "18L-18L"]["paper"] == "–"
    assert found["Post-LN", "18L-18L"]["difference"] == found["Post-LN", "18L-18L"]["chrF"] == "–"
    (row,) = [row for row in grid(text, "Runs") if row["run"] == "pre-18"]
    assert row["sacreBLEU \\[95%\\]"] == r"27.25 \[26.65, 27.65\]"  # 27.15 +- 0.5, the mean of the samples
    assert row["cost"] == "24 GPU-hours"  # three hours on eight
    assert row["updates"] == "200" and row["trained with"] == "a"
    assert row["log"] == "[log](table1/pre-18/train.log)"
    cell = results_by_place(as_json(capsys, runs))["deepnorm", "18L-18L"]["cells"]["bleu"]
    assert (cell["mean"], cell["sd"], cell["n"]) == (pytest.approx(MEAN), pytest.approx(SD), 3)
    assert cell["difference"] == pytest.approx(MEAN - 28.8)


def test_published_tables_hold_together():
    """Rows are told apart by the table's keys; sums of the papers' own hold."""
    for table in TABLES.values():
        trained = [tuple(row.facts[key] for key in table.keys) for row in table.rows if row.facts]
        assert len(set(trained)) == len(trained) > 0
        assert all(set(row.published) <= {column.key for column in table.columns} for row in table.rows)
    for row in TABLES["2"].rows:  # its averages are those of its two columns, but for rounding
        values = row.published
        assert abs((values["to_english"] + values["from_english"]) / 2 - values["bleu"]) < 0.11
    rows = {(row.facts["method"], row.facts["size"]): row for row in TABLES["normformer_clm"].rows}
    gain = rows["pre_ln", "1.3B"].published["valid"] - rows["normformer", "1.3B"].published["valid"]
    assert gain == pytest.approx(0.27)  # as the abstract has it
    complete, *others = (row.published["valid"] for row in TABLES["normformer_ablation"].rows)
    assert all(complete < other for other in others) and max(others) == others[-1]


def test_depths_of_the_runs_alone_stand_in_their_place(tmp_path, capsys):
    run(tmp_path, "table1", "a", layers=12, bleu=28.0)
    run(tmp_path, "opus100", "b", layers=18, score={"bleu": 28.0})
    for corpus, layers, bleu in (("wmt14_en_de", 3, 27.0), ("wmt14_en_fr", 6, 41.0)):
        run(tmp_path, "admin_wmt14", corpus, "admin", layers, bleu=bleu, corpus=corpus)
    header = list(grid(printed(capsys, tmp_path, "--table", "1"), "Overview")[0])
    assert header == ["method", "6L-6L", "12L-12L", "18L-18L", "50L-50L", "100L-100L"]
    rows = grid(printed(capsys, tmp_path, "--table", "opus100"), "Overview")
    assert [row["layers"] for row in rows] == ["12", "20", "36", "100", "200", "1000"]
    header = list(grid(printed(capsys, tmp_path, "--table", "admin_wmt14"), "Overview")[0])
    depths = ["3L-3L", "6L-6L", "12L-12L", "18L-18L", "60L-12L"]
    assert header[1:6] == [f"wmt14\\_en\\_de {depth}" for depth in depths] and len(header) == 13
    found = results_by_place(as_json(capsys, tmp_path, "admin_wmt14"))  # rows by corpus
    assert found["admin", "wmt14_en_fr 6L-6L"]["cells"]["bleu"]["difference"] == pytest.approx(-0.47)


def perplexities(root, name, lr, valid=None, method="normformer", seed=1, variant="scale_residual", **others):
    """A run of NormFormer's table of causal language models, 125M."""
    if valid is not None:
        sets = {"valid": {"perplexity": valid}, "test": {"perplexity": valid + 1}}
        others["score"] = {"kind": "perplexity", "sets": sets}
    others = {"size": "125M", "variant": variant} | others
    return run(root, others.pop("table", "normformer_clm"), name, method, 12, seed, lr=lr, **others)


def test_a_row_is_its_best_learning_rate(tmp_path, capsys):
    """Of four rates with two seeds at the best, and one that diverged; Pre-LN with one run to come."""
    perplexities(tmp_path, "low", "1e-4", 24.5)
    perplexities(tmp_path, "best-1", "1e-3", 20.31)
    perplexities(tmp_path, "best-2", "1e-3", 20.61, seed=2)
    perplexities(tmp_path, "lucky", "3e-3", 20.52)
    perplexities(tmp_path, "high", "6e-3", diverged="diverged at update 812\n")
    perplexities(tmp_path, "pre", "1e-3", 21.5, "pre_ln", variant="")
    perplexities(tmp_path, "pre-later", "3e-3", method="pre_ln", variant="", trained=False)
    perplexities(tmp_path, "post", "3e-3", method="post_ln", variant="", diverged="diverged at update 5\n")
    perplexities(tmp_path, "post-low", "1e-3", method="post_ln", variant="", diverged="diverged at update 9\n")
    text = printed(capsys, tmp_path, "--table", "normformer_clm")
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
    report = as_json(capsys, tmp_path, "normformer_clm")
    assert report["metric"]["higher_is_better"] is False and not report["warnings"]
    (best,) = (one for one in report["results"] if one["method"] == "normformer" and one["runs"])
    assert best["best"] == ["best-1", "best-2"] and len(best["runs"]) == 5
    cell = best["cells"]["valid"]
    assert cell["published"] == 20.11 and cell["difference"] == pytest.approx(20.46 - 20.11) and cell["n"] == 2


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


def test_warnings(tmp_path, capsys):
    """And miniatures are not compared with the paper; how many parameters there are the log says."""
    run(tmp_path, "table1", "a", bleu=28.0, batch_tokens=4096, paper_batch_tokens=524288)
    run(tmp_path, "table1", "b", score=score(28.0, kind="sacrebleu"))
    run(tmp_path, "table1", "c", "admin", bleu=28.0, smoke=True, batch_tokens=1, paper_batch_tokens=524288)
    run(tmp_path, "table1", "d", "dlcl", bleu=28.0, corpus="of DATA", paper_corpus="wmt17_en_de")
    said = "2026-11-21 10:00:01 | INFO | fairseq_cli.train | num. shared model params: 61,362,176 (num. trained: 1)\n"
    (tmp_path / "table1" / "a" / "train.log").write_text(log(("10:00:00", "11:00:00")) + said)
    (tmp_path / "table1" / "c" / "train.log").write_text(log(("10:00:00", "11:00:00")) + said)
    (tmp_path / "table1" / "c" / "command").write_text("fairseq-train data --ddp-backend fully_sharded")
    text, report = printed(capsys, tmp_path, "--table", "1"), as_json(capsys, tmp_path)
    assert "> **Miniature on generated data: numbers say nothing about the paper's.**" in text
    assert "difference" not in text and report["miniature"]
    assert all(result["cells"]["bleu"]["difference"] is None for result in report["results"])
    rows = {row["model"]: row["parameters"] for row in grid(text, "Beside the paper")}
    assert rows == {"DeepNorm": "61M", "Admin": "–", "DLCL": "–"}  # of one of several shards nothing is said
    assert report["warnings"] == [
        "same row and same seed, yet counted as several: a, b",
        "the published numbers are tokenised BLEU, these are not: b (sacrebleu)",
        "trained and tested on the corpus of DATA, the paper's is wmt17_en_de: d",
        "an update has 4096 tokens, the paper's 524288: a",
        "miniatures and runs in full stand in one table",
    ]


def test_significance_against_the_baseline(tmp_path, capsys):
    """A twin of the baseline, a far worse system, and one of another depth, which has no rival."""
    references = sentences(60)
    data = write_corpus(tmp_path / "corpus", {"test.de-en": references})
    for name, method, layers, rate in (
        ("base", "pre_ln", 18, 0.2),
        ("twin", "admin", 18, 0.2),
        ("worse", "deepnorm", 18, 0.8),
        ("alone", "deepnorm", 6, 0.2),
    ):
        folder = run(tmp_path, "table1", name, method, layers, bleu=28.0, command=f"fairseq-train {data} --arch x")
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
    monkeypatch.setitem(TABLES, "lm", read_tables(re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL).group(1))["lm"])
    run(tmp_path, "lm", "a", "pre_ln", 12, size="125M", score={"sets": {"test": {"perplexity": 20.5}}})
    text = printed(capsys, tmp_path, "--table", "lm")
    (row,) = grid(text, "Beside the paper")
    assert (row["model"], row["size"], row["perplexity"], row["difference"]) == ("Pre-LN", "125M", "20.50", "−0.59")
    assert "Lower is better" in text and "BLEU" not in text.split("\n## Notes")[0]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--table", "4"], "--table 4: no such table; choose one of 1, 2, 3, admin_wmt14, admin_iwslt14"),
        (["--table", "2"], "table2: holds no runs; record some with scripts/table2_opus100.sh"),
        (["--table", "1", "--baseline", "best"], "--baseline best: no such method"),
        (["--table", "1", "--out", "/"], "--out /: is a folder"),
        (["--table", "1", "--format", "md,html"], "--out"),
        (["--table", "1", "--format", "tex"], "--format tex: choose from md, html, json"),
    ],
)
def test_mistakes(words, message, runs):
    with pytest.raises(SystemExit) as stop:
        main(["report", str(runs), *words])
    assert message in str(stop.value) and "\n" not in str(stop.value)


def test_a_broken_file_is_named_and_nothing_is_written(tmp_path):
    """The mistakes in run.json are in test_recorded_runs.py."""
    folder = run(tmp_path, "table1", "a", bleu=28.0)
    (folder / "score.json").write_text('{"bleu": "high"}')
    with pytest.raises(SystemExit, match=re.escape(str(folder / "score.json"))):
        main(["report", str(tmp_path), "--table", "1", "--out", str(tmp_path / "report.md")])
    assert [path.name for path in tmp_path.iterdir()] == ["table1"]


# its pages: HTML that stands alone, Markdown within another page, the same bytes each time

HOSTILE = """fairseq-train x '</pre></details><script src="http://x.y/z.js">a("&amp;")</script>' _$%&#{}~^\\"""
VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Checks that every element is closed; keeps the elements with their attributes, and the text within each."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and data.strip():
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """IWSLT-14 at three depths, and a run of Table 1 with a hostile command, name and environment."""
    root = tmp_path_factory.mktemp("pages")
    for layers in (10, 20, 30):
        run(root, "iwslt14", f"deep-{layers}", layers=layers, bleu=29 + layers / 20)
        run(root, "iwslt14", f"post-{layers}", "post_ln", layers=layers, diverged="diverged at update 150")
    odd = ENVIRONMENT | {"hardware": "8 x <b>GPU</b> & 100% of_it", "commit": "{x}"}
    run(root, "table1", "a <i>&'\"|_name%20", bleu=28.0, command=HOSTILE, environment=odd, smoke=True)
    run(root, "table1", "b", "admin", bleu=28.0)
    return root


@pytest.fixture(scope="module")
def pages(recorded, tmp_path_factory):
    """Table -> its HTML."""
    folder = tmp_path_factory.mktemp("written")
    for table in ("1", "iwslt14"):
        main(["report", str(recorded), "--table", table, "--format", "html", "--out", str(folder / table)])
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_same_runs_same_bytes(recorded, pages, tmp_path, capsys):
    """Printed or written, alone or with other formats; only the links follow the file."""
    forms = ("md", "html", "json")
    main(["report", str(recorded), "--table", "1", "--format", "md,html,json", "--out", str(tmp_path / "all")])
    assert capsys.readouterr().out.splitlines() == [f"wrote {tmp_path}/all.{form}" for form in forms]
    for form in forms:
        text = (tmp_path / f"all.{form}").read_text()
        links = re.findall(r"[\w./-]*/b/train\.log", text)
        assert {(tmp_path / link).resolve() for link in links} == {recorded.resolve() / "table1" / "b" / "train.log"}
        start = links[0].removesuffix("table1/b/train.log")
        assert text.replace(start, "") == printed(capsys, recorded, "--table", "1", "--format", form)
    assert (tmp_path / "all.html").read_text() == pages["1"]  # in another folder at the same depth


@pytest.mark.parametrize("table", ["1", "iwslt14"])
def test_page_stands_alone(table, pages):
    page = Page(pages[table])
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert not page.all("link") and not page.all("script") and not page.all("iframe")
    assert all(image["src"].startswith("data:image/png;base64,") and image["alt"] for image in page.all("img"))
    assert "url(" not in page.texts["style"][0] and "@import" not in page.texts["style"][0]
    names = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(names)) == len(names)
    inner = {link["href"][1:] for link in page.all("a") if link["href"].startswith("#")}
    assert inner and inner <= set(names)
    assert len(page.all("h1")) == 1 and len(page.all("section")) == len(page.texts["h2"]) >= 7
    assert sum(attributes.get("class") == "scroll" for attributes in page.all("div")) == len(page.all("table"))


def test_figures_of_the_page(pages):
    """Loss curves; with IWSLT-14 the figure that its runs fill. Each is a PNG, as in test_figures."""
    titles = {table: Page(text).texts["h2"] for table, text in pages.items()}
    assert "Training loss" in titles["1"] and "Figure 6" not in titles["1"]
    spans = Page(pages["iwslt14"]).texts["span"]
    assert spans.count("diverged at update 150") == 9 and "(29.8)" in spans  # three runs in three tables; the paper's
    assert "Training loss" in titles["iwslt14"] and "Figure 6" in titles["iwslt14"]
    images = [base64.b64decode(image["src"].split(",")[1]) for image in Page(pages["iwslt14"]).all("img")]
    assert len(images) == 2 and all(image.startswith(b"\x89PNG") and len(image) > 10_000 for image in images)


def test_all_text_is_escaped(pages):
    page = Page(pages["1"])
    assert HOSTILE in page.texts["code"]
    assert "a <i>&'\"|_name%20" in page.texts["summary"]
    assert not page.all("i") and {tag for tag, _ in page.elements if tag == "b"} == {"b"}  # the letters of footnotes
    assert any("8 x <b>GPU</b> & 100% of_it" in text for text in page.texts["li"])
    (log,) = [link["href"] for link in page.all("a") if "name%2520" in link["href"]]
    assert re.fullmatch(r"[\w./%-]+", log)
    assert any(text.startswith("Miniature on generated data") for text in page.texts["p"])
    assert formats.escape("a|b_c*<d>\n`e`") == r"a\|b\_c\*\<d\> \`e\`"
