"""Dry runs on the fake device: an update of fairseq's Trainer, and steps of beam search.

The dry runs compute nothing, and return Records of what was asked of the device, see device.py. They work only in the
process of a FakeGPU.
"""

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
    """Shape of a batch, whose sentences are equally long, but for one source that is shorter by a token."""

    rows: int = 128  # sentences
    source: int = 32  # tokens of each source
    target: int = 32  # tokens of each target


def train(flags: Sequence[str], shape: Shape = Shape(), steps: int = 2) -> Record:
    """Make updates of a training; return the Record of the last one.

    flags: of fairseq-train, beside those of models.TRAINING; shape: of the batches; steps: number of updates. The first
    also makes the optimiser's state, and so is no example of the others.
    """
    begin()
    if f"--arch={TORCHSCALE_ARCH}" in flags:
        from .. import torchscale  # noqa: F401 - which registers the architecture

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, DEVICE:
        trainer = trainer_of(["--max-tokens=4096", *flags])
        watch(trainer, _counted)
        trainer.begin_epoch(1)
    # the batches of an update lie on the host, and hold numbers
    batches = [batch(trainer.task, shape) for _ in range(trainer.cfg.optimization.update_freq[0])]

    with fake, DEVICE:
        for _ in range(steps):
            DEVICE.record = Record()
            trainer.train_step(batches, raise_oom=True)
        record = DEVICE.record
        DEVICE.record = Record()  # what the checks ask of the device does not count
        record.mismatches += mismatches(trainer)
    return record


def decode(fields: dict, dtype: torch.dtype, rows: int = 16, beams: int = 5, steps: int = 12) -> list[Record]:
    """Make the steps of a beam search, each with the reordering of the hypotheses; return a Record of each.

    fields: of the model's config, as `building.build` takes them; dtype: of the weights; rows: sentences, of 20 tokens
    each; beams: hypotheses of each; steps: tokens of a hypothesis. Every token is the number 5.
    """
    begin()
    records = []
    with FakeTensorMode(allow_non_fake_inputs=True), DEVICE, torch.no_grad():
        model = build(**fields).to(dtype).to(GPU).eval()
        model.make_generation_fast_(need_attn=False)

        # each sentence's encoder output is repeated for its hypotheses
        encoded = model.encoder(torch.full((rows, 20), 5, device=GPU))
        order = torch.arange(rows, device=GPU).repeat_interleave(beams, output_size=rows * beams)
        encoded = model.encoder.reorder_encoder_out(encoded, order)

        state: dict = {}  # incremental state of the decoder: keys and values so far
        for step in range(1, steps + 1):
            tokens = torch.full((rows * beams, step), 5, device=GPU)
            order = torch.arange(rows * beams, device=GPU)  # every hypothesis goes on from itself
            DEVICE.record = Record()
            model.decoder(tokens, encoder_out=encoded, incremental_state=state)
            model.decoder.reorder_incremental_state_scripting(state, order)
            records.append(DEVICE.record)
    return records


def begin() -> None:
    """Register the plug-in, silence warnings and logs, and put the fake device in place; a second call does no harm."""
    register()
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    be_there(DEVICE)


def batch(task, shape: Shape) -> dict:
    """Return a batch as fairseq's LanguagePairDataset collates it for the task; each sentence is only 5s."""
    source_lengths = [shape.source] * shape.rows
    source_lengths[-1] -= 1  # so that the batch has padding, as real ones have: models skip masks without it
    target_lengths = [shape.target] * shape.rows
    data = LanguagePairDataset(
        src=[torch.full((length,), 5) for length in source_lengths],
        src_sizes=source_lengths,
        src_dict=task.src_dict,
        tgt=[torch.full((length,), 5) for length in target_lengths],
        tgt_sizes=target_lengths,
        tgt_dict=task.tgt_dict,
    )
    return data.collater([data[row] for row in range(shape.rows)])


def _counted(function: Callable, part: str) -> Callable:
    """Return a function that calls `function`, and counts what that asks of the device under `part`."""

    def call(*args, **kwargs):
        """Call `function`; arguments and result are its own."""
        with DEVICE.during(part):
            return function(*args, **kwargs)

    return call


def mismatches(trainer) -> list[str]:
    """Return a line for each gradient unlike its parameter in type or device, and each moment not float32 on the GPU.

    Moments are the running means of gradients and their squares in the optimiser's state. trainer: fairseq's, after an
    update.
    """
    errors = []
    for name, parameter in trainer.get_model().named_parameters():
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.dtype != parameter.dtype or gradient.device != parameter.device:
            expected = f"{parameter.dtype} on {parameter.device}"
            errors.append(f"{name}: {expected}, its gradient {gradient.dtype} on {gradient.device}")

    # fairseq's wrappers for half precision, then fairseq's optimiser, then torch's
    optimiser = trainer.optimizer
    while hasattr(optimiser, "fp32_optimizer") or hasattr(optimiser, "wrapped_optimizer"):
        optimiser = getattr(optimiser, "fp32_optimizer", None) or optimiser.wrapped_optimizer
    optimiser = optimiser.optimizer

    states = list(optimiser.state.values())
    states += [part.moments for part in getattr(optimiser, "parts", ())]  # deepnet_adam's
    any_moments = False  # without one, the search above has not found the optimiser's state
    for state in states:
        for name, value in state.items():
            if not isinstance(value, torch.Tensor) or value.dim() == 0:
                continue  # a number, such as the count of updates
            any_moments = True
            if value.dtype != torch.float32 or value.device != GPU:
                errors.append(f"{name}: {value.dtype} on {value.device}")
    assert any_moments
    return errors
