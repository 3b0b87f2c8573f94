"""Processes of fairseq-train that get a signal at a chosen moment, and what they leave: logs and checkpoints."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import signal
from pathlib import Path
from typing import NamedTuple

import fairseq_cli.train
import torch
from fairseq.trainer import Trainer

from ..faults import states
from .ranks import CONTEXT, fairseq_train

TINY = (
    "--arch", "deepnet_transformer", "--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "16",
    "--encoder-ffn-embed-dim", "32", "--encoder-attention-heads", "2", "--clip-norm", "0.6",
)  # fmt: skip
CLOCKS = re.compile(r"(train_|valid_)?(wps|ups|train_wall|wall)")  # numbers of the log that depend on the machine
MOMENTS = {  # name -> (owner, name) of the function that is called at the moment
    "update": (Trainer, "train_step"),
    "validation": (Trainer, "valid_step"),
    "write": (torch, "save"),
    "rename": (os, "replace"),
    "end": (fairseq_cli.train, "should_stop_early"),
}


def live(
    log: Path, *flags, at: tuple[str, int] | None = None, kind: int = signal.SIGKILL, limit=None, timeout: float = 120
) -> int:
    """Run `fairseq-train FLAGS` in a process; return its exit status, negative for a signal.

    Its output is appended to `log`.
    at: (one of MOMENTS, n): the process sends itself the signal `kind` when it reaches the moment for the n-th time.
    limit: (RLIMIT_..., (soft, hard)): resource limit of the process.
    """
    words = ["fairseq-train", *map(str, flags)]
    process = CONTEXT.Process(target=_train_until_signal, args=(words, log, at, kind, limit))
    process.start()
    process.join(timeout)
    process.kill()
    return process.exitcode


class Outcome(NamedTuple):
    """What a training leaves: its last checkpoint, the numbers in its log, and the names of all its files."""

    last_checkpoint: dict
    rows: dict
    files: list[str]


def assert_ends_as_one_left_alone(folder: Path, command: tuple, moments: list, kind: int = signal.SIGKILL) -> None:
    """Check that an interrupted `fairseq-train COMMAND` ends as an undisturbed one, in checkpoints, files and logs.

    The training is ended by the signal `kind` at each of the moments, as `live` takes them, and started again.
    """
    alone = _train_to_the_end(folder / "alone", command, moments=[], kind=kind)
    interrupted = _train_to_the_end(folder / "killed", command, moments=moments, kind=kind)

    assert interrupted.rows == alone.rows
    assert interrupted.files == alone.files
    assert list(states.differences(interrupted.last_checkpoint, alone.last_checkpoint)) == []


def _train_to_the_end(save_dir: Path, command: tuple, moments: list, kind: int) -> Outcome:
    """Train, with an end by a signal at each of the moments and a new start after it, until the training is done."""
    log = save_dir.with_suffix(".log")
    status_of_signal = -kind if kind == signal.SIGKILL else 128 + kind
    for moment in moments:
        assert live(log, *command, "--save-dir", save_dir, at=moment, kind=kind) == status_of_signal
    assert live(log, *command, "--save-dir", save_dir) == 0, log.read_text()[-2000:]

    files = sorted(path.name for path in save_dir.iterdir())
    return Outcome(states.load(save_dir / "checkpoint_last.pt"), rows(log), files)


def rows(log: Path) -> dict[tuple[str, int], dict]:
    """Return the log's numbers without times, by (kind of line, updates); the later of repeated lines counts."""
    logged = {}
    for kind, row in re.findall(r"\| (train_inner|train|valid) \| (\{.*\})", log.read_text()):
        numbers = {name: value for name, value in json.loads(row).items() if not CLOCKS.fullmatch(name)}
        counts = [value for name, value in numbers.items() if name.endswith("num_updates")]
        updates = int(counts[0]) if counts else 0
        logged[kind, updates] = numbers
    return logged


def _train_until_signal(words: list[str], log: Path, at: tuple[str, int] | None, kind: int, limit) -> None:
    """Run fairseq-train in this process, which gets the signal and has the limit that `live` describes."""
    multiprocessing.set_start_method("fork", force=True)  # start method of data loading, as in a program
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # Python's default, as in a program
        resource.setrlimit(*limit)
    if at is not None:
        moment, count = at
        owner, name = MOMENTS[moment]
        _signal_at(owner, name, count, kind)
    fairseq_train(words, log)


def _signal_at(owner, name: str, count: int, kind: int) -> None:
    """Have this process send itself the signal `kind` when the function owner.name is called for the count-th time."""
    original = getattr(owner, name)
    calls = 0

    def counted(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), kind)
        return original(*args, **kwargs)

    setattr(owner, name, counted)
