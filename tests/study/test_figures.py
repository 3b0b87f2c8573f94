"""Tests of figures of recorded runs: DeepNet's Figures 3-8, losses by depth, NormFormer's Figures 3 and 4.

A figure is a picture, FIGURE.png, and a text, FIGURE.md, with its numbers in Markdown tables, one or two a panel. A
cell has the run's number, and behind it, in parentheses, the paper's. Pre-LN, Post-LN, .. are methods.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import matplotlib.image
import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.study import paper
from deepnet_fairseq.study.figures import EVERY, fitted, methods_of_panel, parse_figures, redraw
from deepnet_fairseq.study.plots import as_markdown, style_of
from deepnet_fairseq.study.runs import RecordedRun, folder_of

from ..support.errors import refused
from ..support.recorded import losses_falling_to, write_figure_run, write_runs_of_every_figure


def assert_is_picture(path):
    """Check that a PNG has more than 400 x 300 pixels, and less than 100 kB."""
    height, width, _channels = matplotlib.image.imread(path).shape
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


class Cell(NamedTuple):
    """A cell in the text of a figure: number of the table, first cell of its row, its column, and what it shows."""

    table: int
    row: str
    column: str
    shown: str


# The runs' numbers follow from write_runs_of_every_figure, the papers' stand in paper.toml.
CELLS_OF_FIGURES = {
    3: [
        # Gradient norms of 18 layers, counted from the top. That of layer l is l / 10; 5 below layer 18 is layer 13.
        Cell(1, row="5", column="Post-LN", shown="1.30 (0.2)"),
        Cell(1, row="0", column="Post-LN-init", shown="1.80 (2.25)"),
        # Gradient norm of the last layer, by depth; the paper has a range.
        Cell(2, row="6", column="Post-LN", shown="0.600 (0.630 to 0.740)"),
        # Validation loss after 2 epochs, which the paper counts as epoch 1.
        Cell(3, row="2", column="Post-LN-init", shown="6.50 (6.7)"),
    ],
    # The paper's values are of width 512, those of the runs of width 64: norms of outputs and of LayerNorms' inputs
    # grow with the root of the width, so that the paper's are multiplied by (64 / 512)^0.5 = 0.35355.
    4: [
        # Model update after u updates: u; the paper's is 0.1 * 0.35355.
        Cell(1, row="2", column="Post-LN, warm-up", shown="2.00 (0.0354)"),
        # Norm behind the FFN: 8 + u; the paper's is 24.7 * 0.35355.
        Cell(2, row="2", column="Post-LN, no warm-up", shown="10.0 (8.73)"),
        # Norm behind self-attention: 9; the paper's is 23.8 * 0.35355.
        Cell(3, row="2", column="Post-LN-init, warm-up", shown="9.00 (8.41)"),
        # Gradient norm of layer l after 2 updates, the last: (l + 2) / 100; the paper's is not scaled.
        Cell(4, row="18", column="Post-LN, warm-up", shown="0.200 (0.815)"),
        Cell(4, row="1", column="Post-LN, warm-up", shown="0.0300 (0.003)"),
    ],
    5: [
        # Model update of N layers: 0.001 N^0.5 with DeepNorm, 0.001 N^1.1 with Post-LN. Slopes are the exponents.
        Cell(1, row="50", column="DeepNorm", shown="0.00707 (0.0049)"),
        Cell(2, row="Post-LN", column="slope", shown="1.10"),
        Cell(2, row="DeepNorm", column="slope", shown="0.50"),
    ],
    6: [
        # BLEU is 30 at 6 layers, which the paper has not; at 10 only the paper has one; at 50 the run diverged.
        Cell(1, row="6", column="DeepNorm", shown="30.0"),
        Cell(1, row="10", column="Admin", shown="– (28.8)"),
        Cell(1, row="50", column="Post-LN", shown="diverged (0)"),
    ],
    7: [
        # Validation loss after 200 updates.
        Cell(1, row="200", column="5e-4", shown="5.00"),
    ],
    8: [
        # BLEU of L layers, encoder and decoder together: 20 + 5 log10 L. Numbers of the paper's line are those of
        # numpy.polyfit over its five points, and the square of numpy.corrcoef.
        Cell(1, row="12", column="DeepNorm", shown="25.4 (25.3)"),
        Cell(2, row="DeepNorm", column="slope", shown="5.00"),
        Cell(2, row="DeepNorm, paper", column="slope", shown="3.67"),
        Cell(2, row="DeepNorm, paper", column="R2", shown="0.934"),
    ],
}
FIGURES_AND_CELLS = []
for figure, cells in CELLS_OF_FIGURES.items():
    FIGURES_AND_CELLS += [(figure, cell) for cell in cells]


@pytest.mark.parametrize(("figure", "cell"), FIGURES_AND_CELLS)
def test_figures_show_the_numbers_worked_out_by_hand(figure, cell, drawn_runs):
    """Runs of Figure 4 have values of 99 where the figure does not look: at other LayerNorms and at single weights."""
    text = (drawn_runs / f"figure{figure}.md").read_text()

    assert table_of_text(text, cell.table)[cell.row][cell.column] == cell.shown


@pytest.mark.parametrize("figure", DEEPNET_FIGURES)
def test_figures_are_pictures(figure, drawn_runs):
    assert_is_picture(drawn_runs / f"figure{figure}.png")


@pytest.mark.parametrize("figure", DEEPNET_FIGURES)
def test_the_text_of_a_figure_has_its_number_and_the_papers_setting(figure, drawn_runs):
    text = (drawn_runs / f"figure{figure}.md").read_text()

    assert text.startswith(f"Figure {figure}: ")
    assert paper.SETTING[figure] in text


def test_only_the_figures_asked_for_are_drawn(drawn_runs, tmp_path):
    out = tmp_path / "new" / "out"

    main(["report", str(drawn_runs), "--figures", "8,5", "--out", str(out)])

    files = sorted(path.name for path in out.iterdir())
    assert files == ["figure5.md", "figure5.png", "figure8.md", "figure8.png"]


def test_a_figure_drawn_again_has_the_same_bytes(drawn_runs, tmp_path):
    redraw(drawn_runs, 5, tmp_path)

    assert (tmp_path / "figure5.png").read_bytes() == (drawn_runs / "figure5.png").read_bytes()


def test_without_names_the_figures_are_those_that_have_runs(drawn_runs):
    assert parse_figures(drawn_runs, only=None) == DEEPNET_FIGURES


def test_figures_are_named_by_numbers_and_names(drawn_runs):
    assert parse_figures(drawn_runs, only="4, normformer4") == [4, "normformer4"]


def scores_of_flores(bleu_by_direction):
    """Return the score.json of a run with these directions of Flores-101."""
    directions = {direction: {"bleu": bleu} for direction, bleu in bleu_by_direction.items()}
    return {"sets": {"flores": {"directions": directions}}}


def test_bleu_of_a_language_in_figure_10_is_the_mean_over_its_source_languages(tmp_path):
    """Languages are in the order of their best BLEU: en 20, de 10, fr 0."""
    ours = scores_of_flores({"de-en": 15.0, "fr-en": 25.0, "en-de": 10.0, "de-fr": 0.0})
    theirs = scores_of_flores({"de-en": 12.0})
    write_figure_run(tmp_path, 10, "deep", layers=100, score=ours)
    write_figure_run(tmp_path, 10, "m2m100", "pre_ln", 24, score=theirs, system="M2M-100")

    text = redraw(tmp_path, 10, tmp_path)

    by_rank = table_of_text(text, 1)
    english = {"deep 100L-100L": "20.0", "M2M-100 24L-24L": "12.0"}
    assert by_rank["1"].items() >= english.items()
    assert by_rank["2"]["deep 100L-100L"] == "10.0"
    assert by_rank["3"]["deep 100L-100L"] == "0"


def test_systems_of_one_name_and_depth_in_figure_10_have_a_line_each(tmp_path):
    """One system translated with two beams, for example. The names of the runs tell its lines apart."""
    for beam, bleu in (("beam1", 11.0), ("beam5", 12.0)):
        score = scores_of_flores({"de-en": bleu})
        write_figure_run(tmp_path, 10, beam, "pre_ln", 24, score=score, system="M2M-100")
    write_figure_run(tmp_path, 10, "small", "pre_ln", 12, score=scores_of_flores({"de-en": 10.0}), system="M2M-100")

    text = redraw(tmp_path, 10, tmp_path)

    place = f"M2M-100 24L-24L ({folder_of(10)}"
    expected = {f"{place}/beam1)": "11.0", f"{place}/beam5)": "12.0", "M2M-100 12L-12L": "10.0"}
    assert table_of_text(text, 1)["1"].items() >= expected.items()


def text_of_figure(figure, folder):
    """Return the text of a figure of one run, which is in `folder`; nothing is drawn."""
    return as_markdown(EVERY[figure]([RecordedRun(folder)]))


@pytest.mark.parametrize(
    ("figure", "facts"), [(4, {"series": "post_ln_warmup"}), (7, {"panel": "lr", "value": "5e-4"})]
)
def test_a_second_run_in_one_place_of_a_figure_is_refused(figure, facts, tmp_path):
    """Figures 4 and 7 have one line for each series or value."""
    runs = [RecordedRun(write_figure_run(tmp_path, figure, name, **facts)) for name in ("one", "other")]

    with refused(runs[1].path / "run.json"):
        EVERY[figure](runs)


def test_gradients_that_are_not_finite_leave_their_cells_of_figure_3_empty(tmp_path):
    norms = {f"decoder.{layer}": None for layer in range(1, 19)}
    probes = {0: {"gradient_norm": norms}}
    folder = write_figure_run(tmp_path, 3, "run", "post_ln", probes=probes, part="profile")

    by_distance = table_of_text(text_of_figure(3, folder), 1)

    assert by_distance["0"]["Post-LN"] == "– (0.69)"


def test_a_run_without_a_score_is_refused(tmp_path):
    folder = write_figure_run(tmp_path, 6, "run", "post_ln", 50)

    with refused(folder / "score.json"):
        text_of_figure(6, folder)


@pytest.mark.parametrize(
    ("figure", "depth", "shown"),
    # Figure 6 counts layers of the encoder, and the paper has 0 there; Figure 8 counts layers of both stacks.
    [(6, "50", "diverged (0)"), (8, "100", "diverged")],
)
def test_a_run_that_diverged_needs_no_score(figure, depth, shown, tmp_path):
    folder = write_figure_run(tmp_path, 6, "run", "post_ln", 50)
    (folder / "diverged").touch()

    text = text_of_figure(figure, folder)

    assert table_of_text(text, 1)[depth]["Post-LN"] == shown


# The quickstart's runs.


@pytest.fixture
def quickstart_runs(tmp_path):
    """Provide runs of two depths, DeepNorm and a stuck Post-LN of each, in the folders that quickstart.sh makes.

    The last losses are 3.18 (18 layers) and 3.50 (50 layers) with DeepNorm, and 8.04 with Post-LN.
    """
    for layers, last_update, deepnorm_loss in ((18, 400, 3.18), (50, 800, 3.50)):
        folder = tmp_path / "quickstart" / f"{layers}L-{layers}L-{last_update}-updates-seed1"
        folder.mkdir(parents=True)
        for method, loss, bleu in (("deepnorm", deepnorm_loss, 36.8), ("post_ln", 8.04, None)):
            losses = losses_falling_to(loss, last_update)
            run = write_figure_run(tmp_path, "depth", method, method, layers, losses=losses, bleu=bleu, seed=1)
            run.rename(folder / method)
    return tmp_path


def test_the_figure_of_losses_has_a_panel_for_each_depth(quickstart_runs):
    """Stuck runs are shown to their end."""
    text = redraw(quickstart_runs, "depth", quickstart_runs)

    of_18_layers = table_of_text(text, 1)
    of_50_layers = table_of_text(text, 2)
    assert of_18_layers["400"] == {"18L-18L: updates": "400", "DeepNorm": "3.18", "Post-LN": "8.04"}
    assert of_50_layers["800"] == {"50L-50L: updates": "800", "DeepNorm": "3.50", "Post-LN": "8.04"}


def test_the_figure_of_losses_is_a_picture_and_its_text(quickstart_runs):
    text = redraw(quickstart_runs, "depth", quickstart_runs)

    assert_is_picture(quickstart_runs / "depth.png")
    assert (quickstart_runs / "depth.md").read_text() == text


# NormFormer's figures, of language models with 12 layers.

LAYERS = range(1, 13)
SCALED_PLACES = ("ffn.inner", "self_attn.outer", "self_attn.inner.c")  # of a layer, where NormFormer learns scales


def write_decoder_run(root, name, method, probes):
    """Write a run of a decoder alone. probes: update -> values of probes at that update."""
    folder = write_figure_run(root, "normformer3", name, method, probes=probes)
    facts = {"method": method, "decoder_layers": len(LAYERS)}  # no encoder_layers
    (folder / "run.json").write_text(json.dumps(facts))


def gradient_probe(first_layer, ratio):
    """Return the probe of gradients: fc2's is `first_layer` in layer 1, and in each later one `ratio` x that before."""
    values = {"decoder.1": 99.0}  # not of fc2
    for layer in LAYERS:
        values[f"decoder.{layer}.ffn.fc2"] = first_layer * ratio ** (layer - 1)
    return {"gradient_l1": values}


