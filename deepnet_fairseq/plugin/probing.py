"""Run --deepnet-probe's probes in fairseq's training: choose the updates to observe, and write their values.

DeepTask calls TrainingProbes before each batch, and DeepTrainer around the clipping of gradients. Some probes need the
held batch, which stays the same throughout a run (batches.py), and the reference F(x, theta_0): the outputs of the
model on it before the first update. The reference is kept in a file, for a resumed run.
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
from ..core.probes.base import FixedBatch
from ..core.probes.model_update import outputs
from ..core.probes.session import Session
from ..files import save_tensors
from .batches import held_training_batch
from .distributed import agreement
from .probe_record import FILE, Writer

REFERENCE = "probes.reference.pt"  # beside the checkpoints
# what torch.load and the use of its result raise for a missing, damaged or foreign file
BROKEN = (pickle.UnpicklingError, RuntimeError, OSError, EOFError, LookupError, ValueError, AttributeError, TypeError)
logger = logging.getLogger(__name__)


class TrainingProbes:
    """Probes of a fairseq-train run: they write to fairseq's log and to probes.jsonl every `interval` updates.

    model: without DistributedDataParallel's wrapper; probes: classes of the probes; folder: in which probes.jsonl is;
    header: facts of the run for the first line of that file, {name: value}, to which the probes' names and the interval
    are added.
    """

    def __init__(self, model: nn.Module, probes: list[type[Probe]], interval: int, folder: Path, header: dict):
        self.session = Session(model, probes)
        self.interval = interval
        self.folder = folder
        self.header = header | {"probes": [probe.name for probe in probes], "interval": interval}
        self.writer: Writer | None = None  # on the first rank
        # fairseq's iterator over the first epoch of this process, from which the held batch comes; set by DeepTrainer
        self.iterator: Any = None
        self.update = 0  # number of updates made before the one that is, or was last, observed
        self._opened = False  # whether _open was called
        # update whose row was written last; fairseq repeats a step that has failed after that, as when gradients differ
        # between processes, to report on it, and the repetition must not be observed
        self._last_written: int | None = None

    def before_batch(self, update: int, dummy: bool = False) -> None:
        """Prepare for a batch of training, and begin to observe if it is the first one of an update that is due.

        update: number of updates made before; dummy: whether the batch has no effect, and only keeps a process busy
        that has no more batches of its own.
        """
        if not self._opened:
            self._open(update)
        is_due = update % self.interval == 0 and update != self._last_written
        is_first_batch = not self.session.watching  # `watching` is empty until begin()
        if is_due and is_first_batch:
            self.update = update
            self.session.model.set_num_updates(update)  # fairseq's step does it too, but later
            self.session.begin()
        self.session.dummy = dummy

    def see_gradients(self, scale: float | Tensor) -> None:
        """Show the probes an update's gradients, which are summed over batches and processes, and not yet clipped.

        scale: the gradients times this are those of the mean loss.
        """
        if self.session.watching:
            self.session.gradients(scale)

    def end_update(self, made: bool) -> None:
        """End the observation of an update, and write the values if the update was made.

        The values of an update that was not made, as after an overflow in half precision, are dropped.
        """
        try:
            if self.session.watching and made:
                self._write()
        finally:
            self.session.end()

    def _write(self) -> None:
        """Write the observed update's values: all to probes.jsonl, on rank 0, and the probes' summary to fairseq's log.

        The summary is what each probe chooses for the log, as means over layers: {"probe/address": value}.
        """
        values = self.session.values()
        self._last_written = self.update
        if self.writer is not None:
            self.writer.append_row(self.update, values)
        for key, value in self.session.summary(values).items():
            if math.isfinite(value):
                five_digits = float(f"{value:.5g}")
                metrics.log_scalar(key, five_digits, priority=2000)  # behind fairseq's own in a line of the log

    def _open(self, update: int) -> None:
        """Open probes.jsonl, and set the held batch and the reference if a probe needs them (see the file's docstring).

        update: number of updates made before this process's first batch; 0 begins the file anew, another number means
        that the training was resumed.
        """
        self._opened = True
        first = agreement.is_first()
        if first:
            self.writer = Writer(self.folder / FILE, self.header, fresh=update == 0)
        if any(probe.needs_fixed_batch for probe in self.session.probe_classes):
            model = self.session.model
            net_input = held_training_batch(self.iterator, next(model.parameters()).device)
            outputs_at_start = reference(model, net_input, self.folder / REFERENCE, update, write=first)
            self.session.fixed_batch = FixedBatch(net_input, outputs_at_start)


def probes_of(model: nn.Module, cfg: Any) -> TrainingProbes | None:
    """Return the probes that --deepnet-probe in the model section `cfg` of the config asks for, None without it."""
    probes = get_probes(getattr(cfg, "deepnet_probe", None))
    if not probes:
        return None

    header = {"method": cfg.method}
    for name in ("encoder_layers", "decoder_layers", "encoder_embed_dim", "decoder_embed_dim"):
        if hasattr(cfg, name):
            header[name] = getattr(cfg, name)
    return TrainingProbes(model, probes, cfg.probe_interval, Path(cfg.probe_dir), header)


def reference(model: nn.Module, net_input: dict, path: Path, update: int, write: bool) -> dict[str, Tensor]:
    """Return the reference F(x, theta_0), {stack: outputs (tokens, C)}: computed at update 0, later read from `path`.

    net_input: the held batch x as arguments of the model's forward; update: number of updates made before; write:
    whether this process writes what it computes to `path`. A resumed run without that file, or with one of another
    batch, warns, and takes the present outputs for the reference.
    """
    tokens = net_input["src_tokens"]
    if update:  # resumed
        try:
            saved = torch.load(path, map_location="cpu", weights_only=True)
            if torch.equal(saved["src_tokens"], tokens.cpu()):
                return {name: value.to(tokens.device) for name, value in saved["outputs"].items()}
        except BROKEN:
            pass
        logger.warning(f"{path}: does not hold the outputs of update 0; model_update counts from update {update}")

    present = outputs(model, net_input)
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        on_cpu = {name: value.cpu() for name, value in present.items()}
        save_tensors({"src_tokens": tokens.cpu(), "update": update, "outputs": on_cpu}, path)
    return present
