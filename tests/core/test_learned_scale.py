"""Tests of learned factors as the probe reports them, against the parameters themselves."""

import math

import numpy as np
import pytest
import torch

from deepnet_fairseq.core import archs
from deepnet_fairseq.core.methods import METHODS
from deepnet_fairseq.core.probes import PROBES

from ..support import helpers
from ..support.single_stacks import KINDS, awake, stack_of
from .test_methods import every_slot  # noqa: F401

PROBE = PROBES["learned_scale"]
LM = archs.LM


def three(values) -> dict[str, float]:
    """Compute the probe's three statistics with numpy."""
    values = np.asarray(values.detach().double() if torch.is_tensor(values) else values)
    return {"median": np.median(values), "min": values.min(), "max": values.max()}


def by_place(values: dict[str, float]) -> dict[str, dict[str, float]]:
    places: dict[str, dict[str, float]] = {}
    for address, value in values.items():
        place, _, statistic = address.rpartition(".")
        places.setdefault(place, {})[statistic] = value
    return places


def check(model, expected: dict):
    """Check that the probe reports exactly these places, with the statistics of these tensors."""
    actual = by_place(PROBE(model).values())
    assert actual.keys() == expected.keys()
    for place, values in expected.items():
        assert actual[place] == pytest.approx(three(values), rel=1e-6), place


@pytest.mark.parametrize("kind", KINDS)
def test_normformer(kind):
    """NormFormer's four additions in every layer are reported, without biases and without Pre-LN's LayerNorms."""
    model, stack = noisy_model(kind, 3, method="normformer", normformer_scale_residual=True), stack_of(kind)
    expected = {}
    for index, layer in enumerate(model.stacks()[stack].layers, 1):
        expected[f"{stack}.{index}.self_attn.inner.c"] = layer.self_attn.inner.c
        expected[f"{stack}.{index}.self_attn.outer"] = layer.outer["self_attn"][0].weight
        expected[f"{stack}.{index}.ffn.inner"] = layer.inner.weight
        expected[f"{stack}.{index}.ffn.residual.omega"] = layer.residual["ffn"].omega
    check(model, expected)


def test_weights_of_earlier_layers():
    """DLCL's weights are reported by row, over the existing layers, with the LayerNorm of each output."""
    model = noisy_model(LM, 2, method="dlcl")
    with torch.no_grad():
        model.decoder.mixer.weights.weight.copy_(torch.tensor([[2.0, 0, 0], [-3, 5, 0], [7, 1, 4]]))
    rows = {f"decoder.mixer.weights.{i}": row for i, row in enumerate(([2.0], [-3.0, 5.0], [7.0, 1.0, 4.0]))}
    check(model, rows | {f"decoder.mixer.norms.{i}": model.decoder.mixer.norms[i].weight for i in (1, 2)})
    with torch.no_grad():
        model.decoder.mixer.weights.weight[0] = 0.0
    assert "decoder.mixer.weights.0" not in by_place(PROBE(model).values())  # no factor is in use


@pytest.mark.parametrize("method", [*sorted(METHODS), "every_slot"])
def test_factors_in_slots_and_nothing_else(method, every_slot):  # noqa: F811
    """Factors in slots are all reported, and no other parameter of the model."""
    model = helpers.small(2, method=method)
    slots = [slot for stack in model.stacks().values() for _, slot in stack.slots()]
    inside = {p: name for slot in slots for name, p in slot.named_parameters()}
    factors = [p for p, name in inside.items() if name.split(".")[-1] not in ("bias", "shift")]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
        for parameter in factors:
            parameter.fill_(7.0)
    report = PROBE(model).values()
    assert set(report.values()) == ({7.0} if factors else set())
    assert factors or method not in ("admin", "normformer", "rezero", "dlcl")
    assert not factors or method not in ("deepnorm", "post_ln", "pre_ln", "t_fixup")


def test_the_log_has_medians():
    values = {f"decoder.{l}.ffn.inner.{name}": l * x for l in (1, 2) for name, x in three([1, 2, 6]).items()}
    values |= {"decoder.1.self_attn.inner.c.median": 5.0, "decoder.mixer.weights.2.median": 0.5}
    means = {"decoder.ffn.inner": 3.0, "decoder.self_attn.inner.c": 5.0, "decoder.mixer.weights": 0.5}
    assert PROBE.summary(values) == means
