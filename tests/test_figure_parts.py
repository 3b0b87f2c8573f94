"""What the figures stand on: colours for every eye, points read off the paper, laws fitted through points."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from deepnet_fairseq.analysis import paper
from deepnet_fairseq.analysis.figures import by_depth
from deepnet_fairseq.analysis.figures.by_depth import line, power_law, scaling_law
from deepnet_fairseq.analysis.figures.sheet import Sheet
from deepnet_fairseq.analysis.style import STYLES, style_of
from deepnet_fairseq.errors import UserError
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


def test_methods_of_one_panel_stay_apart():
    """15 is more than six times what is just noticeable; white is the paper they are on."""
    assert STYLES.keys() == METHODS.keys()
    groups = [by_depth.group(norm) for norm in by_depth.PANELS]
    for methods in groups:
        colours = [style_of(method).colour for method in methods] + ["#FFFFFF"]
        assert all(nearest(colours, vision) > 15 for vision in VISIONS.values())
        assert len({style_of(method).marker for method in methods}) >= min(4, len(methods))
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


def test_the_papers_five_points_of_figure_8():
    """The reference's A 3.66, B 21.94, R2 0.933; readings of the last point differ by 0.05, so A by 0.02."""
    law = scaling_law(paper.FIGURE8["deepnorm"])
    assert law.slope == pytest.approx(3.66, abs=0.02)
    assert law.intercept == pytest.approx(21.94, abs=0.04)
    assert law.r2 == pytest.approx(0.933, abs=0.003)


def test_line_and_its_confidence():
    """Against numpy's covariance: cov of polyfit is the unscaled one times rss / (n - 2)."""
    x, y = np.array([1.0, 1.3, 2.0, 2.3, 3.0]), np.array([25.3, 26.6, 30.1, 31.1, 32.1])
    (slope, intercept), covariance = np.polyfit(x, y, 1, cov=True)
    law = line(x, y)
    assert (law.slope, law.intercept) == pytest.approx((slope, intercept))
    errors = 3.1824463 * np.sqrt(np.diag(covariance))  # t of 3 degrees of freedom, any table
    assert (law.slope_error, law.intercept_error) == pytest.approx(tuple(errors))
    assert law.r2 == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2)
    two = line([1, 2], [3, 5])
    assert (two.slope, two.intercept, two.r2) == pytest.approx((2, 1, 1)) and math.isnan(two.slope_error)
    with pytest.raises(UserError, match="two depths or more"):
        line([1, 1], [2, 3])
    law = power_law({n: 0.003 * n**1.25 for n in (6, 18, 100)})
    assert (law.slope, 10**law.intercept, law.r2) == pytest.approx((1.25, 0.003, 1))


def test_figure_5_as_digitised():
    theirs = paper.FIGURE5
    assert len(theirs["post_ln"]) == len(theirs["deepnorm"]) == 95
    assert power_law(theirs["post_ln"]).slope == pytest.approx(1.1, abs=0.05)
    assert theirs["deepnorm"][100] / theirs["deepnorm"][6] == pytest.approx(5, abs=0.2)
    sums = [sum(values.values()) for values in theirs.values()]
    assert sums == pytest.approx([15.953, 0.4917], abs=1e-6)  # of the table they were copied from
    assert (theirs["post_ln"][60], theirs["post_ln"][61], theirs["deepnorm"][50]) == (0.406, 0.11, 0.0049)
