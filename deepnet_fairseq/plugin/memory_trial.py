"""Out of memory in the first minute, not after an epoch: a start's forward and backward pass on the largest batch.

Beside it lies what the optimiser will keep, where that is not there yet. Gradients are dropped and random numbers put
back, so a training's bits are those without; every rank tries the same batch.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterator

import numpy
import torch

from ..errors import UserError, out_of_memory
from .divergence.search import drop_gradients, local

WHEN = ("auto", "always", "never")
DEEP = 100  # layers, encoder and decoder together: beyond it "auto" tries on a GPU
MOMENTS = 2  # of float32, which Adam keeps of a parameter
TRIED = "deepnet_memory_tried"  # attribute of a trainer
logger = logging.getLogger(__name__)


def try_once(original, cfg, trainer, task, epoch_itr):
    """Before a process's first epoch. UserError, naming the flag, if the batch does not fit."""
    if TRIED not in vars(trainer):
        vars(trainer)[TRIED] = True
        when, stacks = getattr(cfg.model, "memory_trial", "never"), ("encoder_layers", "decoder_layers")
        deep = sum(getattr(cfg.model, stack, 0) or 0 for stack in stacks) > DEEP
        if str(when) == "always" or (str(when) == "auto" and deep and trainer.cuda):
            try_largest(cfg, trainer, task, epoch_itr)
    return original(cfg, trainer, task, epoch_itr)


def try_largest(cfg, trainer, task, epoch_itr) -> None:
    """A forward and a backward pass as an update's, on the batch that takes most; what it costs is an update's time."""
    rows, width = largest(epoch_itr)
    size = f"{len(rows)} sentence{'s' * (len(rows) != 1)} of up to {width} tokens"
    if trainer.cuda:
        torch.cuda.reset_peak_memory_stats()
    try:
        with random_numbers_as_before(trainer.device):
            kept = _optimizer_to_come(cfg, trainer)
            if getattr(epoch_itr.dataset, "supports_prefetch", False):  # of data that is read as it is asked for
                epoch_itr.dataset.prefetch(rows)
            sample, _ = trainer._prepare_sample(epoch_itr.collate_fn([epoch_itr.dataset[row] for row in rows]))
            trainer.model.train()
            trainer.criterion.train()
            batch = (sample, trainer.model, trainer.criterion, trainer.optimizer, trainer.get_num_updates())
            type(task).train_step(task, *batch)  # probes watch the task itself
            del kept
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        flag, number = _batch_flag(cfg)
        raise UserError(
            f"{flag} {number}: out of memory on the largest batch, {size}; halve it and double --update-freq, or add "
            "--checkpoint-activations; `deepnet plan` with these flags and --gpu-memory says what fits"
        ) from error
    finally:
        drop_gradients(trainer)
    peak = f", {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most" if trainer.cuda else ""
    logger.info(f"the largest batch, {size}, fits into memory{peak}")


def largest(epoch_itr) -> tuple[list[int], int]:
    """Of the batch with most positions, and among such the longest sentence: its rows of the data; that length."""
    data = epoch_itr.dataset

    def width(rows) -> int:
        try:
            return int(data.num_tokens_vec(numpy.asarray(rows)).max())
        except NotImplementedError:
            return max(map(data.num_tokens, rows))

    found = max(((len(rows) * (longest := width(rows)), longest, i) for i, rows in enumerate(epoch_itr.frozen_batches)))
    return [int(row) for row in epoch_itr.frozen_batches[found[2]]], found[1]


@contextlib.contextmanager
def random_numbers_as_before(device: torch.device) -> Iterator[None]:
    """Python's, NumPy's, torch's of the CPU and of `device`, whatever is drawn within."""
    python, array = random.getstate(), numpy.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(array)


def _optimizer_to_come(cfg, trainer) -> list[torch.Tensor]:
    """As much memory as Adam takes at its first update; none where its state has been loaded, or for others."""
    inner = trainer.optimizer.optimizer
    if inner.state or any(part.moments for part in getattr(inner, "parts", ())):  # ours keeps them apart
        return []
    parts = trainer.data_parallel_world_size if cfg.distributed_training.zero_sharding == "os" else 1
    return [
        torch.empty(MOMENTS * local(parameter).numel() // parts, dtype=torch.float32, device=trainer.device)
        for group in getattr(inner, "param_groups", ())  # a composite one has none
        for parameter in group["params"]
        if "betas" in group
    ]


def _batch_flag(cfg) -> tuple[str, int]:
    tokens = cfg.dataset.max_tokens
    return ("--max-tokens", tokens) if tokens else ("--batch-size", cfg.dataset.batch_size)
