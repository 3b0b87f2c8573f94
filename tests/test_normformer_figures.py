"""Recorded runs -> Figures 3 and 4 of NormFormer's paper, `deepnet figures`."""

from __future__ import annotations

import json
import re

import matplotlib.image
import numpy as np
import pytest

from deepnet_fairseq.analysis.figures import chosen, redraw
from deepnet_fairseq.analysis.figures.sheet import Sheet
from deepnet_fairseq.cli import main
from deepnet_fairseq.errors import UserError

from .support.recorded import record

FIGURES = ("normformer3", "normformer4")
PLACES = ("ffn.inner", "self_attn.outer", "self_attn.inner.c")


def run(root, name, method, probes, layers=12, stacks=("decoder",)):
    """A run of a model with these stacks."""
    folder = record(root, "normformer3", name, method, probes=probes)
    facts = {"method": method} | {f"{stack}_layers": layers for stack in stacks}
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def gradients(at: dict, layers=12, stack="decoder", probe="gradient_l1"):
    """Update -> fc2's gradient, `slope` to the power of the layer from 0, times `size`."""
    return {
        update: {probe: {f"{stack}.{l + 1}.ffn.fc2": size * slope**l for l in range(layers)} | {f"{stack}.1": 99.0}}
        for update, (size, slope) in at.items()
    }


def scales(at: dict, layers=12, stack="decoder", places=PLACES):
    """Update -> medians of layer l: `base` + l / 100, a tenth below and above it least and largest."""
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


def rows(text: str, *start) -> list[list[str]]:
    """The other cells of the rows that start with these."""
    cells = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    return [row[len(start) :] for row in cells if tuple(row[: len(start)]) == start]


def tables(text: str) -> list[str]:
    return text.split("\n\n")[1:-1]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Post-LN, Pre-LN and NormFormer, NormFormer with its scales; and what the command made of them."""
    root = tmp_path_factory.mktemp("recorded")
    run(root, "a", "post_ln", gradients({0: (1.0, 2.0), 500: (3.0, 2.0)}))
    run(root, "b", "pre_ln", gradients({0: (1.0, 0.5), 500: (3.0, 0.5), 5000: (1.0, 0.25)}))
    learned = scales({0: 1.0, 5000: 0.2})
    run(root, "c", "normformer", both(gradients({0: (2.0, 1.0), 500: (4.0, 1.0), 5000: (9.0, 1.0)}), learned))
    main(["figures", str(root)])
    return root


@pytest.fixture
def text_only(monkeypatch):
    """A picture takes most of a second, and these tests look at numbers."""
    monkeypatch.setattr(Sheet, "save", lambda self, path: None)


@pytest.mark.parametrize("name", FIGURES)
def test_pictures(name, drawn):
    """A PNG of many colours, with its numbers beside it."""
    path = drawn / f"{name}.png"
    picture = matplotlib.image.imread(path)
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 20
    assert 0.01 < (picture[..., :3].min(axis=2) < 0.9).mean() < 0.5
    text = path.with_suffix(".txt").read_text()
    assert text.startswith(f"NormFormer, Figure {name[-1]}: ") and "paper: 125M parameters, 12 layers" in text


def test_gradients_by_layer(drawn):
    """The mean of the first 1,000 updates, later ones only over updates."""
    text = (drawn / "normformer3.txt").read_text()
    by_layer, ratios = tables(text)
    assert "mean |element| of fc2's gradient" in by_layer
    assert rows(by_layer, "Post-LN", "12L", "1") == [["2.00"]] and rows(by_layer, "Post-LN", "12L", "12") == [["4096"]]
    assert rows(by_layer, "Pre-LN", "12L", "3") == [["0.500"]]
    assert [row[1] for row in rows(by_layer, "NormFormer", "12L")] == ["3.00"] * 12
    assert rows(ratios, "Post-LN") == [["12L", "0 to 500", "0.000488", "500", "0.000488", "far below 1"]]
    assert rows(ratios, "Pre-LN") == [["12L", "0 to 500", "2048", "5000", "4194304", "far above 1"]]
    assert rows(ratios, "NormFormer") == [["12L", "0 to 500", "1.00", "5000", "1.00", "nearer to 1 than Pre-LN"]]
    assert "no run of" not in text


def test_l2_norms_where_more_runs_have_them(tmp_path, text_only):
    """One measure for all: L1 if as many runs have it; what has neither is left out."""
    for name, method in (("a", "pre_ln"), ("b", "normformer")):
        l1, l2 = gradients({0: (3.0, 1.0)}), gradients({0: (7.0, 1.0)}, probe="gradient_norm")
        run(tmp_path, name, method, both(l1, l2))
    run(tmp_path, "neither", "post_ln", None)
    text = redraw(tmp_path, "normformer3", tmp_path)
    assert rows(text, "Pre-LN", "12L", "1") == [["3.00"]] and "no run of: Post-LN" in text
    run(tmp_path, "l2", "post_ln", gradients({0: (7.0, 1.0)}, probe="gradient_norm"))
    text = redraw(tmp_path, "normformer3", tmp_path)
    assert "L2 norm of fc2's gradient" in text and "|element|" not in text and "no run of" not in text
    assert rows(text, "NormFormer", "12L", "1") == [["7.00"]]


def test_learned_scales(drawn):
    """Of the last probed update, beside what the paper has for the layer."""
    gain, attention, heads = tables((drawn / "normformer4.txt").read_text())
    assert rows(gain, "NormFormer", "12L", "5000", "1") == [["0.210", "0.110", "0.310", "0.22"]]
    assert rows(gain, "NormFormer", "12L", "5000", "6") == [["0.260", "0.160", "0.360", "-"]]
    assert rows(gain, "NormFormer", "12L", "5000", "12") == [["0.320", "0.220", "0.420", "0.9"]]
    assert [row[-1] for row in rows(attention, "NormFormer")] == ["0.14"] + ["0.25 to 0.38"] * 11
    assert {row[-1] for row in rows(heads, "NormFormer")} == {"0.35 to 1.8"}
    assert all(len(rows(table, "NormFormer")) == 12 for table in (gain, attention, heads))


def test_the_papers_points_are_drawn(drawn):
    """In the paper's colour, which no curve of a single run has."""
    picture = np.round(matplotlib.image.imread(drawn / "normformer4.png")[..., :3] * 255)
    paper = (abs(picture - [0x00, 0x72, 0xB2]).max(axis=2) < 90).any(axis=0)
    thirds = np.array_split(paper, 3)
    assert all(third.sum() > 5 for third in thirds)


