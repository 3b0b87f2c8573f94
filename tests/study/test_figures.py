"""Tests of figures of recorded runs: DeepNet's Figures 3-8, losses by depth, NormFormer's Figures 3 and 4."""

from __future__ import annotations

import json
from collections.abc import Iterable

import matplotlib.image
import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.study import paper
from deepnet_fairseq.study.figures import EVERY, fitted, methods_of_panel, parse_figures, redraw
from deepnet_fairseq.study.plots import as_markdown, style_of
from deepnet_fairseq.study.runs import RecordedRun

from ..support.errors import refused
from ..support.recorded import losses_falling_to, write_figure_run, write_runs_of_every_figure


def assert_is_picture(path):
    """Check that a PNG is neither tiny nor heavy."""
    height, width, _ = matplotlib.image.imread(path).shape
    assert height > 300
    assert width > 400
    assert path.stat().st_size < 100_000


def table_of_text(text, number):
    """Return the rows of a text's Markdown table number 1, 2, ...: first cell -> header -> cell."""
    tables = [part for part in text.split("\n\n") if part.startswith("|")]
    lines = []
    for line in tables[number - 1].splitlines():
        cells = line.split("|")[1:-1]
        lines.append([cell.strip() for cell in cells])

    header, _dashes, *rows = lines
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


# DeepNet's figures.


@pytest.fixture(scope="module")
def drawn_runs(tmp_path_factory):
    """Provide recorded runs of every figure, drawn by `deepnet report`."""
    root = tmp_path_factory.mktemp("recorded") / "runs"
    write_runs_of_every_figure(root)
    main(["report", str(root), "--figures"])
    return root


DEEPNET_FIGURES = [3, 4, 5, 6, 7, 8]
NUMBERS = {  # figure -> (number of the table, first cell, column, the cell there)
    3: [
        (1, "5", "Post-LN", "1.30 (0.2)"),
        (1, "0", "Post-LN-init", "1.80 (2.25)"),
        (2, "6", "Post-LN", "0.600 (0.630 to 0.740)"),
        (3, "2", "Post-LN-init", "6.50 (6.7)"),
    ],
    4: [
        (1, "2", "Post-LN, warm-up", "2.00 (0.0354)"),
        (2, "2", "Post-LN, no warm-up", "10.0 (8.73)"),
        (3, "2", "Post-LN-init, warm-up", "9.00 (8.41)"),
        (4, "18", "Post-LN, warm-up", "0.200 (0.815)"),
        (4, "1", "Post-LN, warm-up", "0.0300 (0.003)"),
    ],
    5: [
        (1, "50", "DeepNorm", "0.00707 (0.0049)"),
        (2, "Post-LN", "slope", "1.10"),
        (2, "DeepNorm", "slope", "0.50"),
    ],
    6: [
        (1, "6", "DeepNorm", "30.0"),
        (1, "10", "Admin", "– (28.8)"),
        (1, "50", "Post-LN", "diverged (0)"),
    ],
    7: [
        (1, "200", "5e-4", "5.00"),
    ],
    8: [
        (1, "12", "DeepNorm", "25.4 (25.3)"),
        (2, "DeepNorm", "slope", "5.00"),
        (2, "DeepNorm, paper", "slope", "3.67"),
        (2, "DeepNorm, paper", "R2", "0.934"),
    ],
}
CELLS = []
for figure, cells in NUMBERS.items():
    CELLS += [(figure, *cell) for cell in cells]


@pytest.mark.parametrize(("figure", "number", "row", "column", "expected"), CELLS)
def test_figures_show_the_numbers_worked_out_by_hand(figure, number, row, column, expected, drawn_runs):
    """Other LayerNorms and single weights, whose numbers are 99, are left out of Figure 4."""
    text = (drawn_runs / f"figure{figure}.md").read_text()

    assert table_of_text(text, number)[row][column] == expected


@pytest.mark.parametrize("figure", DEEPNET_FIGURES)
def test_figures_are_pictures_with_the_papers_setting_in_their_text(figure, drawn_runs):
    text = (drawn_runs / f"figure{figure}.md").read_text()

    assert_is_picture(drawn_runs / f"figure{figure}.png")
    assert text.startswith(f"Figure {figure}: ")
    assert paper.SETTING[figure] in text


def test_only_the_figures_asked_for_are_drawn_with_the_same_bytes(drawn_runs, tmp_path):
    out = tmp_path / "new" / "out"

    main(["report", str(drawn_runs), "--figures", "8,5", "--out", str(out)])

    files = sorted(path.name for path in out.iterdir())
    assert files == ["figure5.md", "figure5.png", "figure8.md", "figure8.png"]
    assert (out / "figure5.png").read_bytes() == (drawn_runs / "figure5.png").read_bytes()


def test_the_figures_are_those_that_have_runs_unless_named(drawn_runs):
    assert parse_figures(drawn_runs, None) == DEEPNET_FIGURES


