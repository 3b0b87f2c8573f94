"""fairseq's training, watched by probes: when they look, what they compare with, where it is written.

The task's and the optimiser's methods are wrapped, on the instances alone.
"""

from __future__ import annotations

import functools
import logging
import math
import pickle
from pathlib import Path
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.optim.amp_optimizer import AMPOptimizer
from torch import Tensor, nn

from ..core.probes import Probe, get_probes
from ..core.probes.base import Held
from ..core.probes.model_update import outputs
from ..core.probes.session import Session
from ..files import save
from .admin_profile import held_training_batch
from .optimisers.half_precision import gradient_scale
from .probe_record import FILE, Writer

REFERENCE = "probes.reference.pt"  # beside the checkpoints: F(x, theta_0), for a resumed run
BROKEN = (pickle.UnpicklingError, RuntimeError, OSError, EOFError, LookupError, ValueError, AttributeError, TypeError)
logger = logging.getLogger(__name__)


class TrainingProbes:
    """The probes of a fairseq-train run, every `interval` updates: into fairseq's log and the file in `folder`.

    header: what the file says of the run beside the probes' names and the interval.
    """

    def __init__(self, model: nn.Module, probes: list[type[Probe]], interval: int, folder: Path, header: dict):
        self.session = Session(model, probes)
        self.interval, self.folder = interval, folder
        self.header = header | {"probes": [probe.name for probe in probes], "interval": interval}
        self.writer: Writer | None = None  # of the first rank
        self.iterator: Any = None
        self.update = 0
        self._wrapped = None  # the optimiser in use
        self._written: int | None = None  # last update with a row: fairseq repeats a step that failed, to look into it

    def attach(self, task: Any) -> None:
        """Wraps the task that is about to train the model; one that only translates with it is left alone."""
        if not hasattr(task, "get_batch_iterator"):
            return
        get_batch_iterator, train_step = task.get_batch_iterator, task.train_step

        def first_iterator(*args: Any, **kwargs: Any) -> Any:
            task.get_batch_iterator = get_batch_iterator
            self.iterator = get_batch_iterator(*args, **kwargs)
            return self.iterator

        @functools.wraps(train_step)
        def probed_step(
            sample: Any, model: Any, criterion: Any, optimizer: Any, update_num: int, *args: Any, **kwargs: Any
        ) -> Any:
            self.before_step(optimizer, update_num, dummy=kwargs.get("ignore_grad", False))
            return train_step(sample, model, criterion, optimizer, update_num, *args, **kwargs)

        task.get_batch_iterator, task.train_step = first_iterator, probed_step

    def before_step(self, optimizer: Any, update: int, dummy: bool = False) -> None:
        """Before each forward pass of training: the first of a probed update begins a session.

        dummy: the batch counts for nothing, it keeps a rank busy that has no more of its own.
        """
        if self._wrapped is None:
            self._open(update)
        if optimizer is not self._wrapped:
            self._wrap(optimizer)
        if update % self.interval == 0 and not self.session.watching and update != self._written:
            self.update = update
            self.session.model.set_num_updates(update)  # as the training step is about to
            self.session.begin()
        self.session.dummy = dummy

    def _wrap(self, optimizer: Any) -> None:
        """All gradients are accumulated and reduced when fairseq clips them, and not clipped yet."""
        clip = optimizer.clip_grad_norm

        @functools.wraps(clip)
        def probed_clip(*args: Any, **kwargs: Any) -> Any:
            try:
                if self.session.watching:
                    self.session.gradients(gradient_scale(optimizer))
                norm = clip(*args, **kwargs)  # fp16 raises at an overflow: the update is not made
                skipped = isinstance(optimizer, AMPOptimizer) and not torch.isfinite(norm)  # AMP does so without a word
                if self.session.watching and not skipped:
                    self._write()
                return norm
            finally:
                self.session.end()

        optimizer.clip_grad_norm, self._wrapped = probed_clip, optimizer

    def _write(self) -> None:
        values = self.session.values()
        self._written = self.update
        if self.writer is not None:
            self.writer.row(self.update, values)
        for key, value in self.session.summary(values).items():
            if math.isfinite(value):
                metrics.log_scalar(key, float(f"{value:.5g}"), priority=2000)

    def _open(self, update: int) -> None:
        """Starts or continues the run's file and settles on its held batch and F(x, theta_0)."""
        first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
        if first:
            self.writer = Writer(self.folder / FILE, self.header, fresh=update == 0)
        if any(probe.needs_held for probe in self.session.kinds):
            model = self.session.model
            net_input = held_training_batch(self.iterator, next(model.parameters()).device)
            kept = reference(model, net_input, self.folder / REFERENCE, update, write=first)
            self.session.held = Held(net_input, kept)


def attach_probes(model: nn.Module, task: Any, cfg: Any) -> None:
    """Watches the training of `model` by `task` as a filled model config asks; without --deepnet-probe, nothing."""
    probes = get_probes(cfg.deepnet_probe)
    if probes:
        names = ("encoder_layers", "decoder_layers", "encoder_embed_dim", "decoder_embed_dim")
        header = {"method": cfg.method} | {name: getattr(cfg, name) for name in names if hasattr(cfg, name)}
        TrainingProbes(model, probes, cfg.probe_interval, Path(cfg.probe_dir), header).attach(task)


def reference(model: nn.Module, net_input: dict, path: Path, update: int, write: bool) -> dict[str, Tensor]:
    """F(x, theta_0) on the held batch: what the model gives now at update 0, else what `path` holds.

    A resumed run that finds no such file, or one of another batch, counts from where it is, and says so.
    """
    held = net_input["src_tokens"]
    if update:
        try:
            kept = torch.load(path, map_location="cpu", weights_only=True)
            if torch.equal(kept["src_tokens"], held.cpu()):
                return {name: value.to(held.device) for name, value in kept["outputs"].items()}
        except BROKEN:
            pass
        logger.warning(f"{path}: does not hold the outputs of update 0; model_update counts from update {update}")
    now = outputs(model, net_input)
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        cpu = {name: value.cpu() for name, value in now.items()}
        save({"src_tokens": held.cpu(), "update": update, "outputs": cpu}, path)
    return now
