"""Tests that a run's state is its own: two trainings in one process, and what a resume leaves in the folder."""

from __future__ import annotations

import json
import logging
import signal

import fairseq_cli.train
import pytest
import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq.data.iterators import GroupedIterator
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.plugin.checkpoints import atomic, lock, reading
from deepnet_fairseq.plugin.trainer import parse_training_flags

from ..conftest import TRAIN_FLAGS
from ..faults import states
from ..support.lives import TINY

WHOLE = [flag for flag in TRAIN_FLAGS if flag not in ("--disable-validation", "--no-epoch-checkpoints")]
FLAGS = (*WHOLE, *TINY, "--dropout", "0", "--max-tokens", "3000", "--save-interval-updates", "2", "--patience", "9")


class Life:
    """fairseq-train in steps: its main up to the first update, then one update at a time."""

    def __init__(self, data, folder, *flags: str):
        args = parse_training_flags([str(data), *FLAGS, "--save-dir", str(folder), *flags])
        self.cfg = cfg = convert_namespace_to_omegaconf(args)
        utils.set_torch_seed(cfg.common.seed)
        self.task = tasks.setup_task(cfg.task)
        model, criterion = self.task.build_model(cfg.model), self.task.build_criterion(cfg.criterion)
        self.task.load_dataset("valid", combine=False, epoch=1)
        self.trainer = fairseq_cli.train.Trainer(cfg, self.task, model, criterion)
        self.extra_state, self.batches = checkpoint_utils.load_checkpoint(cfg.checkpoint, self.trainer)
        self.trainer.begin_epoch(1)
        self.samples = GroupedIterator(self.batches.next_epoch_itr(shuffle=True), 1)

    def step(self) -> tuple[list, bool]:
        """Make an update, and validate and save where that is due; return the losses, and whether the run is over."""
        self.trainer.train_step(next(self.samples))
        return fairseq_cli.train.validate_and_save(self.cfg, self.trainer, self.task, self.batches, ["valid"], False)

    def end(self) -> None:
        self.trainer.run.stop()


def saved(folder) -> dict:
    """Return the last checkpoint of a folder without fairseq's averages for the log, which a process has once."""
    state = states.load(folder / "checkpoint_last.pt")
    del state["extra_state"]["metrics"]
    del state["extra_state"]["deepnet_training"]["averages"]
    return state


def test_two_trainings_by_turns_share_nothing(data, tmp_path):
    """Each has the weights, best losses and patience that it has alone, saved in its own folder, before and after."""
    flags = {"one": ("--seed", "1"), "other": ("--seed", "2", "--lr", "1e-9")}  # the other does not get better
    for name, more in flags.items():
        life = Life(data, tmp_path / "alone" / name, *more)
        for _ in range(6):
            life.step()
        life.end()

    lives = {name: Life(data, tmp_path / "turns" / name, *more) for name, more in flags.items()}
    for _ in range(6):
        for life in lives.values():
            life.step()
    for life in lives.values():
        life.end()

    bests = {}
    for name in flags:
        alone, by_turns = (saved(tmp_path / way / name) for way in ("alone", "turns"))
        assert list(states.differences(by_turns, alone)) == []
        bests[name] = by_turns["extra_state"]["best"]
    assert bests["one"] != bests["other"]
    assert not hasattr(checkpoint_utils.save_checkpoint, "best")
    assert not hasattr(fairseq_cli.train.should_stop_early, "best")


def test_a_training_in_the_folder_of_another_is_refused(data, tmp_path, monkeypatch):
    """It is refused while the first one runs, also in the same process; the first one's folder stays locked."""
    monkeypatch.setattr(lock, "GRACE", 0.1)
    first = Life(data, tmp_path)
    for _ in range(2):
        with pytest.raises(UserError, match=str(tmp_path)):
            Life(data, tmp_path)
    first.end()
    Life(data, tmp_path).end()


def test_an_error_in_a_resume_frees_folder_and_signals(data, tmp_path):
    first = Life(data, tmp_path)
    for _ in range(2):
        first.step()
    first.end()
    handlers = {kind: signal.getsignal(kind) for kind in (signal.SIGTERM, signal.SIGUSR1)}
    (tmp_path / "foreign.pt").write_bytes(b"of another program")

    with pytest.raises(UserError, match="foreign.pt"):
        Life(data, tmp_path, "--restore-file", str(tmp_path / "foreign.pt"))

    assert handlers == {kind: signal.getsignal(kind) for kind in handlers}
    Life(data, tmp_path).end()


def test_a_damaged_last_does_not_push_the_previous_out(data, tmp_path):
    """The run resumes from checkpoint_previous, which stays until two whole checkpoints have been saved."""
    last, previous = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint_previous.pt"
    first = Life(data, tmp_path, "--keep-interval-updates", "1")
    for _ in range(4):
        first.step()
    first.end()
    for path in (last, tmp_path / "checkpoint_1_4.pt", tmp_path / "checkpoint_best.pt"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.unlink()  # the names may be one file
        path.write_bytes(content)

    second = Life(data, tmp_path)
    assert second.trainer.get_num_updates() == 2
    found = []
    for _ in range(4):
        second.step()
        found.append((reading.updates(last), reading.updates(previous)))
    second.end()
    assert found[1] == (4, 2) and found[3] == (6, 4)
    assert atomic.previous_of(last) == previous


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_between_two_updates_of_a_run_is_answered_by_it(kind, data, tmp_path, caplog):
    """The run that watches saves and ends; its status says which signal it was."""
    caplog.set_level(logging.INFO)
    life = Life(data, tmp_path)
    life.trainer.run.signals.watch()
    life.step()
    signal.raise_signal(kind)
    with pytest.raises(SystemExit) as ended:
        life.step()
    life.end()
    assert ended.value.code == 128 + kind
    assert reading.updates(tmp_path / "checkpoint_last.pt") == 2
    signal.signal(kind, signal.SIG_DFL)


def test_a_checkpoint_holds_what_the_run_says(data, tmp_path):
    """The members of a checkpoint are those that Run's docstring lists."""
    life = Life(data, tmp_path, "--stop-stuck", "90")
    for _ in range(2):
        life.step()
    life.end()
    state = torch.load(tmp_path / "checkpoint_last.pt")
    described = type(life.trainer.run).__doc__
    for member in [*state, *state["extra_state"]]:
        assert member in described
    assert json.dumps(state["extra_state"]["deepnet_training"]["patience"])