def test_figures_are_named_by_numbers_and_names(drawn_runs):
    assert parse_figures(drawn_runs, "4, normformer4") == [4, "normformer4"]


def scores_of_directions(bleu):
    """Return the score.json of these directions of Flores-101."""
    directions = {direction: {"bleu": value} for direction, value in bleu.items()}
    return {"sets": {"flores": {"directions": directions}}}


def test_bleu_of_a_language_is_the_mean_over_its_source_languages(tmp_path):
    ours = scores_of_directions({"de-en": 20.0, "en-de": 10.0, "de-fr": 0.0})
    theirs = scores_of_directions({"de-en": 12.0})
    write_figure_run(tmp_path, 10, "deep", layers=100, score=ours)
    write_figure_run(tmp_path, 10, "m2m100", "pre_ln", 24, score=theirs, system="M2M-100")

    text = redraw(tmp_path, 10, tmp_path)

    _first_cell, *best_language = table_of_text(text, 1)["1"].values()
    assert best_language == ["20.0", "12.0"]
    assert table_of_text(text, 1)["3"]["deep 100L-100L"] == "0"


def text_of_figure(figure, folder):
    """Return the text of a figure of one run, without the picture."""
    return as_markdown(EVERY[figure]([RecordedRun(folder)]))


def test_a_run_without_a_score_is_refused(tmp_path):
    folder = write_figure_run(tmp_path, 6, "run", "post_ln", 50)

    with refused(folder / "score.json"):
        text_of_figure(6, folder)


@pytest.mark.parametrize(("figure", "row", "cell"), [(6, "50", "diverged (0)"), (8, "100", "diverged")])
def test_a_run_that_diverged_needs_no_score(figure, row, cell, tmp_path):
    folder = write_figure_run(tmp_path, 6, "run", "post_ln", 50)
    (folder / "diverged").touch()

    text = text_of_figure(figure, folder)

    assert table_of_text(text, 1)[row]["Post-LN"] == cell


# The quickstart's runs.


@pytest.fixture
def quickstart_runs(tmp_path):
    """Provide runs of two depths and two methods, Post-LN being stuck, in the folders that quickstart.sh makes."""
    for layers, last_update in ((18, 400), (50, 800)):
        folder = tmp_path / "quickstart" / f"{layers}L-{layers}L-{last_update}-updates-seed1"
        for method, loss, bleu in (("deepnorm", 3.0 + layers / 100, 36.8), ("post_ln", 8.04, None)):
            losses = losses_falling_to(loss, last_update)
            run = write_figure_run(tmp_path, "depth", method, method, layers, losses=losses, bleu=bleu, seed=1)
            folder.mkdir(exist_ok=True)
            run.rename(folder / method)
    return tmp_path


def test_the_figure_of_losses_has_a_panel_for_each_depth(quickstart_runs):
    """Stuck runs are shown to their end."""
    text = redraw(quickstart_runs, "depth", quickstart_runs)

    assert list(table_of_text(text, 1)["400"].values()) == ["400", "3.18", "8.04"]
    assert table_of_text(text, 2)["800"]["DeepNorm"] == "3.50"


def test_the_figure_of_losses_is_a_picture_and_its_text(quickstart_runs):
    text = redraw(quickstart_runs, "depth", quickstart_runs)

    assert_is_picture(quickstart_runs / "depth.png")
    assert (quickstart_runs / "depth.md").read_text() == text


# NormFormer's figures, of language models with 12 layers.

LAYERS = range(1, 13)
PLACES = ("ffn.inner", "self_attn.outer", "self_attn.inner.c")


def write_decoder_run(root, name, method, probes):
    """Write a run of a decoder alone."""
    folder = write_figure_run(root, "normformer3", name, method, probes=probes)
    facts = {"method": method, "decoder_layers": len(LAYERS)}
    (folder / "run.json").write_text(json.dumps(facts))


def gradient_probe(size, slope):
    """Return gradients of which fc2's is `size` in the first layer, and `slope` times that before in each further."""
    values = {"decoder.1": 99.0}  # is not fc2's
    for layer in LAYERS:
        values[f"decoder.{layer}.ffn.fc2"] = size * slope ** (layer - 1)
    return {"gradient_l1": values}


def scale_probe(base):
    """Return learned scales whose median in layer l is base + l / 100, and the range 0.1 to either side."""
    values = {}
    for layer in LAYERS:
        median = base + layer / 100
        for place in PLACES:
            values[f"decoder.{layer}.{place}.median"] = median
            values[f"decoder.{layer}.{place}.min"] = median - 0.1
            values[f"decoder.{layer}.{place}.max"] = median + 0.1
    return {"learned_scale": values}


