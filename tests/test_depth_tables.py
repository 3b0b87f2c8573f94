"""The depth study's page: its tables against numbers by hand, its pictures, from made-up records."""

import json
import math
from collections import Counter
from xml.etree import ElementTree

import pytest
from scipy import stats

from deepnet_fairseq.study import paper
from deepnet_fairseq.study.depth_study import read_plan, spent_hours
from deepnet_fairseq.study.depth_tables import (
    rows_of_agreement,
    rows_of_costs,
    rows_of_courses,
    rows_of_losses,
    rows_of_other_lengths,
    rows_of_rates,
    rows_of_stages,
    rows_of_summary,
    rows_of_winners,
)
from deepnet_fairseq.study.depth_verdicts import rows_of_misjudged, rows_of_verdicts, said_of_verdicts
from deepnet_fairseq.study.figures import depth_study
from deepnet_fairseq.study.rank_correlation import agreement
from deepnet_fairseq.study.runs import recorded_below
from scripts.records import main

from .test_depth_study import PLAN, cell_run

SVG = "{http://www.w3.org/2000/svg}"


def by_name(*values):
    return dict(zip("abcdefghij", values, strict=False))


def test_four_methods_by_hand():
    """The 24 orders of four: rho is 1 - d2 / 10 with d2 = 4, tau 1 - i / 3 with two inversions."""
    told = agreement(by_name(1, 2, 3, 4), by_name(20.0, 10.0, 40.0, 30.0) | {"elsewhere": 1})
    assert told.methods == ("a", "b", "c", "d")
    assert (told.spearman, told.spearman_p) == (pytest.approx(0.6), pytest.approx(10 / 24))
    assert (told.kendall, told.kendall_p) == (pytest.approx(1 / 3), pytest.approx(18 / 24))
    assert told.least_p == pytest.approx(2 / 24)
    assert agreement(by_name(4, 3, 2, 1), by_name(1, 2, 3, 4)).spearman == pytest.approx(-1)
    assert math.isnan(agreement(by_name(1, 1, 1), by_name(1, 2, 3)).spearman)


def test_ties_and_drawn_orders_are_scipys():
    """Failed trainings tie at the end; of ten methods p is drawn: beside Student's t and the normal, to 0.02."""
    ours = by_name(3.0, 1.0, -math.inf, 7.0, -math.inf, 2.5, 4.0, 4.5, 9.0, 0.5)
    theirs = by_name(2.0, 2.0, 0.0, 8.0, 3.0, 1.0, 6.0, 9.0, 7.0, 5.0)
    told = agreement(ours, theirs)
    ranks = [-99 if math.isinf(value) else value for value in ours.values()]
    rho, tau = stats.spearmanr(ranks, list(theirs.values())), stats.kendalltau(ranks, list(theirs.values()))
    assert (told.spearman, told.kendall) == (pytest.approx(rho.statistic), pytest.approx(tau.statistic))
    assert told.spearman_p == pytest.approx(rho.pvalue, abs=0.02) and math.isnan(told.least_p)
    assert told.kendall_p == pytest.approx(tau.pvalue, abs=0.02)


