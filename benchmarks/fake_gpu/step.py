"""Dry runs on the fake device: an update of fairseq's Trainer, and steps of beam search."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from fairseq.data import LanguagePairDataset
from torch._subclasses.fake_tensor import FakeTensorMode

from deepnet_fairseq import register
from deepnet_fairseq.plugin.building import build

from ..models import trainer_of, watch
from ..timing import TORCHSCALE_ARCH
from .device import GPU, Device, Record, be_there

DEVICE = Device()


@dataclass(frozen=True)
class Shape:
    """Shape of a batch: sentences, and tokens of each on both sides; one of the sources is shorter by a token."""

    rows: int = 128
    source: int = 32
    target: int = 32


def train(flags: Sequence[str], shape: Shape = Shape(), steps: int = 2) -> Record:
    """Return the record of the last of some updates; flags: of fairseq-train, beside those of models.TRAINING."""
    begin()
    if f"--arch={TORCHSCALE_ARCH}" in flags:
        from .. import torchscale  # noqa: F401
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, DEVICE:
        trainer = trainer_of(["--max-tokens=4096", *flags])
        watch(trainer, _counted)
        trainer.begin_epoch(1)
    batches = [batch(trainer.task, shape) for _ in range(trainer.cfg.optimization.update_freq[0])]
    with fake, DEVICE:
        for _ in range(steps):
            DEVICE.record = Record()
            trainer.train_step(batches, raise_oom=True)
        record, DEVICE.record = DEVICE.record, Record()
        record.mismatches += mismatches(trainer)
    return record


def decode(fields: dict, dtype: torch.dtype, rows: int = 16, beams: int = 5, steps: int = 12) -> list[Record]:
    """Return a record of each step of a beam search, with its reordering, by a model of these config fields."""
    begin()
    records = []
    with FakeTensorMode(allow_non_fake_inputs=True), DEVICE, torch.no_grad():
        net = build(**fields).to(dtype).to(GPU).eval()
        net.make_generation_fast_(need_attn=False)
        encoded = net.encoder(torch.full((rows, 20), 5, device=GPU))
        order = torch.arange(rows, device=GPU).repeat_interleave(beams, output_size=rows * beams)
        encoded, state = net.encoder.reorder_encoder_out(encoded, order), {}
        for step in range(1, steps + 1):
            tokens, order = torch.full((rows * beams, step), 5, device=GPU), torch.arange(rows * beams, device=GPU)
            DEVICE.record = Record()
            net.decoder(tokens, encoder_out=encoded, incremental_state=state)
            net.decoder.reorder_incremental_state_scripting(state, order)
            records.append(DEVICE.record)
    return records


def begin() -> None:
    """Prepare the process, before each run."""
    register()
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    be_there(DEVICE)


def batch(task, shape: Shape) -> dict:
    """Return a batch of the task's own collater."""
    sources, targets = ([length] * shape.rows for length in (shape.source, shape.target))
    sources[-1] -= 1
    sides = [[torch.full((length,), 5) for length in lengths] for lengths in (sources, targets)]
    data = LanguagePairDataset(sides[0], sources, task.src_dict, sides[1], targets, task.tgt_dict)
    return data.collater([data[row] for row in range(shape.rows)])


def _counted(function: Callable, part: str) -> Callable:
    """Return `function` with what it asks of the device counted under `part`."""

    def call(*args, **kwargs):
        with DEVICE.during(part):
            return function(*args, **kwargs)

    return call


def mismatches(trainer) -> list[str]:
    """Name gradients of another type or device than their parameter, and optimiser state that is not float32 there."""
    errors = []
    for name, parameter in trainer.get_model().named_parameters():
        gradient = parameter.grad
        if gradient is not None and (gradient.dtype, gradient.device) != (parameter.dtype, parameter.device):
            expected, has = (f"{one.dtype} on {one.device}" for one in (parameter, gradient))
            errors.append(f"{name}: {expected}, its gradient {has}")
    optimiser = trainer.optimizer
    while hasattr(optimiser, "fp32_optimizer") or hasattr(optimiser, "wrapped_optimizer"):
        optimiser = getattr(optimiser, "fp32_optimizer", None) or optimiser.wrapped_optimizer
    optimiser = optimiser.optimizer
    states = [*optimiser.state.values(), *(part.moments for part in getattr(optimiser, "parts", ()))]
    moments = [
        (key, one) for state in states for key, one in state.items() if isinstance(one, torch.Tensor) and one.dim()
    ]
    assert moments
    wrong = [(key, one) for key, one in moments if (one.dtype, one.device) != (torch.float32, GPU)]
    return errors + [f"{key}: {one.dtype} on {one.device}" for key, one in wrong]