def scale_probe(base):
    """Return the probe of learned scales.

    In layer l their median is base + l / 100, the least is 0.1 below it, and the largest 0.1 above it.
    """
    values = {}
    for layer in LAYERS:
        median = base + layer / 100
        for place in SCALED_PLACES:
            values[f"decoder.{layer}.{place}.median"] = median
            values[f"decoder.{layer}.{place}.min"] = median - 0.1
            values[f"decoder.{layer}.{place}.max"] = median + 0.1
    return {"learned_scale": values}


@pytest.fixture(scope="module")
def drawn_decoders(tmp_path_factory):
    """Provide runs of Post-LN, Pre-LN and NormFormer, drawn by `deepnet report`.

    Within the first 1,000 updates the gradients of each run are recorded twice, at updates 0 and 500.
    """
    root = tmp_path_factory.mktemp("recorded")
    post_ln = {
        0: gradient_probe(first_layer=1.0, ratio=2.0),
        500: gradient_probe(first_layer=3.0, ratio=2.0),
    }
    pre_ln = {
        0: gradient_probe(first_layer=1.0, ratio=0.5),
        500: gradient_probe(first_layer=3.0, ratio=0.5),
        5000: gradient_probe(first_layer=1.0, ratio=0.25),
    }
    normformer = {
        0: gradient_probe(first_layer=2.0, ratio=1.0) | scale_probe(base=1.0),
        500: gradient_probe(first_layer=4.0, ratio=1.0),
        5000: gradient_probe(first_layer=9.0, ratio=1.0) | scale_probe(base=0.2),
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


def test_the_text_of_gradients_has_its_number_and_the_papers_words(text_of_gradients):
    assert text_of_gradients.startswith("NormFormer, Figure 3: ")
    for words in paper.NORMFORMER_FIGURE3.values():  # what the paper says of each method's ratio
        assert words in text_of_gradients


@pytest.mark.parametrize(
    ("method", "layer", "shown"),
    [
        ("Post-LN", "1", "2.00"),
        ("Post-LN", "12", "4096"),  # 2 * 2^11
        ("Pre-LN", "3", "0.500"),  # 2 * 0.5^2
        ("NormFormer", "1", "3.00"),
        ("NormFormer", "12", "3.00"),
    ],
)
def test_gradients_by_layer_are_the_mean_of_the_first_1000_updates(method, layer, shown, text_of_gradients):
    """The gradients of layer 1 at updates 0 and 500 are 1 and 3, with NormFormer 2 and 4. Update 5,000 is too late."""
    by_layer = table_of_text(text_of_gradients, 1)

    assert by_layer[layer][method] == shown


def test_the_ratio_of_first_and_last_gradient_is_shown_by_update(text_of_gradients):
    """Layer 12 is 11 layers behind layer 1, so that first / last is ratio^-11.

    Post-LN has no gradients at update 5,000.
    """
    by_update = table_of_text(text_of_gradients, 2)

    at_500 = {"Post-LN": "0.000488", "Pre-LN": "2048", "NormFormer": "1.00"}  # 2^-11, 0.5^-11, 1
    at_5000 = {"Post-LN": "–", "Pre-LN": "4194304", "NormFormer": "1.00"}  # 0.25^-11 = 2^22
    assert by_update["500"].items() >= at_500.items()
    assert by_update["5000"].items() >= at_5000.items()


def test_an_update_without_finite_gradients_is_left_out_of_the_mean(tmp_path):
    """The gradients of update 0 overflowed, those of update 500 are 3 in all layers."""
    overflowed = {"gradient_l1": dict.fromkeys(gradient_probe(1.0, ratio=1.0)["gradient_l1"], None)}
    write_decoder_run(tmp_path, "a", "pre_ln", {0: overflowed, 500: gradient_probe(first_layer=3.0, ratio=1.0)})

    text = text_of_figure("normformer3", tmp_path / folder_of("normformer3") / "a")

    assert table_of_text(text, 1)["12"]["Pre-LN"] == "3.00"


@pytest.fixture(scope="module")
def text_of_scales(drawn_decoders):
    return (drawn_decoders / "normformer4.md").read_text()


@pytest.mark.parametrize(
    ("layer", "shown"),  # median [least to largest] (the paper's median, of layers 1 and 12 alone)
    [
        ("1", "0.210 [0.110 to 0.310] (0.220)"),
        ("6", "0.260 [0.160 to 0.360]"),
        ("12", "0.320 [0.220 to 0.420] (0.900)"),
    ],
)
def test_learned_gains_are_those_of_the_last_update_beside_the_papers(layer, shown, text_of_scales):
    """At the last update the median in layer l is 0.2 + l / 100."""
    assert table_of_text(text_of_scales, 1)[layer]["NormFormer"] == shown


def test_learned_gains_of_attention_have_the_papers_range_from_layer_2_on(text_of_scales):
    """The paper's gain of layer 1 is far below that range."""
    first, *others = table_of_text(text_of_scales, 2).values()

    assert "(0.140)" in first["NormFormer"]
    assert len(others) == 11
    for row in others:
        assert "(0.250 to 0.380)" in row["NormFormer"]


def test_learned_scales_of_heads_have_the_papers_range(text_of_scales):
    heads = table_of_text(text_of_scales, 3)

    assert len(heads) == 12
    for row in heads.values():
        assert "(0.350 to 1.80)" in row["NormFormer"]


# The parts of figures: colours that everybody can tell apart, fits through points.

PLACES_OF_NORM = ("post", "none", "pre")  # each has a panel of Figure 6


def test_every_method_is_in_one_panel_and_deepnorm_first_in_each():
    others = []
    for norm in PLACES_OF_NORM:
        first, *rest = methods_of_panel(norm)
        assert first == "deepnorm"
        others += rest

    assert sorted(others) == sorted(METHODS.keys() - {"deepnorm"})


@pytest.mark.parametrize("norm", PLACES_OF_NORM)
def test_methods_of_one_panel_differ_in_colour_or_marker(norm):
    styles = [style_of(method) for method in methods_of_panel(norm)]

    looks = [(style.colour, style.marker) for style in styles]
    assert len(looks) > 1
    assert len(set(looks)) == len(looks)


def test_a_fit_over_the_logarithm_finds_slope_and_intercept():
    """The line is y = slope log10 x + intercept. From x = 10 to 100 log10 x grows by 1, and y by 2."""
    law = fitted({10: 3, 100: 5})

    assert law.slope == pytest.approx(2)
    assert law.intercept == pytest.approx(1)


def test_a_fit_of_a_power_finds_exponent_and_factor():
    points = {n: 0.003 * n**1.25 for n in (6, 18, 100)}

    law = fitted(points, power=True)

    factor = 10**law.intercept
    assert law.slope == pytest.approx(1.25)
    assert factor == pytest.approx(0.003)
    assert law.rvalue == pytest.approx(1)