RISES = {"kind": "at risk", "update": 40, "evidence": "it rises"}
CHECKS = {"check": {"verdict": "stable", "findings": []}, "warned": {"verdict": "at risk", "findings": [RISES]}}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Part of a study: three seeds at 6 layers, Post-LN stuck at 18, a longer training, one at the edge."""
    root = tmp_path_factory.mktemp("study")

    def add(*words, check="check", **others):
        (cell_run(root, *words, **others) / "check.json").write_text(json.dumps(CHECKS[check]))

    for seed in (1, 2, 3):
        add("deepnorm", 6, 0.002, 7.0 + 0.1 * seed, seed)
        add("pre_ln", 6, 0.004, 6.9 + 0.1 * seed, seed)
        add("admin", 6, 0.001, 8.0 + 0.1 * seed, seed)
    for rate, loss in ((0.001, 7.8), (0.004, 7.5)):
        add("deepnorm", 6, rate, loss)
    add("deepnorm", 6, 0.008, 9.0, check="warned", diverged="diverged at update 70")
    add("deepnorm", 6, 0.002, 6.0, updates=3000, bleu=1.26)
    for method, loss in (("deepnorm", 7.0), ("pre_ln", 7.2), ("admin", 7.4), ("complete_p", 7.3)):
        add(method, 18, 0.002, loss, check="warned" if method == "admin" else "check")
    for rate in (0.001, 0.002):
        add("post_ln", 18, rate, 9.0, stuck="stuck at update 250: learnt no more than how often each word occurs")
    return root


@pytest.fixture(scope="module")
def runs(study):
    return recorded_below(study / "depth_study", over=True)


def test_losses_rates_bleu(runs):
    """The lowest at 18 layers first; CompleteP is Pre-LN at 6; longer trainings have a table of their own."""
    head, *rows = rows_of_losses(runs)
    assert head == ["method", "6L-6L", "18L-18L"]
    assert rows == [
        ["DeepNorm", "7.200 (7.100 to 7.300, 3 seeds)", "7.000"],
        ["Pre-LN", "7.100 (7.000 to 7.200, 3 seeds)", "7.200"],
        ["CompleteP", "7.100 (7.000 to 7.200, 3 seeds)", "7.300"],
        ["Admin", "8.200 (8.100 to 8.300, 3 seeds)", "7.400"],
        ["Post-LN", "-", "stuck (2 rates)"],
    ]
    rates = {row[0]: row[1:] for row in rows_of_rates(runs)}
    assert rates["DeepNorm"] == ["0.002", "only 0.002"] and "Post-LN" not in rates
    head, *rows = rows_of_summary(runs)
    assert head == ["method", "6L-6L", "18L-18L", "6L-6L, 3,000; BLEU"]
    assert [row[1] for row in rows if row[0] == "CompleteP"] == ["as Pre-LN"]
    assert rows[0] == ["DeepNorm", "7.20 (0.002)", "7.00 (only 0.002)", "6.00; 1.3"] and rows[1][-1] == "-"
    (row,) = rows_of_other_lengths(runs)[1:]
    assert row[:6] == ["6L-6L", "3,000", "DeepNorm", "6.000", "1.3", "only 0.002"]
    assert row[6:] == ["7.200 (7.100 to 7.300, 3 seeds)", "-", "0.50"]


def test_a_short_training_of_the_deepest_models_has_its_course_and_is_no_failure(tmp_path):
    """Above guessing after 100 updates: in no table of what failed; after 500 that is what it is."""
    cells = ("pre_ln", 6, 500, 7.0), ("deepnorm", 50, 100, 9.5), ("post_ln", 50, 500, 9.25)
    for method, layers, updates, loss in cells:
        folder = cell_run(tmp_path, method, layers, 0.002, loss, updates=updates, guessing=8.9)
        (folder / "check.json").write_text(json.dumps(CHECKS["check"]))
    spent = {"training": {"processor_seconds": 1800.0, "peak_memory_bytes": 2e9}}
    (tmp_path / "depth_study" / "deepnorm-50-lr0.002-seed1-updates100" / "spent.json").write_text(json.dumps(spent))
    runs = recorded_below(tmp_path / "depth_study", over=True)
    short, whole = rows_of_courses(runs)[1:]
    assert short == ["50L-50L", "DeepNorm", "0.002", "100", "-", "-", "-", "9.50", "2.0", "18.0"]
    assert whole[1:4] == ["Post-LN", "0.002", "500"] and whole[-3:] == ["9.25", "-", "3.6"]
    for run in runs:  # the first attempt was killed before it was added up
        if run.facts["updates"] == 100:
            times = [["2026-11-24 10:00:00", "2026-11-24 11:00:00"], ["2026-11-24 12:00:00", "2026-11-24 12:30:00"]]
            run.parts["spent"]["training"]["attempts"], run.parts["log"]["attempts"] = 1, times
    assert rows_of_courses(runs)[1][-2:] == ["2.0", "54.0"]
    assert rows_of_other_lengths(runs)[1:] == [] and [row[0] for row in rows_of_misjudged(runs)[1:]] == [
        "post_ln-50-lr0.002-seed1"
    ]
    assert "0 of the 1 cells that failed" in said_of_verdicts(runs)
    assert sum(int(cell) for row in rows_of_verdicts(runs)[1:] for cell in row[1:]) == 2


def test_ties_by_seeds(runs):
    """Ranges that overlap, 7.1 to 7.3 and 7.0 to 7.2; one seed says nothing."""
    assert rows_of_winners(runs)[1:] == [
        ["6L-6L", "Pre-LN", "7.100", "DeepNorm", "Admin", "-"],
        ["18L-18L", "DeepNorm", "7.000", "-", "-", "Pre-LN, CompleteP, Admin"],
    ]


def test_agreement_with_the_paper(runs):
    """At 18 layers ours are DeepNorm, Pre-LN, Admin, Post-LN; Figure 6 at 20: DeepNorm, Admin, Pre-LN, Post-LN."""
    rows = {tuple(row[:2]): row[2:] for row in rows_of_agreement(runs)[1:]}
    assert [paper.FIGURE6[name][1] for name in ("deepnorm", "admin", "pre_ln", "post_ln")] == [30.9, 29.2, 29.1, 0.1]
    assert rows["18L-18L", "Figure 6, 20L-20L"] == ["4", "1", "0.80", "0.33", "0.67", "0.33", "0.083"]
    # Table 1 has 28.8, 28.8, 28.1, diverged: DeepNorm and Admin share a rank
    assert rows["18L-18L", "Table 1, 18L-18L"][:2] == ["4", "1"]
    assert rows["6L-6L", "Table 1, 6L-6L"][:2] == ["3", "0"]
    assert not any("updates" in place for place, _ in rows)  # one method alone has no rank


def test_a_further_rate_of_one_seed_is_no_best(tmp_path):
    """Lowest by chance, it is not compared beside three seeds; while there are no others, it is."""
    cell_run(tmp_path, "keel", 6, 0.004, 7.5)
    cell_run(tmp_path, "keel", 6, 0.0028, 7.4)
    (row,) = rows_of_losses(recorded_below(tmp_path / "depth_study", over=True))[1:]
    assert row == ["Keel", "7.400"]
    for seed, loss in ((2, 7.7), (3, 7.6)):
        cell_run(tmp_path, "keel", 6, 0.004, loss, seed=seed)
    (row,) = rows_of_losses(recorded_below(tmp_path / "depth_study", over=True))[1:]
    assert row == ["Keel", "7.600 (7.500 to 7.700, 3 seeds)"]


def test_slow_cells_are_told_apart(tmp_path):
    """One stuck below the best rate is slow; one stuck above, or diverged below, is not."""
    check = {"verdict": "stable", "findings": []}
    for rate, ending in (
        (0.001, {"stuck": "stuck at update 250"}),
        (0.0005, {"diverged": "diverged at update 7"}),
        (
            0.004,
            {"stuck": "stuck at update 250"},
        ),
    ):
        folder = cell_run(tmp_path, "pre_ln", 6, rate, 9.0, **ending)
        (folder / "check.json").write_text(json.dumps(check))
    (cell_run(tmp_path, "pre_ln", 6, 0.002, 7.0) / "check.json").write_text(json.dumps(check))
    said = said_of_verdicts(recorded_below(tmp_path / "depth_study", over=True))
    assert "warned of 0 of the 3 cells that failed" in said and "Of the 3 that it missed 1 were stuck" in said


def test_confusion_matrix(runs):
    head, *rows = rows_of_verdicts(runs)
    counts = {row[0]: dict(zip(head[1:], map(int, row[1:]), strict=True)) for row in rows}
    assert counts["at risk"] == {"diverged": 1, "stuck": 0, "no number": 0, "trained": 1}
    assert counts["stable"] == {"diverged": 0, "stuck": 2, "no number": 0, "trained": 15}
    assert sum(sum(row.values()) for row in counts.values()) == len(runs)
    assert rows_of_misjudged(runs)[1:] == [
        ["post_ln-18-lr0.001-seed1", "stable", "stuck at update 250", "none learns", "-"],
        ["post_ln-18-lr0.002-seed1", "stable", "stuck at update 250", "none learns", "-"],
        ["admin-18-lr0.002-seed1", "at risk", "7.400 bits", "the best", "it rises"],
    ]
    assert "warned of 1 of the 3 cells that failed and of 1 of the 16 that trained: right on 16 of 19, where" in (
        said := said_of_verdicts(runs)
    )
    assert (
        "\"stable\" of all is right on 16. Of Post-LN's 2 failures it warned of 0, of the other methods' 1 of 1."
        in said
    )
    assert "too low" not in said  # no rate of Post-LN learns, so none is below the best


def test_costs_and_what_is_left_out(runs):
    """Each cell is of one stage; half an hour each, as cell_run has it; an empty study leaves out the whole plan."""
    rows = rows_of_stages(read_plan(PLAN), runs)
    last = rows[-1]
    assert sum(int(row[2]) for row in rows[1:-1]) == int(last[2]) == len(runs)
    assert float(last[3]) == pytest.approx(spent_hours(runs)) == len(runs) / 2
    assert "of no stage" not in [row[1] for row in rows]
    assert Counter(run.layers for run in runs) == {6: 13, 18: 6}
    table = {row[0]: row[1:] for row in rows_of_costs(runs)}
    assert table["all"] == ["6.50 (13)", "3.00 (6)", "9.50 (19)"] and table["Post-LN"] == ["-", "1.00 (2)", "1.00 (2)"]
    nothing = rows_of_stages(read_plan(PLAN), [])
    assert [row[2] for row in nothing[1:]] == ["0"] * (len(nothing) - 1)
    assert {str(6 * 3), str(13 * 3)} <= {row[4] for row in nothing}  # the other methods at three rates, and more in all
    assert int(nothing[-1][4]) > 19 * 3 + 6


@pytest.mark.parametrize("draw", [depth_study.loss_by_depth, depth_study.loss_by_rate])
def test_pictures(draw, runs, tmp_path):
    """Small, on white, with every method's name; the same runs give the same bytes, without a date."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        draw(runs, tmp_path / name / "picture.svg")
    written = (tmp_path / "one" / "picture.svg").read_bytes()
    assert written == (tmp_path / "two" / "picture.svg").read_bytes() and len(written) < 70_000
    root = ElementTree.fromstring(written)
    words = {text.text for text in root.iter(f"{SVG}text")}
    assert {"DeepNorm", "Post-LN", "Admin", "Pre-LN", "CompleteP"} <= words
    assert "diverged or stuck" in words
    background = next(root.iter(f"{SVG}path"))
    assert "fill: #ffffff" in background.get("style") and b"<dc:date>" not in written
    draw(runs, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes()[:4] == b"\x89PNG"


def test_picture_of_longer_trainings(runs, tmp_path):
    """On the way, and hollow where a short one ends."""
    depth_study.loss_by_length(runs, tmp_path / "picture.svg")
    words = {text.text for text in ElementTree.parse(tmp_path / "picture.svg").iter(f"{SVG}text")}
    assert {"DeepNorm", "6L-6L", "a training that ends there"} <= words and "Pre-LN" not in words


def test_page_is_rendered(study, tmp_path, capsys):
    """Of records alone, between its marks."""
    results = tmp_path / "results"
    for folder in (study / "depth_study").iterdir():
        (folder / "environment.json").write_text(json.dumps({"commit": "abc1234", "modified": False, "versions": {}}))
    main(["keep", str(study), str(results / "runs")])
    marks = ("depth_study", "loss_by_rate", "stages", "right", "misjudged")
    blocks = "".join(f"<!-- report {name} -->\n<!-- /report {name} -->\n" for name in marks)
    (results / "depth_study.md").write_text(f"before\n{blocks}after\n")
    main(["render", str(results)])
    page = (results / "depth_study.md").read_text()
    assert page.startswith("before\n") and page.endswith("after\n")
    assert "| DeepNorm | 7.200 (7.100 to 7.300, 3 seeds) | 7.000 |" in page and "abc1234" in page
    assert "(figures/loss_by_rate.svg)" in page and (results / "figures" / "loss_by_rate.svg").exists()
