"""Probed updates of small models, and the variances of their branches."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deepnet_fairseq.core.probes import get_probes
from deepnet_fairseq.core.probes.base import FixedBatch
from deepnet_fairseq.core.probes.model_update import outputs
from deepnet_fairseq.core.probes.session import Session
from deepnet_fairseq.core.profile import variance, watching
from deepnet_fairseq.core.slots import Site

from .helpers import PAD, VOCAB, batch


def net_input(rows=3, seed=0):
    """Draw a translator's batch as fairseq passes it: the keyword arguments of a call."""
    src, prev = batch(rows=rows, seed=seed)
    return {"src_tokens": src, "src_lengths": src.ne(PAD).sum(1), "prev_output_tokens": prev}


def loss_of(model, inputs):
    """Compute the summed cross-entropy against fixed targets, calling the model as fairseq's criterion does."""
    targets = torch.arange(inputs["prev_output_tokens"].numel()) % VOCAB
    return F.cross_entropy(model(**inputs)[0].flatten(0, 1), targets, reduction="sum")


def observe(model, batches, names="all", scale=1.0, loss=loss_of, held=None):
    """Return the probes' values of one update on the given batches.

    scale: number that losses are divided by before the backward pass, as a trainer's loss scaling does inversely;
    loss: function of model and batch; held: held-out batch. Models other than translators need both.
    """
    session = Session(model, get_probes(names))
    held = held or net_input(seed=9)
    session.fixed_batch = FixedBatch(held, outputs(model, held))

    session.begin()
    for inputs in batches:
        (loss(model, inputs) / scale).backward()
    for probe in session.watching:
        for value in getattr(probe, "sums", {}).values():
            assert not value.requires_grad, f"{probe} keeps an autograd graph"
    session.gradients(scale)
    values = session.values()
    session.end()
    return values


def close(actual, expected, tolerance=1e-5):
    """Check that two dicts of numbers have the same keys and nearly the same values."""
    assert actual.keys() == expected.keys()
    for address, value in expected.items():
        assert actual[address] == pytest.approx(value, rel=tolerance, abs=1e-9), address


@contextmanager
def recording(model: nn.Module):
    """Provide a dict Site -> variances of shortcut and branch, which each forward pass inside the context refills."""
    variances: dict[Site, tuple[float, float]] = {}

    def visit(site, residual, x, f):
        variances[site] = variance(x), variance(f)

    with watching(model, visit):
        yield variances
