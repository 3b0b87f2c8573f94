"""Processes of fairseq-train that send themselves a signal at a chosen moment, and the logs and checkpoints they leave.

A moment is (one of MOMENTS, n): the n-th time that the process comes there. ("update", 3) is the beginning of update 3.
"""

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

# Flags of a translator of width 16, one layer in each stack.
TINY = (
    "--arch", "deepnet_transformer", "--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "16",
    "--encoder-ffn-embed-dim", "32", "--encoder-attention-heads", "2", "--clip-norm", "0.6",
)  # fmt: skip
CLOCKS = re.compile(r"(train_|valid_)?(wps|ups|train_wall|wall)")  # names of numbers in the log that measure time
MOMENTS = {  # name of a moment -> the function that is called then, as (its owner, its name there)
    "update": (Trainer, "train_step"),
    "validation": (Trainer, "valid_step"),
    "write": (torch, "save"),
    "rename": (os, "replace"),
    "end": (fairseq_cli.train, "should_stop_early"),
}


def status_of_training(
    log: Path, *flags, at: tuple[str, int] | None = None, kind: int = signal.SIGKILL, limit=None, timeout: float = 120
) -> int:
    """Run `fairseq-train FLAGS` in a process; return its exit status, which is -N if the signal N has ended it.

    log: file that the output is appended to; at: the moment at which the process sends itself a signal, None for no
    signal; kind: the signal; limit: arguments of resource.setrlimit, (RLIMIT_..., (soft, hard)), for the process;
    timeout: seconds, after which it is killed.
    """
    words = ["fairseq-train", *map(str, flags)]
    process = CONTEXT.Process(target=_train_until_signal, args=(words, log, at, kind, limit))
    process.start()
    process.join(timeout)
    process.kill()
    return process.exitcode


class Outcome(NamedTuple):
    """What a training leaves."""

    last_checkpoint: dict  # content of checkpoint_last.pt
    numbers: dict  # in its log, as `logged_numbers` returns them
    files: list[str]  # names of all files in its folder


def assert_ends_as_undisturbed(folder: Path, command: tuple, moments: list, kind: int = signal.SIGKILL) -> None:
    """Check that an interrupted `fairseq-train COMMAND` ends as an undisturbed one, in checkpoints, files and logs.

    The interrupted training is ended by the signal `kind` at each of the moments in turn, and started again after each.

    folder: for both trainings; command: flags without --save-dir
    """
    undisturbed = _train_to_the_end(folder / "undisturbed", command, moments=[], kind=kind)
    interrupted = _train_to_the_end(folder / "interrupted", command, moments=moments, kind=kind)

    assert interrupted.numbers == undisturbed.numbers
    assert interrupted.files == undisturbed.files
    assert list(states.differences(interrupted.last_checkpoint, undisturbed.last_checkpoint)) == []


def _train_to_the_end(save_dir: Path, command: tuple, moments: list, kind: int) -> Outcome:
    """Train, with an end by a signal at each of the moments and a new start after it, until the training is done."""
    log = save_dir.with_suffix(".log")
    # SIGKILL ends the process itself; the trainer handles other signals, writes a checkpoint, and exits as shells do.
    expected_status = -kind if kind == signal.SIGKILL else 128 + kind
    for moment in moments:
        status = status_of_training(log, *command, "--save-dir", save_dir, at=moment, kind=kind)
        assert status == expected_status

    status = status_of_training(log, *command, "--save-dir", save_dir)
    assert status == 0, log.read_text()[-2000:]

    files = sorted(path.name for path in save_dir.iterdir())
    return Outcome(states.load(save_dir / "checkpoint_last.pt"), logged_numbers(log), files)


def logged_numbers(log: Path) -> dict[tuple[str, int], dict]:
    """Return the log's numbers without times, by (kind of line, updates done).

    The kinds are "train_inner", of a logged update, and "train" and "valid", of an epoch. A resumed training logs some
    updates a second time; the later line counts.
    """
    logged = {}
    for kind, row in re.findall(r"\| (train_inner|train|valid) \| (\{.*\})", log.read_text()):
        numbers = {name: value for name, value in json.loads(row).items() if not CLOCKS.fullmatch(name)}
        # num_updates, train_num_updates or valid_num_updates
        counts = [value for name, value in numbers.items() if name.endswith("num_updates")]
        updates = int(counts[0]) if counts else 0
        logged[kind, updates] = numbers
    return logged


def _train_until_signal(words: list[str], log: Path, at: tuple[str, int] | None, kind: int, limit) -> None:
    """Run fairseq-train in this process, with the signal and the limit that `status_of_training` describes."""
    # a program forks the processes that load its data; a process of the forkserver would start them by the forkserver
    multiprocessing.set_start_method("fork", force=True)
    if limit is not None:
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