@pytest.fixture(scope="module")
def drawn_decoders(tmp_path_factory):
    """Provide runs of Post-LN, Pre-LN and NormFormer, drawn by `deepnet report`."""
    root = tmp_path_factory.mktemp("recorded")
    post_ln = {0: gradient_probe(1.0, slope=2.0), 500: gradient_probe(3.0, slope=2.0)}
    pre_ln = {
        0: gradient_probe(1.0, slope=0.5),
        500: gradient_probe(3.0, slope=0.5),
        5000: gradient_probe(1.0, slope=0.25),
    }
    normformer = {
        0: gradient_probe(2.0, slope=1.0) | scale_probe(1.0),
        500: gradient_probe(4.0, slope=1.0),
        5000: gradient_probe(9.0, slope=1.0) | scale_probe(0.2),
    }

    write_decoder_run(root, "a", "post_ln", post_ln)
    write_decoder_run(root, "b", "pre_ln", pre_ln)
    write_decoder_run(root, "c", "normformer", normformer)

    main(["report", str(root), "--figures"])
    return root


@pytest.mark.parametrize("name", ["normformer3", "normformer4"])
def test_normformers_figures_are_pictures(name, drawn_decoders):
    assert_is_picture(drawn_decoders / f"{name}.png")


@pytest.fixture(scope="module")
def text_of_gradients(drawn_decoders):
    return (drawn_decoders / "normformer3.md").read_text()


def test_the_text_of_gradients_names_figure_and_paper(text_of_gradients):
    assert text_of_gradients.startswith("NormFormer, Figure 3: ")
    assert "Post-LN far below 1" in text_of_gradients


def test_gradients_by_layer_are_the_mean_of_the_first_1000_updates(text_of_gradients):
    by_layer = table_of_text(text_of_gradients, 1)

    assert by_layer["1"]["Post-LN"] == "2.00"
    assert by_layer["12"]["Post-LN"] == "4096"
    assert by_layer["3"]["Pre-LN"] == "0.500"
    assert [row["NormFormer"] for row in by_layer.values()] == ["3.00"] * 12


def test_the_ratio_of_first_and_last_gradient_is_shown_for_later_updates_too(text_of_gradients):
    """A method without gradients at an update has a dash there."""
    ratios = table_of_text(text_of_gradients, 2)

    _update, *at_500 = ratios["500"].values()
    _update, *at_5000 = ratios["5000"].values()
    assert at_500 == ["0.000488", "2048", "1.00"]
    assert at_5000 == ["–", "4194304", "1.00"]


@pytest.fixture(scope="module")
def text_of_scales(drawn_decoders):
    return (drawn_decoders / "normformer4.md").read_text()


@pytest.mark.parametrize(
    ("layer", "cell"),
    [
        ("1", "0.210 [0.110 to 0.310] (0.220)"),
        ("6", "0.260 [0.160 to 0.360]"),
        ("12", "0.320 [0.220 to 0.420] (0.900)"),
    ],
)
def test_learned_gains_are_those_of_the_last_update_beside_the_papers(layer, cell, text_of_scales):
    assert table_of_text(text_of_scales, 1)[layer]["NormFormer"] == cell


def test_learned_scales_of_attention_have_the_papers_range_from_layer_2_on(text_of_scales):
    first, *others = table_of_text(text_of_scales, 2).values()

    assert len(others) == 11
    assert not first["NormFormer"].endswith("(0.250 to 0.380)")
    for row in others:
        assert row["NormFormer"].endswith("(0.250 to 0.380)")


def test_learned_scales_of_heads_have_the_papers_range(text_of_scales):
    heads = table_of_text(text_of_scales, 3)

    assert len(heads) == 12
    for row in heads.values():
        assert row["NormFormer"].endswith("(0.350 to 1.80)")


# The parts of figures: colours that everybody can tell apart, fits through points.

PANELS = ("post", "none", "pre")  # by the place of LayerNorm


def without_repetition(items: Iterable) -> bool:
    found = list(items)
    return len(set(found)) == len(found)


def test_every_method_is_in_one_panel_and_deepnorm_first_in_each():
    others = []
    for norm in PANELS:
        first, *rest = methods_of_panel(norm)
        assert first == "deepnorm"
        others += rest

    assert sorted(others) == sorted(METHODS.keys() - {"deepnorm"})


@pytest.mark.parametrize("norm", PANELS)
def test_methods_of_one_panel_differ_in_colour_or_marker(norm):
    styles = [style_of(method) for method in methods_of_panel(norm)]

    assert len(styles) > 1
    assert without_repetition((style.colour, style.marker) for style in styles)


def test_a_fit_over_the_logarithm_finds_slope_and_intercept():
    law = fitted({10: 3, 100: 5})

    assert law.slope == pytest.approx(2)
    assert law.intercept == pytest.approx(1)


def test_a_fit_of_a_power_finds_exponent_and_factor():
    law = fitted({n: 0.003 * n**1.25 for n in (6, 18, 100)}, power=True)

    assert law.slope == pytest.approx(1.25)
    assert 10**law.intercept == pytest.approx(0.003)
    assert law.rvalue == pytest.approx(1)
