"""Tests of figures of recorded runs: DeepNet's Figures 3-8, losses by depth, NormFormer's Figures 3 and 4."""

from __future__ import annotations

import json

import matplotlib.image
import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study import paper
from deepnet_fairseq.study.figures import EVERY, fitted, methods_of_panel, parse_figures, redraw
from deepnet_fairseq.study.plots import as_markdown, style_of
from deepnet_fairseq.study.runs import RecordedRun

from ..support.recorded import every_figure, falling, record


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Provide recorded runs of every figure, drawn by `deepnet report`."""
    root = tmp_path_factory.mktemp("recorded") / "runs"
    every_figure(root)
    main(["report", str(root), "--figures"])
    return root


def check_picture(path):
    """Check the size of a PNG; return the text of its numbers."""
    picture = matplotlib.image.imread(path)
    assert picture.shape[0] > 300 and picture.shape[1] > 400 and path.stat().st_size < 100_000
    return path.with_suffix(".md").read_text()


def table(text, number):
    """Return the rows of a text's table number 1, 2, ...: first cell -> header -> cell."""
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    header, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in tables[number - 1])
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


NUMBERS = {  # figure -> (number of the table, first cell, column) -> cell
    3: {(1, "5", "Post-LN"): "1.30 (0.2)", (1, "0", "Post-LN-init"): "1.80 (2.25)",
        (2, "6", "Post-LN"): "0.600 (0.630 to 0.740)", (3, "2", "Post-LN-init"): "6.50 (6.7)"},
    4: {(1, "2", "Post-LN, warm-up"): "2.00 (0.0354)", (2, "2", "Post-LN, no warm-up"): "10.0 (8.73)",
        (3, "2", "Post-LN-init, warm-up"): "9.00 (8.41)", (4, "18", "Post-LN, warm-up"): "0.200 (0.815)",
        (4, "1", "Post-LN, warm-up"): "0.0300 (0.003)"},
    5: {(1, "50", "DeepNorm"): "0.00707 (0.0049)", (2, "Post-LN", "slope"): "1.10", (2, "DeepNorm", "slope"): "0.50"},
    6: {(1, "6", "DeepNorm"): "30.0", (1, "10", "Admin"): "– (28.8)", (1, "50", "Post-LN"): "diverged (0)"},
    7: {(1, "200", "5e-4"): "5.00"},
    8: {(1, "12", "DeepNorm"): "25.4 (25.3)", (2, "DeepNorm", "slope"): "5.00",
        (2, "DeepNorm, paper", "slope"): "3.67", (2, "DeepNorm, paper", "R2"): "0.934"},
}  # fmt: skip


@pytest.mark.parametrize("figure", NUMBERS)
def test_pictures_and_numbers(figure, drawn):
    """Figures show the numbers worked out by hand; other LayerNorms and single weights are left out of Figure 4."""
    text = check_picture(drawn / f"figure{figure}.png")
    assert text.startswith(f"Figure {figure}: ") and f"Its setting: {paper.SETTING[figure]}." in text
    for (number, row, column), expected in NUMBERS[figure].items():
        assert table(text, number)[row][column] == expected, (number, row, column)


def test_only_some_figures_elsewhere(drawn, tmp_path):
    """`--figures 8,5 --out` writes these figures alone, with the same bytes as before."""
    main(["report", str(drawn), "--figures", "8,5", "--out", str(tmp_path / "new" / "out")])
    assert [path.name for path in sorted((tmp_path / "new" / "out").iterdir())] == [
        "figure5.md", "figure5.png", "figure8.md", "figure8.png"]  # fmt: skip
    assert (tmp_path / "new" / "out" / "figure5.png").read_bytes() == (drawn / "figure5.png").read_bytes()
    assert parse_figures(drawn, None) == [3, 4, 5, 6, 7, 8] and parse_figures(drawn, "4, normformer4") == [
        4,
        "normformer4",
    ]


def directions(**bleu):
    scores = {name.replace("_", "-"): {"bleu": value} for name, value in bleu.items()}
    return {"sets": {"flores": {"directions": scores}}}


def test_bleu_by_language(tmp_path):
    """BLEU of a language is the mean over its source languages, for both systems."""
    record(tmp_path, 10, "deep", layers=100, score=directions(de_en=20.0, en_de=10.0, de_fr=0.0))
    record(tmp_path, 10, "m2m100", "pre_ln", 24, score=directions(de_en=12.0), system="M2M-100")
    text = redraw(tmp_path, 10, tmp_path)
    assert list(table(text, 1)["1"].values())[1:] == ["20.0", "12.0"] and table(text, 1)["3"]["deep 100L-100L"] == "0"


def text_of(figure, *folders):
    """Return the text of a figure of some runs, without the picture."""
    return as_markdown(EVERY[figure]([RecordedRun(folder) for folder in folders]))


def test_a_diverged_run_needs_no_score(tmp_path):
    folder = record(tmp_path, 6, "run", "post_ln", 50)
    with pytest.raises(UserError, match=r"score\.json: holds no number"):
        text_of(6, folder)
    (folder / "diverged").touch()
    assert table(text_of(6, folder), 1)["50"]["Post-LN"] == "diverged (0)"
    assert table(text_of(8, folder), 1)["100"]["Post-LN"] == "diverged"


# The quickstart's runs.


