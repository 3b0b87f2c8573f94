"""Dry runs on the fake device: a step of fairseq's Trainer, and of beam search."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from fairseq.data import LanguagePairDataset
from torch._subclasses.fake_tensor import FakeTensorMode

from deepnet_fairseq.plugin.building import build
from deepnet_fairseq.plugin.trainer import build_trainer, parse
from deepnet_fairseq.tools.bench import synthetic_task

from .device import GPU, Device, Record, be_there

BASE = (
    ".", "--task", synthetic_task.NAME, "--share-all-embeddings", "--dropout", "0.1", "--clip-norm", "1.0",
    "--adam-betas", "(0.9, 0.98)", "--lr", "5e-4", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4000",
    "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--max-tokens", "4096",
    "--disable-validation", "--no-save",
)  # fmt: skip
TORCHSCALE = "deepnet_bench_torchscale"  # an arch that is there where torchscale is
UPDATE = ("clip", "optimiser")  # phases
DEVICE = Device()


@dataclass(frozen=True)
class Shape:
    """Of a batch: sentences, tokens of each on both sides; padded: is one of the sources shorter?"""

    rows: int = 128
    source: int = 32
    target: int = 32
    padded: bool = True


def model(layers: int, width: int, arch: str = "deepnet_transformer") -> list[str]:
    """Flags of a model of so many layers in both stacks."""
    sizes = {"layers": layers, "embed-dim": width, "ffn-embed-dim": 4 * width, "attention-heads": max(1, width // 64)}
    stacks = [f"--{stack}-{name}={size}" for name, size in sizes.items() for stack in ("encoder", "decoder")]
    return ["--arch", arch, *stacks]


def train(flags: Sequence[str], shape: Shape = Shape(), steps: int = 2) -> Record:
    """The last of some updates, of which fairseq-train's flags say what is not in BASE."""
    begin()
    if TORCHSCALE in flags:
        from deepnet_fairseq.tools.bench import torchscale  # noqa: F401
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, DEVICE:
        trainer = build_trainer(parse([*BASE, *flags]))
        watch(trainer)
        trainer.begin_epoch(1)
    batches = [batch(trainer.task, shape) for _ in range(trainer.cfg.optimization.update_freq[0])]
    with fake, DEVICE:
        for _ in range(steps):
            DEVICE.record = Record()
            trainer.train_step(batches, raise_oom=True)
        record, DEVICE.record = DEVICE.record, Record()
        record.mismatches += mismatches(trainer)
    return record


def refused(flags: Sequence[str]) -> bool:
    """Does fairseq-train refuse its flags here?"""
    begin()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parse([*BASE, *model(2, 64), *flags])
    except SystemExit:
        return True
    return False


def decode(fields: dict, dtype: torch.dtype, rows: int = 16, beams: int = 5, steps: int = 12) -> list[Record]:
    """Each step of a beam search, with its reordering, by a model of those fields of its config."""
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
    """Before anything is asked of the device; again before each run."""
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    be_there(DEVICE)


def batch(task, shape: Shape) -> dict:
    """As the task's own collater makes it."""
    sources, targets = ([length] * shape.rows for length in (shape.source, shape.target))
    sources[-1] -= shape.padded
    sides = [[torch.full((length,), 5) for length in lengths] for lengths in (sources, targets)]
    data = LanguagePairDataset(sides[0], sources, task.src_dict, sides[1], targets, task.tgt_dict)
    return data.collater([data[row] for row in range(shape.rows)])


def watch(trainer) -> None:
    """The device counts by phase of the step from now on."""
    for owner, attribute, phase in (
        (trainer, "_prepare_sample", "input"),
        (trainer.criterion, "forward", "forward"),
        (trainer.optimizer, "backward", "backward"),
        (trainer.optimizer, "multiply_grads", "clip"),
        (trainer, "clip_grad_norm", "clip"),
        (trainer.task, "optimizer_step", "optimiser"),
        (trainer.optimizer, "zero_grad", "optimiser"),
        (trainer, "_reduce_and_log_stats", "log"),
    ):
        setattr(owner, attribute, _during(phase, getattr(owner, attribute)))


def _during(phase: str, function):
    def call(*args, **kwargs):
        with DEVICE.during(phase):
            return function(*args, **kwargs)

    return call


def mismatches(trainer) -> list[str]:
    """Gradients of another type or device than their parameter, state of the optimiser that is not float32 there."""
    found = []
    for name, parameter in trainer.get_model().named_parameters():
        gradient = parameter.grad
        if gradient is not None and (gradient.dtype, gradient.device) != (parameter.dtype, parameter.device):
            found.append(
                f"{name}: {parameter.dtype} on {parameter.device}, its gradient {gradient.dtype} on {gradient.device}"
            )
    optimiser = trainer.optimizer
    while hasattr(optimiser, "fp32_optimizer") or hasattr(optimiser, "wrapped_optimizer"):
        optimiser = getattr(optimiser, "fp32_optimizer", None) or optimiser.wrapped_optimizer
    optimiser = optimiser.optimizer
    states = [*optimiser.state.values(), *(part.moments for part in getattr(optimiser, "parts", ()))]
    moments = [
        (key, one) for state in states for key, one in state.items() if isinstance(one, torch.Tensor) and one.dim()
    ]
    assert moments
    return found + [
        f"{key}: {one.dtype} on {one.device}" for key, one in moments if (one.dtype, one.device) != (torch.float32, GPU)
    ]
