"""Points read off the paper's figures, and what is fitted through points."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deepnet_fairseq.analysis import paper
from deepnet_fairseq.analysis.figures import FIGURES, figure4, figure5, figure8
from deepnet_fairseq.analysis.figures.summary import means, number
from deepnet_fairseq.analysis.fit import line, power_law, student_t
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.methods import METHODS


def test_the_papers_five_points_of_figure_8():
    """The reference's A 3.66, B 21.94, R2 0.933; readings of the last point differ by 0.05, so A by 0.02."""
    law = figure8.scaling_law(paper.FIGURE8["deepnorm"])
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


@pytest.mark.parametrize(
    "freedom, t", [(1, 12.7062047), (2, 4.3026527), (3, 3.1824463), (4, 2.7764451), (9, 2.2621572), (30, 2.0422725)]
)
def test_quantiles_of_student(freedom, t):
    assert student_t(freedom) == pytest.approx(t, abs=1e-6)


def test_power_law_is_found():
    law = power_law([6, 18, 100], [0.003 * n**1.25 for n in (6, 18, 100)])
    assert (law.slope, 10**law.intercept, law.r2) == pytest.approx((1.25, 0.003, 1))


def test_figure_5_as_digitised():
    assert len(paper.FIGURE5_POST_LN) == len(paper.FIGURE5_DEEPNORM) == len(paper.FIGURE5_LAYERS) == 95
    theirs = figure5.PAPER
    assert power_law(list(theirs["post_ln"]), list(theirs["post_ln"].values())).slope == pytest.approx(1.1, abs=0.05)
    assert theirs["deepnorm"][100] / theirs["deepnorm"][6] == pytest.approx(5, abs=0.2)
    sums = [sum(values.values()) for values in theirs.values()]
    assert sums == pytest.approx([15.953, 0.4917], abs=1e-6)  # of the table they were copied from
    assert (theirs["post_ln"][60], theirs["post_ln"][61], theirs["deepnorm"][50]) == (0.406, 0.11, 0.0049)


def test_every_curve_of_the_paper_has_its_points():
    assert all(len(scores) == len(paper.FIGURE6_LAYERS) for scores in paper.FIGURE6.values())
    assert all(
        len(losses) == len(paper.FIGURE7_UPDATES) for panel in paper.FIGURE7.values() for losses in panel.values()
    )
    for points in (paper.FIGURE4_UPDATE, paper.FIGURE4_FFN, paper.FIGURE4_ATTENTION):
        assert all(len(points[series]) == len(paper.FIGURE4_UPDATES) for series in figure4.SERIES)
    assert paper.SETTING.keys() == paper.ERROR.keys() == FIGURES.keys() == set(range(3, 9))
    assert paper.FIGURE6.keys() <= METHODS.keys()


def test_numbers_as_text():
    cells = [number(value) for value in (0, 0.0012345, 12.345, 123456.7, None, math.nan, 2.6e-13)]
    assert cells == ["0", "0.00123", "12.3", "123457", "-", "-", "2.6e-13"]
    assert means([(6, 2.0), (3, 1.0), (6, 4.0)]) == {3: 1.0, 6: 3.0}


def test_a_line_needs_two_depths():
    with pytest.raises(UserError, match="two depths or more"):
        line([1, 1], [2, 3])