@pytest.fixture
def runs(tmp_path):
    """Provide runs of two depths and two methods, in the folders that quickstart.sh makes."""
    for layers, last in ((18, 400), (50, 800)):
        for method, loss, bleu in (("deepnorm", 3.0 + layers / 100, 36.8), ("post_ln", 8.04, None)):
            made = record(tmp_path, "depth", method, method, layers, losses=falling(loss, last), bleu=bleu, seed=1)
            place = tmp_path / "quickstart" / f"{layers}L-{layers}L-{last}-updates-seed1"
            place.mkdir(exist_ok=True)
            made.rename(place / method)
    return tmp_path


def test_losses_by_depth(runs):
    """The figure of losses has one panel for each depth, and shows stuck runs to their end."""
    text = redraw(runs, "depth", runs)
    assert check_picture(runs / "depth.png") == text
    assert list(table(text, 1)["400"].values()) == ["400", "3.18", "8.04"]
    assert table(text, 2)["800"]["DeepNorm"] == "3.50"


# NormFormer's figures.

PLACES = ("ffn.inner", "self_attn.outer", "self_attn.inner.c")


def model(root, name, method, probes, layers=12, stacks=("decoder",)):
    """Write a run of a model with these stacks."""
    folder = record(root, "normformer3", name, method, probes=probes)
    facts = {"method": method} | {f"{stack}_layers": layers for stack in stacks}
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def gradients(at: dict, layers=12, stack="decoder"):
    """Return gradients by update: fc2's of layer l (from 0) is size * slope**l."""
    return {
        update: {
            "gradient_l1": {f"{stack}.{l + 1}.ffn.fc2": size * slope**l for l in range(layers)} | {f"{stack}.1": 99.0}
        }
        for update, (size, slope) in at.items()
    }


def scales(at: dict, layers=12, stack="decoder", places=PLACES):
    """Return learned scales by update: the median of layer l is base + l / 100, the range 0.1 to either side."""
    return {
        update: {
            "learned_scale": {
                f"{stack}.{l}.{place}.{name}": base + l / 100 + more
                for l in range(1, layers + 1)
                for place in places
                for name, more in (("median", 0), ("min", -0.1), ("max", 0.1))
            }
        }
        for update, base in at.items()
    }


def both(one: dict, other: dict) -> dict:
    return {update: one.get(update, {}) | other.get(update, {}) for update in one.keys() | other.keys()}


@pytest.fixture(scope="module")
def normformer(tmp_path_factory):
    """Provide runs of Post-LN, Pre-LN and NormFormer, drawn by `deepnet report`."""
    root = tmp_path_factory.mktemp("recorded")
    model(root, "a", "post_ln", gradients({0: (1.0, 2.0), 500: (3.0, 2.0)}))
    model(root, "b", "pre_ln", gradients({0: (1.0, 0.5), 500: (3.0, 0.5), 5000: (1.0, 0.25)}))
    learned = scales({0: 1.0, 5000: 0.2})
    model(root, "c", "normformer", both(gradients({0: (2.0, 1.0), 500: (4.0, 1.0), 5000: (9.0, 1.0)}), learned))
    main(["report", str(root), "--figures"])
    return root


def test_gradients_by_layer(normformer):
    """Gradients by layer are the mean of the first 1,000 updates; later updates show in the table of updates alone."""
    text = check_picture(normformer / "normformer3.png")
    assert text.startswith("NormFormer, Figure 3: mean |element| of fc2's gradient") and "Post-LN far below 1" in text
    by_layer, ratios = table(text, 1), table(text, 2)
    assert (by_layer["1"]["Post-LN"], by_layer["12"]["Post-LN"], by_layer["3"]["Pre-LN"]) == ("2.00", "4096", "0.500")
    assert [row["NormFormer"] for row in by_layer.values()] == ["3.00"] * 12
    assert list(ratios["500"].values())[1:] == ["0.000488", "2048", "1.00"]
    assert list(ratios["5000"].values())[1:] == ["–", "4194304", "1.00"]


def test_learned_scales(normformer):
    """Learned scales are those of the last probed update, with the paper's values in brackets."""
    text = check_picture(normformer / "normformer4.png")
    gain, attention, heads = (table(text, number) for number in (1, 2, 3))
    cells = [gain[layer]["NormFormer"] for layer in ("1", "6", "12")]
    assert cells == ["0.210 [0.110 to 0.310] (0.220)", "0.260 [0.160 to 0.360]", "0.320 [0.220 to 0.420] (0.900)"]
    assert [row["NormFormer"].endswith("(0.250 to 0.380)") for row in attention.values()] == [False] + [True] * 11
    assert all(row["NormFormer"].endswith("(0.350 to 1.80)") for row in heads.values()) and len(heads) == 12


# The parts of figures: colours that everybody can tell apart, fits through points.


def test_methods_of_one_panel_stay_apart():
    """Every method is in a panel; the methods of a panel differ in colour or marker."""
    groups = [methods_of_panel(norm) for norm in ("post", "none", "pre")]
    assert all(group[0] == "deepnorm" for group in groups)
    assert sorted(name for group in groups for name in group[1:]) == sorted(METHODS.keys() - {"deepnorm"})
    for group in groups:
        styles = [(style.colour, style.marker) for style in map(style_of, group)]
        assert len(set(styles)) == len(styles) > 1


def test_laws():
    law = fitted({10: 3, 100: 5})
    assert (law.slope, law.intercept) == pytest.approx((2, 1))
    law = fitted({n: 0.003 * n**1.25 for n in (6, 18, 100)}, power=True)
    assert (law.slope, 10**law.intercept, law.rvalue) == pytest.approx((1.25, 0.003, 1))