@pytest.mark.parametrize(
    "stacks, depth", [(("encoder",), "12L"), (("decoder",), "12L"), (("encoder", "decoder"), "12L-12L")]
)
def test_models_of_every_kind(stacks, depth, tmp_path, text_only):
    """A masked language model's encoder; of a translation model the decoder."""
    probes = both(gradients({0: (2.0, 1.0)}, stack=stacks[-1]), scales({0: 0.5}, stack=stacks[-1]))
    run(tmp_path, "a", "normformer", probes, stacks=stacks)
    assert rows(redraw(tmp_path, "normformer3", tmp_path), "NormFormer", depth, "12") == [["2.00"]]
    assert rows(redraw(tmp_path, "normformer4", tmp_path), "NormFormer", depth, "0", "12")[0][0] == "0.620"


def test_a_deep_model(tmp_path, text_only):
    """A dozen of its layers in the table, the first and the last among them; the paper has no layer to compare."""
    run(tmp_path, "a", "normformer", both(gradients({0: (2.0, 1.0)}, 100), scales({0: 0.0}, 100)), layers=100)
    layers = [row[0] for row in rows(tables(redraw(tmp_path, "normformer3", tmp_path))[0], "NormFormer", "100L")]
    assert (len(layers), layers[0], layers[-1]) == (12, "1", "100")
    found = rows(tables(redraw(tmp_path, "normformer4", tmp_path))[0], "NormFormer", "100L", "0")
    assert [row[0] for row in found] == layers and {row[-1] for row in found} == {"-"}


def test_several_runs_of_one_method(tmp_path, text_only):
    """Told apart by their folders; an ablation lacks a part, or has the factors behind W_out."""
    run(tmp_path, "full", "normformer", scales({0: 0.1}))
    run(tmp_path, "no-ffn-norm", "normformer", scales({0: 0.2}, places=PLACES[1:]))
    run(tmp_path, "fairseq", "normformer", scales({0: 0.3}, places=(*PLACES[:2], "self_attn.outer.c")))
    run(tmp_path, "sub", "sub_ln", scales({0: 0.4}, places=("ffn.inner", "self_attn.inner")))
    gain, attention, heads = tables(redraw(tmp_path, "normformer4", tmp_path))
    assert {row[0] for row in (re.split(" {2,}", line) for line in gain.splitlines()[2:])} == {
        "NormFormer, full", "NormFormer, fairseq",
    }  # fmt: skip
    assert rows(heads, "NormFormer, fairseq", "12L", "0", "1")[0][:3] == ["0.310", "0.210", "0.410"]
    assert len(rows(attention, "NormFormer, no-ffn-norm")) == 12 and "sub" not in attention


def test_runs_without_what_the_figures_need(tmp_path):
    run(tmp_path, "a", "pre_ln", {0: {"learned_scale": {}}})
    place = re.escape(str(tmp_path))
    with pytest.raises(UserError, match=rf"^{place}\S*: no run with gradient_l1; record one with --deepnet-probe grad"):
        redraw(tmp_path, "normformer3", tmp_path)
    with pytest.raises(UserError, match=rf"^{place}\S*: no run of NormFormer with learned_scale; record one with"):
        redraw(tmp_path, "normformer4", tmp_path)
    run(tmp_path, "b", "pre_ln", gradients({1500: (1.0, 1.0)}))
    with pytest.raises(UserError, match=r"b/probes\.jsonl: has no gradient_l1 in the first 1,000 updates"):
        redraw(tmp_path, "normformer3", tmp_path)
    assert not list(tmp_path.glob("*.png"))


def test_figures_by_name(drawn):
    assert chosen(drawn, None) == list(FIGURES)
    assert chosen(drawn, "4, normformer4") == [4, "normformer4"]
    for wrong in ("normformer5", "sheet", "figure4", "9"):
        with pytest.raises(UserError, match=f"--only {wrong}: no such figure; choose some of 3,4,.*,normformer4$"):
            chosen(drawn, wrong)
