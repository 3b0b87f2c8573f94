"""alpha and beta against the published constants, DeepNet Figure 2, tabulated to six decimals."""

import json
import math

import pytest

from deepnet_fairseq.methods.deepnorm import DeepNorm

from .support.helpers import run

TABLE = {  # N, M: alpha_e, beta_e, alpha_d, beta_d
    (1, 1): (0.810000, 0.870000, 1.316074, 0.537285),
    (2, 2): (1.005905, 0.700563, 1.565085, 0.451801),
    (6, 6): (1.417938, 0.496989, 2.059767, 0.343295),
    (12, 6): (1.686222, 0.417916, 2.059767, 0.343295),
    (6, 12): (1.480716, 0.475919, 2.449490, 0.288675),
    (12, 3): (1.614732, 0.436419, 1.732051, 0.408248),
    (18, 18): (1.998746, 0.352571, 2.710806, 0.260847),
    (24, 24): (2.186760, 0.322258, 2.912951, 0.242746),
    (50, 50): (2.750509, 0.256207, 3.499636, 0.202052),
    (60, 12): (2.633126, 0.267629, 2.449490, 0.288675),
    (100, 100): (3.415742, 0.206310, 4.161791, 0.169904),
    (200, 200): (4.241865, 0.166130, 4.949232, 0.142872),
    (500, 500): (5.648240, 0.124765, 6.223330, 0.113622),
}


@pytest.mark.parametrize("depths", TABLE)
def test_published_constants(depths):
    encoder, decoder = DeepNorm(*depths).numbers("encoder"), DeepNorm(*depths).numbers("decoder")
    found = (encoder.alpha, encoder.beta, decoder.alpha, decoder.beta)
    assert found == pytest.approx(TABLE[depths], abs=6e-7)


@pytest.mark.parametrize("depths", [(1, 1), (7, 30), (60, 12), (500, 500)])
def test_alpha_times_beta_does_not_depend_on_depth(depths):
    encoder, decoder = DeepNorm(*depths).numbers("encoder"), DeepNorm(*depths).numbers("decoder")
    assert encoder.alpha * encoder.beta == pytest.approx(0.81 * 0.87)
    assert decoder.alpha * decoder.beta == pytest.approx(math.sqrt(0.5))


def test_command_prints_them():
    printed = json.loads(run("deepnet", "coefficients", 60, 12, "--json").stdout)
    assert printed["encoder"] == pytest.approx({"alpha": 2.633126, "beta": 0.267629}, abs=6e-7)
    assert printed["decoder"] == pytest.approx({"alpha": 2.449490, "beta": 0.288675}, abs=6e-7)
