"""Tests of learned factors as the probe `learned_scale` reports them, against the parameters themselves.

The probe reports median, minimum and maximum of each vector by which a method's modules multiply, by address:
"decoder.3.ffn.inner" is the vector in the slot `inner` of the feed-forward branch of layer 3, counted from 1.
"""

import math

import numpy as np
import pytest
import torch

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.probes import PROBES

from ..support import helpers
from ..support.single_stacks import SINGLE_STACKS as LANGUAGE_MODELS
from ..support.single_stacks import noisy_model, stack_of

PROBE = PROBES["learned_scale"]
LM = archs.LM
WITH_FACTORS = ("admin", "normformer", "rezero", "dlcl")
WITHOUT_FACTORS = ("deepnorm", "post_ln", "pre_ln", "t_fixup")


def statistics(values) -> dict[str, float]:
    """Compute the probe's three statistics of a tensor or a list of numbers, with numpy."""
    if torch.is_tensor(values):
        values = values.detach().double()
    values = np.asarray(values)
    return {"median": np.median(values), "min": values.min(), "max": values.max()}


def reported_statistics(model) -> dict[str, dict[str, float]]:
    """Return address of a vector -> name of a statistic -> the probe's number."""
    by_address: dict[str, dict[str, float]] = {}
    for full_address, value in PROBE(model).values().items():
        address, _, statistic = full_address.rpartition(".")
        by_address.setdefault(address, {})[statistic] = value
    return by_address


def assert_reported(model, vectors: dict):
    """Check that the probe reports exactly the vectors at these addresses, with their statistics."""
    actual = reported_statistics(model)
    assert actual.keys() == vectors.keys()
    for address, vector in vectors.items():
        assert actual[address] == pytest.approx(statistics(vector), rel=1e-6), address


@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_normformers_four_additions_are_reported_in_every_layer(kind):
    """The additions are factors on heads, LayerNorms behind attention and in the FFN, and factors on the shortcut.

    Biases and Pre-LN's own LayerNorms are not reported.
    """
    model = noisy_model(kind, 3, method="normformer", normformer_scale_residual=True)
    stack = stack_of(kind)

    vectors = {}
    for number, layer in enumerate(model.stacks()[stack].layers, 1):
        vectors[f"{stack}.{number}.self_attn.inner.c"] = layer.self_attn.inner.c
        vectors[f"{stack}.{number}.self_attn.outer"] = layer.outer["self_attn"][0].weight
        vectors[f"{stack}.{number}.ffn.inner"] = layer.inner.weight
        vectors[f"{stack}.{number}.ffn.residual.omega"] = layer.residual["ffn"].omega

    assert_reported(model, vectors)


@torch.no_grad()
def dlcl_with_weights(rows):
    """Build a causal model of two layers with DLCL's matrix W (3, 3): row l weighs outputs 0 to l for layer l + 1."""
    model = noisy_model(LM, 2, method="dlcl")
    model.decoder.mixer.weights.weight.copy_(torch.tensor(rows))
    return model


def test_dlcls_weights_are_reported_by_row_without_the_upper_triangle():
    """The gains of the LayerNorms of outputs 1 and 2 are reported, too."""
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
    statistics_by_address = reported_statistics(dlcl_with_weights([[0.0, 0, 0], [-3, 5, 0], [7, 1, 4]]))

    assert "decoder.mixer.weights.0" not in statistics_by_address
    assert "decoder.mixer.weights.1" in statistics_by_address


def factors_in_slots(model):
    """Return the parameters in slots, without those that are added or subtracted."""
    factors = []
    for stack in model.stacks().values():
        for _, slot in stack.slots():
            for name, parameter in slot.named_parameters():
                if name.split(".")[-1] not in ("bias", "shift"):
                    factors.append(parameter)
    return factors


@pytest.mark.usefixtures("every_slot")
@pytest.mark.parametrize("method", [*sorted(METHODS), "every_slot"])
def test_factors_in_slots_are_reported_and_no_other_parameter(method):
    """Factors are 7 here, and all other parameters NaN. every_slot fills every slot with parameters."""
    model = helpers.small(2, method=method)
    factors = factors_in_slots(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
        for factor in factors:
            factor.fill_(7.0)

    reported = set(PROBE(model).values().values())

    assert reported == ({7.0} if factors else set())


@pytest.mark.parametrize("method", WITH_FACTORS)
def test_methods_that_learn_factors_report_some(method):
    assert PROBE(helpers.small(2, method=method)).values()


@pytest.mark.parametrize("method", WITHOUT_FACTORS)
def test_methods_that_learn_no_factors_report_nothing(method):
    assert not PROBE(helpers.small(2, method=method)).values()


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

    summary = PROBE.summary(values)

    assert summary == {
        "decoder.ffn.inner": (2.0 + 4.0) / 2,
        "decoder.self_attn.inner.c": 5.0,
        "decoder.mixer.weights": 0.5,
    }
