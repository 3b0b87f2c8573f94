"""Colours and markers of the figures, for every eye."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from deepnet_fairseq.analysis.figures import figure6
from deepnet_fairseq.analysis.figures.sheet import Sheet
from deepnet_fairseq.analysis.style import STYLES, style_of, style_of_setting
from deepnet_fairseq.methods import METHODS


def lab(colour, vision):
    """CIE 1976 L*a*b* (D65) of "#rrggbb" behind a matrix on linear RGB."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    xyz = np.array(to_xyz) @ np.clip(np.array(vision) @ linear, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


# Machado, Oliveira and Fernandes (2009), severity 1
VISIONS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}


def nearest(colours, vision):
    return min(np.linalg.norm(lab(a, vision) - lab(b, vision)) for a, b in itertools.combinations(colours, 2))


def test_every_method_has_a_colour_of_its_own():
    assert STYLES.keys() == METHODS.keys()
    assert nearest([style.colour for style in STYLES.values()], VISIONS["normal"]) > 10
    assert len({style.label for style in STYLES.values()}) == len(STYLES)
    assert style_of("added_later").label == "added_later"
    assert len({(s.colour, s.marker) for s in (style_of_setting(rank, "") for rank in range(42))}) == 42


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("norm", figure6.PANELS)
def test_methods_of_one_panel_stay_apart(norm, vision):
    """15 is more than six times what is just noticeable; white is the paper they are on."""
    methods = figure6.group(norm)
    assert nearest([style_of(method).colour for method in methods] + ["#FFFFFF"], VISIONS[vision]) > 15
    assert len({style_of(method).marker for method in methods}) >= min(4, len(methods))


def test_panels_of_figure_6_hold_every_method_once():
    groups = [figure6.group(norm) for norm in figure6.PANELS]
    assert all(group[0] == "deepnorm" for group in groups)
    assert sorted(name for group in groups for name in group[1:]) == sorted(METHODS.keys() - {"deepnorm"})


def test_measured_is_solid_the_paper_hollow(tmp_path):
    sheet = Sheet(1, 1, "elsewhere")
    sheet.curve(0, [1, 2], [1, 2], style_of("deepnorm"))
    sheet.paper(0, [1, 2], [3, 4], style_of("admin"))
    sheet.diverged(0, 2, style_of("post_ln"))
    sheet.diverged(0, 2, style_of("ds_init"))
    sheet.save(tmp_path / "a.png")
    mine, theirs, first, second = sheet.panels[0].lines
    assert (mine.get_linestyle(), mine.get_markerfacecolor()) == ("-", style_of("deepnorm").colour)
    assert (theirs.get_linestyle(), theirs.get_markerfacecolor()) == ("--", "none")
    assert first.get_marker() == second.get_marker() == "x" and first.get_ydata()[0] < second.get_ydata()[0] < 0.2
    legend = [text.get_text() for text in sheet.figure.legends[0].get_texts()]
    assert legend == ["DeepNorm", "Admin", "Post-LN", "DS-Init", "diverged", "measured", "paper (elsewhere)"]
