"""Processes of fairseq-train that are killed at a chosen moment, and their logs and checkpoints."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import signal
from pathlib import Path

import fairseq_cli.train
import torch
from fairseq.trainer import Trainer

from ..faults import states
from .ranks import CONTEXT, fairseq_train

TINY = (
    "--arch", "deepnet_transformer", "--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "16",
    "--encoder-ffn-embed-dim", "32", "--encoder-attention-heads", "2", "--clip-norm", "0.6",
)  # fmt: skip
CLOCKS = re.compile(r"(train_|valid_)?(wps|ups|train_wall|wall)")
MOMENTS = {"update": (Trainer, "train_step"), "validation": (Trainer, "valid_step"), "write": (torch, "save"),
           "rename": (os, "replace"), "end": (fairseq_cli.train, "should_stop_early")}  # fmt: skip


def live(
    log: Path, *flags, at: tuple[str, int] | None = None, kind: int = signal.SIGKILL, limit=None, timeout: float = 120
) -> int:
    """Return the exit status of `fairseq-train FLAGS`, negative for a signal; its output is appended to `log`.

    at: (one of MOMENTS, n): the process sends itself the signal `kind` when it reaches the moment for the n-th time.
    limit: (RLIMIT_..., (soft, hard)): resource limit of the process.
    """
    words = ["fairseq-train", *map(str, flags)]
    process = CONTEXT.Process(target=_life, args=(words, log, at, kind, limit))
    process.start()
    process.join(timeout)
    process.kill()
    return process.exitcode


def assert_ends_as_one_left_alone(folder: Path, command: tuple, deaths: list, kind: int = signal.SIGKILL) -> None:
    """Check that an interrupted `fairseq-train COMMAND` ends as an undisturbed one, in checkpoints, files and logs.

    The training is ended by the signal `kind` at each of the moments `deaths` and started again.
    """
    results = []
    for name, moments in (("alone", []), ("killed", deaths)):
        log, save = folder / f"{name}.log", folder / name
        for moment in moments:
            status = live(log, *command, "--save-dir", save, at=moment, kind=kind)
            assert status == (-9 if kind == signal.SIGKILL else 128 + kind)
        assert live(log, *command, "--save-dir", save) == 0, log.read_text()[-2000:]
        results.append((states.load(save / "checkpoint_last.pt"), rows(log), sorted(p.name for p in save.iterdir())))
    (alone, expected, names), (killed, logged, files) = results
    assert logged == expected and files == names
    assert list(states.differences(killed, alone)) == []


def rows(log: Path) -> dict:
    """Return the log's numbers without times, by (kind of line, updates); the later of repeated lines counts."""
    logged = {}
    for kind, row in re.findall(r"\| (train_inner|train|valid) \| (\{.*\})", log.read_text()):
        numbers = {name: value for name, value in json.loads(row).items() if not CLOCKS.fullmatch(name)}
        updates = next((value for name, value in numbers.items() if name.endswith("num_updates")), 0)
        logged[kind, int(updates)] = numbers
    return logged


def _life(words: list[str], log: Path, at, kind: int, limit) -> None:
    multiprocessing.set_start_method("fork", force=True)  # start method of data loading, as in a program
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # Python's default, as in a program
        resource.setrlimit(*limit)
    if at is not None:
        _signal_at(*MOMENTS[at[0]], at[1], kind)
    fairseq_train(words, log)


def _signal_at(owner, name: str, count: int, kind: int) -> None:
    original, calls = getattr(owner, name), iter(range(1, 1_000_000))

    def counted(*args, **kwargs):
        if next(calls) == count:
            os.kill(os.getpid(), kind)
        return original(*args, **kwargs)

    setattr(owner, name, counted)
