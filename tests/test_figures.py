"""Recorded runs -> the DeepNet paper's Figures 3-8 and the quickstart's losses by depth, `deepnet figures`."""

from __future__ import annotations

import math
import re

import matplotlib.image
import numpy as np
import pytest
from PIL import Image

from deepnet_fairseq.analysis import paper
from deepnet_fairseq.analysis.figures import FIGURES, chosen, losses
from deepnet_fairseq.analysis.figures.sheet import Sheet, number
from deepnet_fairseq.analysis.recorded_run import RecordedRun, runs_of
from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError

from .support.recorded import every_figure, falling, record, update


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Runs of every figure, and what the command made of them."""
    root = tmp_path_factory.mktemp("recorded") / "runs"
    every_figure(root)
    main(["figures", str(root)])
    return root


@pytest.mark.parametrize("figure", sorted(FIGURES))
def test_pictures(figure, drawn):
    """A PNG of many colours, with its numbers beside it."""
    path = drawn / f"figure{figure}.png"
    picture = matplotlib.image.imread(path)
    assert picture.shape[0] > 300 and picture.shape[1] > 400
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 20
    assert 0.01 < (picture[..., :3].min(axis=2) < 0.9).mean() < 0.5
    text = path.with_suffix(".txt").read_text()
    assert text.startswith(f"Figure {figure}: ") and f"paper: {paper.SETTING[figure]}" in text
    assert path.stat().st_size < 300_000


def cells(text, *start):
    """The other cells of the one row that starts with these."""
    rows = [re.split(r" {2,}", row.strip()) for row in text.splitlines()]
    (found,) = [row[len(start) :] for row in rows if tuple(row[: len(start)]) == start]
    return found


def test_figure_3_numbers(drawn):
    text = (drawn / "figure3.txt").read_text()
    assert cells(text, "5", "Post-LN") == ["18L-18L", "1.30", "0.2"]
    assert cells(text, "0", "Post-LN-init") == ["18L-18L", "1.80", "2.25"]
    assert cells(text, "6", "Post-LN") == ["0.600", "0.630 to 0.740"]
    assert cells(text, "Post-LN-init", "18L-18L") == ["200", "6.50", "3.87"]


def test_figure_4_numbers(drawn):
    """Means over the branches of both stacks; other LayerNorms, and gradients of single weights, do not count."""
    text = (drawn / "figure4.txt").read_text()
    tables = text.split("\n\n")
    assert cells(tables[1], "Post-LN, warm-up", "2") == ["2.00", "0.250", "0.1", "0.00442"]
    assert cells(tables[2], "Post-LN, no warm-up", "2") == ["10.0", "1.25", "24.7", "1.09"]
    assert cells(tables[3], "Post-LN-init, warm-up", "2") == ["9.00", "1.12", "23.8", "1.05"]
    assert cells(tables[4], "Post-LN, warm-up", "18") == ["2", "0.200", "0.815"]
    assert cells(tables[4], "Post-LN, warm-up", "1") == ["2", "0.0300", "0.003"]


def test_figure_5_numbers(drawn):
    text = (drawn / "figure5.txt").read_text()
    assert cells(text, "Post-LN", "measured")[:2] == ["6 to 50", "1.10"]
    assert cells(text, "DeepNorm", "measured")[:2] == ["6 to 50", "0.50"]
    assert cells(text, "Post-LN", "paper")[:2] == ["6 to 100", "1.14"]
    assert cells(text, "50") == [number(50**0.6), number(0.135 / 0.0049), "27.5"]
    assert cells(text, "100")[:2] == ["-", "57.1"]


def test_figure_6_marks_what_diverged(drawn):
    rows = (drawn / "figure6.txt").read_text().splitlines()
    columns = rows[2].split()
    mine = next(row for row in rows if row.startswith("Post-LN  ")).split()
    assert (mine[columns.index("6")], mine[columns.index("50")]) == ("30.0", "x")
    theirs = next(row for row in rows if row.startswith("Admin, paper")).split()[1:]
    assert (theirs[columns.index("6")], theirs[columns.index("10")]) == ("-", "28.8")


def test_figure_7_numbers(drawn):
    text = (drawn / "figure7.txt").read_text()
    assert cells(text, "lr", "5e-4", "measured") == ["18L-18L", "200", "5.00", "5.00"]
    assert cells(text, "lr", "5e-4", "paper")[-1] == "3.98"
    assert sorted(["1e-3", "256x4k", "1.5e-3", "64"], key=losses.magnitude) == ["1e-3", "1.5e-3", "64", "256x4k"]


def test_figure_8_numbers(drawn):
    text = (drawn / "figure8.txt").read_text()
    assert cells(text, "DeepNorm", "3")[0] == "5.00" and cells(text, "DeepNorm", "3")[2] == "20.00"
    assert cells(text, "DeepNorm, paper", "5")[0] == "3.67"
    assert cells(text, "12", "DeepNorm") == [number(20 + 5 * math.log10(12)), "25.3"]


def test_only_some_figures_elsewhere(drawn, tmp_path, capsys):
    """The same runs give the same bytes."""
    main(["figures", str(drawn), "--only", "8,5", "--out", str(tmp_path / "new" / "out")])
    files = sorted((tmp_path / "new" / "out").iterdir())
    assert [path.name for path in files] == ["figure5.png", "figure5.txt", "figure8.png", "figure8.txt"]
    assert all(path.read_bytes() == (drawn / path.name).read_bytes() for path in files)
    assert capsys.readouterr().out.index("Figure 8") == 0
    assert chosen(drawn, None) == [3, 4, 5, 6, 7, 8]


@pytest.fixture
def text_only(monkeypatch):
    """A picture takes most of a second, and these tests look at numbers."""
    monkeypatch.setattr(Sheet, "save", lambda self, path: None)


def test_a_diverged_run_needs_no_score(tmp_path, text_only):
    folder = record(tmp_path, 6, "run", "post_ln", 50)
    with pytest.raises(UserError, match=r"score\.json: no such file"):
        FIGURES[6]([RecordedRun.read(folder)], tmp_path / "a.png")
    (folder / "diverged").touch()
    text = FIGURES[6]([RecordedRun.read(folder)], tmp_path / "a.png")
    assert " x " in text and "no run of: DeepNorm" in text
    assert "diverged" in FIGURES[8]([RecordedRun.read(folder)], tmp_path / "b.png")


def test_not_finite_updates_are_marked_not_fitted(tmp_path, text_only):
    runs = []
    for layers, value in ((6, 0.1), (12, 0.2), (24, 0.4), (50, None)):
        folder = record(tmp_path, 5, str(layers), "post_ln", layers, update(value), update=10)
        runs.append(RecordedRun.read(folder))
    text = FIGURES[5](runs, tmp_path / "a.png")
    assert cells(text, "Post-LN", "measured")[:2] == ["6 to 24", "1.00"]
    assert "no run of: DeepNorm (at two depths or more)" in text


def test_a_run_that_diverged_before_its_first_validation(tmp_path, text_only):
    folder = record(tmp_path, 7, "run", panel="lr", value="1e-2", part="curve")
    (folder / "diverged").touch()
    text = FIGURES[7]([RecordedRun.read(folder)], tmp_path / "a.png")
    assert cells(text, "lr", "1e-2", "measured") == ["18L-18L", "0", "- (diverged)", "-"]
    assert "no run of: batch; size" in text
    folder = record(tmp_path, 3, "run", "post_ln", part="curve")
    (folder / "diverged").touch()
    text = FIGURES[3]([RecordedRun.read(folder)], tmp_path / "b.png")
    assert cells(text, "Post-LN", "18L-18L") == ["0", "- (diverged)", "12.9"]
    assert "no run of: post_ln, profile; post_ln_init, profile; post_ln_init, curve" in text


# the quickstart's runs


@pytest.fixture
def runs(tmp_path):
    """Two depths and methods, as quickstart.sh lays them out."""
    for layers, last in ((18, 400), (50, 800)):
        for method, loss, bleu in (("deepnorm", 3.0 + layers / 100, 36.8), ("post_ln", 8.04, None)):
            made = record(tmp_path, "depth", method, method, layers, losses=falling(loss, last), bleu=bleu, seed=1)
            place = tmp_path / "quickstart" / f"{layers}L-{layers}L-{last}-updates-seed1"
            place.mkdir(exist_ok=True)
            made.rename(place / method)
    return tmp_path


def test_losses_by_depth(runs):
    """The text says where each run ends, the title the numbers and no more."""
    text = losses.depth(runs_of(runs, "depth"), runs / "a.png")
    rows = [line.split() for line in text.splitlines() if line.startswith(("18L", "50L"))]
    assert [row[:6] for row in rows] == [
        ["18L-18L", "DeepNorm", "1", "400", "3.18", "36.80"],
        ["18L-18L", "Post-LN", "1", "400", "8.04", "-"],
        ["50L-50L", "DeepNorm", "1", "800", "3.50", "36.80"],
        ["50L-50L", "Post-LN", "1", "800", "8.04", "-"],
    ]
    found = losses.finding(runs_of(runs, "depth"))
    assert found == "18 and 50 layers: DeepNorm ends at 3.2 and 3.5 bits; Post-LN ends at 8.0 bits"


def test_picture_of_few_colours(runs):
    """As wide as two pages of GitHub, half the size or less."""
    sizes = {}
    for name, words in (("all", ()), ("few", ("--colours", "64"))):
        main(["figures", str(runs), "--only", "depth", "--out", str(runs / name), *words])
        sizes[name] = (runs / name / "depth.png").read_bytes()
    assert len(sizes["few"]) < 0.6 * len(sizes["all"])
    with Image.open(runs / "few" / "depth.png") as picture:
        assert picture.width == 1800 and len(picture.getcolors()) <= 64
    with pytest.raises(SystemExit, match="--colours 1: must be 2 to 256"):
        main(["figures", str(runs), "--only", "depth", "--colours", "1"])
