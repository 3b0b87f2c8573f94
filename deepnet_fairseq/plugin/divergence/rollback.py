"""Back to a good checkpoint with a lower learning rate."""

from __future__ import annotations

import copy
import logging
import os
import re
from pathlib import Path
from typing import NamedTuple

from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from ...errors import UserError
from ..checkpoints import atomic, integrity, saving
from ..distributed import agreement
from . import Stop, diagnosis
from .search import broken_parameters

logger = logging.getLogger(__name__)
NUMBERED = re.compile(r"checkpoint_\d+_(\d+)")
# the learning rates of a run's config, of fairseq's schedules and ours
SECTIONS = ("optimization", "lr_scheduler", "optimizer")
RATES = ("lr", "max_lr", "min_lr", "warmup_init_lr", "end_learning_rate")
UNSCALED = {
    "reduce_lr_on_plateau": "which goes on with the rate that a checkpoint holds",
    "manual": "whose rates are given update by update",
    "pass_through": "whose parts have rates of their own",
}


class Taken(NamedTuple):
    """A rollback: diverged at update `failed`, set back to where `to` were made, learning rates times `factor`."""

    failed: int
    to: int
    factor: float


class Rollbacks:
    """The rollbacks of one run: at most `limit`, each making every learning rate `factor` times as large.

    They are counted in divergence.json, beside the checkpoints and whole before training goes on: a run that is killed
    and started again has the learning rate it had, and what is left of the rollbacks, for as long as its --lr stays
    the same. With another --lr it starts counting anew.
    """

    def __init__(self, cfg):
        self.cfg, self.folder = cfg, Path(cfg.checkpoint.save_dir)
        self.limit = getattr(cfg.model, "rollbacks", 0) or 0
        self.factor = getattr(cfg.model, "rollback_lr_factor", 0.5)
        self.lrs = [float(rate) for rate in cfg.optimization.lr]
        self.taken: list[Taken] = []
        self.home = False  # are the checkpoints of the folder this run's?
        self.begun = False

    def check(self) -> None:
        """UserError for flags that do not go together with --rollbacks."""
        if not self.limit:
            return
        name = getattr(self.cfg.lr_scheduler, "_name", None)
        if reason := UNSCALED.get(name):
            raise UserError(f"--rollbacks: not with --lr-scheduler {name}, {reason}; take another or drop the flag")
        for flag in ("no_save", "no_last_checkpoints", "no_save_optimizer_state"):
            if getattr(self.cfg.checkpoint, flag):
                raise UserError(f"--rollbacks: not with --{flag.replace('_', '-')}, which leaves nothing to go back to")

    def resume(self, path: str) -> None:
        """Before a checkpoint is loaded: if it is of this folder, the run it continues may have been set back."""
        if self.home or Path(path).resolve().parent != self.folder.resolve():
            return
        self.home, taken = agreement.from_first(lambda: self._before(path))
        for rollback in taken:
            scale(self.cfg, rollback.factor)
        self.taken = taken
        if taken:
            rates = ", ".join(f"{rate:.4g}" for rate in self.cfg.optimization.lr)
            logger.info(f"{self.folder / diagnosis.JSON}: set back {len(taken)} times before, --lr is now {rates}")

    def begin(self) -> None:
        """Before the first update: the report of a run that this one does not continue goes."""
        if self.begun:
            return
        self.begun = True
        self.check()
        for name in (diagnosis.JSON, diagnosis.TEXT) if not self.home and agreement.is_first() else ():
            Path(self.folder, name).unlink(missing_ok=True)

    def back(self, trainer, epoch_itr, stop: Stop) -> dict | None:
        """Weights, optimiser, data order, all as a checkpoint has them; what was done, None if nothing could be.

        On every rank at the same time.
        """
        if len(self.taken) >= self.limit or not self.home:
            return None
        saving.wait()  # what is written there may be what to go back to, or what failed
        name = agreement.from_first(lambda: self._good(trainer, stop))
        if name is None or not all(agreement.gathered(self._make_last(trainer, name))):
            return None
        scale(self.cfg, self.factor)
        trainer._optimizer = trainer._lr_scheduler = None  # the next ones need the memory
        again = {"disable_iterator_cache": trainer.task.has_sharded_data("train")}
        extra_state, fresh = checkpoint_utils.load_checkpoint(self._plain_resume(), trainer, **again)
        if extra_state is None or any(agreement.gathered(bool(broken_parameters(trainer.get_model())))):
            return None
        epoch_itr.__dict__ = fresh.__dict__  # one state: fairseq's loop holds the one, its cache the other
        self.taken.append(Taken(stop.update, trainer.get_num_updates(), self.factor))
        return {
            "number": len(self.taken),
            "limit": self.limit,
            "checkpoint": f"{name}.pt",
            "update": trainer.get_num_updates(),
            "factor": self.factor,
            "given": self.lrs,
            "lr": [float(rate) for rate in self.cfg.optimization.lr],
        }

    def _before(self, path: str) -> tuple[bool, list[Taken]]:
        """Does this run go on in its folder, and its rollbacks so far."""
        if not os.path.exists(path):
            return False, []
        taken = [(event["update"], event["rollback"]) for event in diagnosis.read(self.folder) if event.get("rollback")]
        return True, [Taken(at, one["update"], one["factor"]) for at, one in taken if one["given"] == self.lrs]

    def _good(self, trainer, stop: Stop) -> str | None:
        """The checkpoint to go back to, its name without suffix: the newest whole one of good weights.

        Weights are lost before their numbers end: good are those from before the loss rose to twice its lowest. And
        where a rollback has come no further than the one before, the next goes back twice as far, or as far as there
        are checkpoints; never to the weights that failed.
        """
        bounds = [2 * taken.to - taken.failed for taken in self.taken if stop.update <= taken.failed]
        if trainer.watch.healthy is not None:
            bounds.append(trainer.watch.healthy - 1)  # an update's loss is that of the weights before it
        bound = min([stop.weights - 1, *bounds])
        suffix, oldest = f"{trainer.checkpoint_suffix}.pt", None
        last = self.folder / f"{atomic.LAST}{suffix}"
        for path in [last, *integrity.earlier(self.folder, trainer.checkpoint_suffix)]:
            named = NUMBERED.match(path.name)
            updates = int(named[1]) if named else integrity.updates(path)  # -1 if it cannot be read
            if not 0 < updates < stop.weights or integrity.damage(path):
                continue
            if updates <= bound:
                return path.name.removesuffix(suffix)
            oldest = min(oldest or (updates, path), (updates, path))
        return oldest and oldest[1].name.removesuffix(suffix)

    def _make_last(self, trainer, name: str) -> bool:
        """From now on a resume starts from the checkpoint of that name: a run killed now loses nothing of the rollback.

        Each rank that saves files of its own, its own. The checkpoint that failed is nobody's previous one.
        """
        if name == atomic.LAST or not trainer.should_save_checkpoint_on_current_rank:
            return True
        source, last = (self.folder / f"{stem}{trainer.checkpoint_suffix}.pt" for stem in (name, atomic.LAST))
        atomic.spoilt(last)
        try:
            atomic.copy(source, last)
        except atomic.SaveError as error:
            logger.warning(str(error))
            return False
        return True

    def _plain_resume(self):
        """The run's checkpoint settings, as if it had been started again."""
        cfg = copy.deepcopy(self.cfg.checkpoint)
        cfg.restore_file, cfg.finetune_from_model, cfg.continue_once = integrity.DEFAULT, None, None
        for what in ("optimizer", "lr_scheduler", "meters", "dataloader"):
            cfg[f"reset_{what}"] = False
        return cfg


def scale(cfg, factor: float) -> None:
    """Every learning rate of `cfg` times `factor`; what is built from it then is the old schedule times `factor`.

    A negative rate is fairseq's word for "none given" and stays negative.
    """
    for node in filter(OmegaConf.is_config, map(cfg.get, SECTIONS)):
        for key in RATES:
            value = node[key] if key in node and not OmegaConf.is_interpolation(node, key) else None
            if value is not None:
                node[key] = [rate * factor for rate in value] if OmegaConf.is_list(value) else value * factor
