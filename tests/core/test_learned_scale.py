"""Tests of learned factors as the probe reports them, against the parameters themselves."""

import math

import numpy as np
import pytest
import torch

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.probes import PROBES

from ..support import helpers
from ..support.single_stacks import KINDS, noisy_model, stack_of

PROBE = PROBES["learned_scale"]
LM = archs.LM
WITH_FACTORS = ("admin", "normformer", "rezero", "dlcl")
WITHOUT_FACTORS = ("deepnorm", "post_ln", "pre_ln", "t_fixup")


def statistics(values) -> dict[str, float]:
    """Compute the probe's three statistics with numpy."""
    if torch.is_tensor(values):
        values = values.detach().double()
    values = np.asarray(values)
    return {"median": np.median(values), "min": values.min(), "max": values.max()}


def reported(model) -> dict[str, dict[str, float]]:
    """Return the probe's statistics of each place."""
    places: dict[str, dict[str, float]] = {}
    for address, value in PROBE(model).values().items():
        place, _, statistic = address.rpartition(".")
        places.setdefault(place, {})[statistic] = value
    return places


def assert_reported(model, expected: dict):
    """Check that the probe reports exactly these places, with the statistics of these tensors."""
    actual = reported(model)
    assert actual.keys() == expected.keys()
    for place, values in expected.items():
        assert actual[place] == pytest.approx(statistics(values), rel=1e-6), place


@pytest.mark.parametrize("kind", KINDS)
def test_normformers_four_additions_are_reported_in_every_layer(kind):
    """Biases and Pre-LN's own LayerNorms are not."""
    model = noisy_model(kind, 3, method="normformer", normformer_scale_residual=True)
    stack = stack_of(kind)

    expected = {}
    for index, layer in enumerate(model.stacks()[stack].layers, 1):
        expected[f"{stack}.{index}.self_attn.inner.c"] = layer.self_attn.inner.c
        expected[f"{stack}.{index}.self_attn.outer"] = layer.outer["self_attn"][0].weight
        expected[f"{stack}.{index}.ffn.inner"] = layer.inner.weight
        expected[f"{stack}.{index}.ffn.residual.omega"] = layer.residual["ffn"].omega

    assert_reported(model, expected)


@torch.no_grad()
def dlcl_with_weights(rows):
    """Build a causal model of two layers with these weights of the outputs so far, one row for each reader."""
    model = noisy_model(LM, 2, method="dlcl")
    model.decoder.mixer.weights.weight.copy_(torch.tensor(rows))
    return model


def test_dlcls_weights_are_reported_by_row_over_existing_layers():
    """So are the LayerNorms of outputs."""
    model = dlcl_with_weights([[2.0, 0, 0], [-3, 5, 0], [7, 1, 4]])
    norms = model.decoder.mixer.norms

    assert_reported(
        model,
        {
            "decoder.mixer.weights.0": [2.0],
            "decoder.mixer.weights.1": [-3.0, 5.0],
            "decoder.mixer.weights.2": [7.0, 1.0, 4.0],
            "decoder.mixer.norms.1": norms[1].weight,
            "decoder.mixer.norms.2": norms[2].weight,
        },
    )


def test_a_row_of_dlcl_without_weights_is_not_reported():
    places = reported(dlcl_with_weights([[0.0, 0, 0], [-3, 5, 0], [7, 1, 4]]))

    assert "decoder.mixer.weights.0" not in places
    assert "decoder.mixer.weights.1" in places


@pytest.mark.parametrize("method", [*sorted(METHODS), "every_slot"])
def test_factors_in_slots_are_reported_and_no_other_parameter(method, every_slot):
    """Factors are 7 here, and all other parameters NaN."""
    model = helpers.small(2, method=method)
    factors = []
    for stack in model.stacks().values():
        for _, slot in stack.slots():
            for name, parameter in slot.named_parameters():
                if name.split(".")[-1] not in ("bias", "shift"):
                    factors.append(parameter)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
        for parameter in factors:
            parameter.fill_(7.0)

    values = set(PROBE(model).values().values())

    assert values == ({7.0} if factors else set())
    if method in WITH_FACTORS:
        assert factors
    if method in WITHOUT_FACTORS:
        assert not factors


def test_the_log_shows_means_of_medians_over_layers():
    values = {
        "decoder.1.ffn.inner.median": 2.0,
        "decoder.1.ffn.inner.min": 1.0,
        "decoder.1.ffn.inner.max": 6.0,
        "decoder.2.ffn.inner.median": 4.0,
        "decoder.2.ffn.inner.min": 2.0,
        "decoder.2.ffn.inner.max": 12.0,
        "decoder.1.self_attn.inner.c.median": 5.0,
        "decoder.mixer.weights.2.median": 0.5,
    }

    assert PROBE.summary(values) == {
        "decoder.ffn.inner": 3.0,
        "decoder.self_attn.inner.c": 5.0,
        "decoder.mixer.weights": 0.5,
    }
