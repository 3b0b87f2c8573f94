"""Run probes in fairseq's training: choose the updates, keep the reference, write the file.

DeepTrainer calls them before each batch and around the clipping of gradients.
"""

from __future__ import annotations

import logging
import math
import pickle
from pathlib import Path
from typing import Any

import torch
from fairseq.logging import metrics
from torch import Tensor, nn

from ..core.probes import Probe, get_probes
from ..core.probes.base import HeldBatch
from ..core.probes.model_update import outputs
from ..core.probes.session import Session
from ..files import save
from .batches import held_training_batch
from .distributed import agreement
from .probe_record import FILE, Writer

REFERENCE = "probes.reference.pt"  # beside the checkpoints: F(x, theta_0), for a resumed run
BROKEN = (pickle.UnpicklingError, RuntimeError, OSError, EOFError, LookupError, ValueError, AttributeError, TypeError)
logger = logging.getLogger(__name__)


class TrainingProbes:
    """Probes of a fairseq-train run: they write to fairseq's log and a file in `folder` every `interval` updates.

    probes: their classes; header: facts of the run for the file, beside the probes' names and the interval.
    """

    def __init__(self, model: nn.Module, probes: list[type[Probe]], interval: int, folder: Path, header: dict):
        self.session = Session(model, probes)
        self.interval = interval
        self.folder = folder
        self.header = header | {"probes": [probe.name for probe in probes], "interval": interval}
        self.writer: Writer | None = None  # on the first rank
        self.iterator: Any = None  # the training's first iterator, from which the held batch comes
        self.update = 0
        self._opened = False
        self._written: int | None = None  # last update with a row: fairseq repeats a step that failed, to look into it

    def before_batch(self, update: int, dummy: bool = False) -> None:
        """Prepare for a batch of training; the first of a probed update begins a session.

        dummy: the batch counts for nothing and keeps a process busy that has no more batches of its own.
        """
        if not self._opened:
            self._open(update)
        if update % self.interval == 0 and not self.session.watching and update != self._written:
            self.update = update
            self.session.model.set_num_updates(update)  # as the training step is about to
            self.session.begin()
        self.session.dummy = dummy

    def see_gradients(self, scale: float | Tensor) -> None:
        """Show the probes an update's gradients, which are accumulated, reduced over processes and not yet clipped.

        scale: turns the gradients at hand into those of the mean loss.
        """
        if self.session.watching:
            self.session.gradients(scale)

    def end_update(self, made: bool) -> None:
        """End the session, and write its values if the update was made."""
        try:
            if self.session.watching and made:
                self._write()
        finally:
            self.session.end()

    def _write(self) -> None:
        values = self.session.values()
        self._written = self.update
        if self.writer is not None:
            self.writer.row(self.update, values)
        for key, value in self.session.summary(values).items():
            if math.isfinite(value):
                metrics.log_scalar(key, float(f"{value:.5g}"), priority=2000)

    def _open(self, update: int) -> None:
        """Start or continue the run's file, and set the held batch and F(x, theta_0)."""
        self._opened = True
        first = agreement.is_first()
        if first:
            self.writer = Writer(self.folder / FILE, self.header, fresh=update == 0)
        if any(probe.needs_held for probe in self.session.kinds):
            model = self.session.model
            net_input = held_training_batch(self.iterator, next(model.parameters()).device)
            outputs_at_start = reference(model, net_input, self.folder / REFERENCE, update, write=first)
            self.session.held_batch = HeldBatch(net_input, outputs_at_start)


def probes_of(model: nn.Module, cfg: Any) -> TrainingProbes | None:
    """Make the probes that a model's config asks for, None without --deepnet-probe."""
    probes = get_probes(getattr(cfg, "deepnet_probe", None))
    if not probes:
        return None

    header = {"method": cfg.method}
    for name in ("encoder_layers", "decoder_layers", "encoder_embed_dim", "decoder_embed_dim"):
        if hasattr(cfg, name):
            header[name] = getattr(cfg, name)
    return TrainingProbes(model, probes, cfg.probe_interval, Path(cfg.probe_dir), header)


def reference(model: nn.Module, net_input: dict, path: Path, update: int, write: bool) -> dict[str, Tensor]:
    """Return F(x, theta_0) on the held batch: the model's outputs at update 0, later those that `path` holds.

    net_input: of the held batch; write: whether this process writes the outputs of the model to `path`. A resumed run
    without that file, or with one of another batch, warns and takes the present outputs.
    """
    tokens = net_input["src_tokens"]
    if update:
        try:
            kept = torch.load(path, map_location="cpu", weights_only=True)
            if torch.equal(kept["src_tokens"], tokens.cpu()):
                return {name: value.to(tokens.device) for name, value in kept["outputs"].items()}
        except BROKEN:
            pass
        logger.warning(f"{path}: does not hold the outputs of update 0; model_update counts from update {update}")

    present = outputs(model, net_input)
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        on_cpu = {name: value.cpu() for name, value in present.items()}
        save({"src_tokens": tokens.cpu(), "update": update, "outputs": on_cpu}, path)
    return present
