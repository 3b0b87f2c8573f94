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
    """Draw a translator's batch as fairseq passes it, as the keyword arguments of a call; see helpers.batch."""
    src, prev = batch(rows=rows, seed=seed)
    return {"src_tokens": src, "src_lengths": src.ne(PAD).sum(1), "prev_output_tokens": prev}


def loss_of(model, inputs):
    """Compute a translator's cross-entropy, summed over the tokens as fairseq's criterion does, for `net_input`.

    The targets are 0, 1, 2, ...: which ones is of no account, as long as they are the same for every model.
    """
    targets = torch.arange(inputs["prev_output_tokens"].numel()) % VOCAB
    scores = model(**inputs)[0].flatten(0, 1)
    return F.cross_entropy(scores, targets, reduction="sum")


def observe(model, batches, names="all", scale=1.0, loss=loss_of, held_out=None):
    """Return the probes' values of one update, name of the probe -> address -> value.

    batches: of the update, whose gradients are added; names: of probes, with commas between, or "all"
    scale: number that the loss is divided by, and by which the probes multiply gradients to undo that
    loss: function of model and batch; held_out: batch that model updates are measured on, as keyword arguments of a
      call. A language model needs both of its own.
    """
    session = Session(model, get_probes(names))
    if held_out is None:
        held_out = net_input(seed=9)
    session.fixed_batch = FixedBatch(held_out, outputs(model, held_out))

    session.begin()
    for inputs in batches:
        (loss(model, inputs) / scale).backward()
    for probe in session.watching:  # sums with an autograd graph would keep the activations of all batches
        for value in getattr(probe, "sums", {}).values():
            assert not value.requires_grad, f"{probe} keeps an autograd graph"
    session.gradients(scale)
    values = session.values()
    session.end()
    return values


def assert_nearly_equal(actual, expected, tolerance=1e-5):
    """Check that two dicts of numbers have the same keys, and values within a relative `tolerance`."""
    assert actual.keys() == expected.keys()
    for address, value in expected.items():
        assert actual[address] == pytest.approx(value, rel=tolerance, abs=1e-9), address


@contextmanager
def recording(model: nn.Module):
    """Provide a dict Site -> variances of (shortcut, branch), which each forward pass inside the block overwrites."""
    variances: dict[Site, tuple[float, float]] = {}

    def visit(site, residual, x, f):
        variances[site] = variance(x), variance(f)

    with watching(model, visit):
        yield variances
