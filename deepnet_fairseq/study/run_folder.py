"""Write and read the folder of one training.

    run.json           facts: method, numbers of layers, seed and others, by which tables and figures find the run
    environment.json   commit, versions, hardware
    command            the command of the latest attempt to train
    train.log          what fairseq-train printed; probes.jsonl: what its probes recorded
    checkpoint_*.pt, weightsN.pt, averaged.pt    checkpoints, weights after epoch N, the mean of several
    trained            an empty file, that marks a training that is over
    diverged, stuck    marks of a training that failed, with one line on why and at which update; such an end is a
                       result too, and is not tried again
    generated.txt, generated/SUBSET/SRC-TGT.txt, evaluated/SUBSET.txt    translations, or logs of an evaluation
    check.json         the verdict of `deepnet check`
    score.json         scores of the translations, or perplexities by the logs
    disk               the size of the checkpoints that were kept
    lock               locked by the process that works on the folder

All programs of the project that train keep to these names, so that each can go on with what another began.
"""

from __future__ import annotations

import fcntl
import json
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import read_json_object, whole
from ..plugin.probe_record import FILE

FILES = {  # part of a run, as runs.py reads it -> file
    "run": "run.json", "environment": "environment.json", "command": "command", "diverged": "diverged",
    "stuck": "stuck", "check": "check.json", "score": "score.json",
    "log": "train.log", "probes": FILE,
}  # fmt: skip
TRAINED, LOCK = "trained", "lock"
FAILURES = ("diverged", "stuck")  # marks of a training that ended without a model of use
# What fairseq-train with this plug-in prints last:
ENDED = re.compile(r"error: (diverged at update \d+|stuck at update \d+[^;\n]*)")
STOPPED = re.compile(r"(stopped by SIG[A-Z0-9]+ after .*)")
NOT_SAVED = "could not be saved"  # in the line of STOPPED, if a signal came and the disk was full, for instance


class RunFolder:
    """The folder of one training; RunFolder(path) / name is the path of a file in it."""

    def __init__(self, path: Path):
        self.path = path

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def log(self) -> Path:
        """The training's log."""
        return self / FILES["log"]

    @property
    def last_checkpoint(self) -> Path:
        """The checkpoint from which the training resumes."""
        return self / "checkpoint_last.pt"

    @property
    def is_over(self) -> bool:
        """Whether the training is over: it made its last update, diverged, or was stuck."""
        return (self / TRAINED).exists()

    @property
    def has_progress(self) -> bool:
        """Whether something of the training is there that it would go on from: a checkpoint, or its end."""
        return self.is_over or any(self.path.glob("checkpoint*.pt"))

    @property
    def failed(self) -> str | None:
        """The line in the file `diverged` or `stuck`, as "diverged at update 90"; None if there is neither."""
        for mark in FAILURES:
            if (self / mark).exists():
                return (self / mark).read_text().strip()
        return None

    @property
    def facts(self) -> dict[str, Any] | None:
        """The content of run.json, None if there is none; UserError if it is no JSON object."""
        file = self / FILES["run"]
        return read_json_object(file, "remove it") if file.exists() else None

    @property
    def command(self) -> str | None:
        """The command of the latest attempt to train, None if there was none."""
        file = self / FILES["command"]
        return file.read_text().strip() if file.exists() else None

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Lock the folder for this process while the context lasts, and yield True.

        If another process has locked it, yield False at once. A missing folder is made.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self / LOCK, "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def begin(self, facts: Mapping[str, Any], command: str, environment: Mapping[str, Any]) -> None:
        """Write run.json, command and environment.json, before an attempt to train.

        facts, environment: the contents of run.json and environment.json; command: as a shell takes it. An
        environment.json that is there stays, since it says where the first attempt ran. Marks of an earlier failure
        (FAILURES) are removed. If there is no checkpoint to resume from, the log is removed too, because the training
        then starts from the beginning.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self.write("run", json.dumps(facts))
        if not (self / FILES["environment"]).exists():
            self.write("environment", json.dumps(environment))
        self.write("command", command)
        for mark in FAILURES:
            (self / mark).unlink(missing_ok=True)
        if not self.last_checkpoint.exists():
            self.log.unlink(missing_ok=True)

    def write(self, part: str, text: str) -> None:
        """Write the file of a part, a key of FILES; nobody sees it half-written."""
        with whole(self / FILES[part]) as file:
            file.write_text(f"{text}\n", encoding="utf-8")

    def size_of_log(self) -> int:
        """Return the bytes of the log, 0 before it begins."""
        return self.log.stat().st_size if self.log.exists() else 0

    def end(self, status: int, what: str, begun_at: int = 0) -> None:
        """Mark the training as over after an attempt, unless the program failed or was stopped.

        status: the exit status of fairseq-train, or of the torchrun that ran it; what: the training, for messages;
        begun_at: size of the log, in bytes, when this attempt began. A training that diverged or was stuck is over too,
        and gets a mark. Raises Stopped if a signal stopped it, and a UserError, naming the log, if it failed.
        """
        if status:  # what happened is read from the log, because torchrun turns any status but 0 into 1
            with open(self.log, "rb") as file:
                file.seek(begun_at)
                printed = file.read().decode(errors="replace")

            stopped = STOPPED.findall(printed)
            if stopped and NOT_SAVED not in stopped[-1]:  # what could not be saved is a failure, below
                raise Stopped(stopped[-1])

            ended = ENDED.findall(printed)
            if not ended:
                raise UserError(f"{what} failed", f"{last_line(printed)}; whole log: {self.log}")
            mark, _ = ended[-1].split(maxsplit=1)  # "diverged" or "stuck"
            (self / mark).write_text(f"{ended[-1]}\n")
        (self / TRAINED).touch()


class Stopped(SystemExit):
    """Raised when a signal stopped a training, after it saved its state.

    line: what the training printed of it, as "stopped by SIGUSR1 after ...". If nobody catches it, this process exits
    with 128 + the signal's number, as a shell does: 130 for SIGINT (2), 138 for SIGUSR1 (10), 143 for SIGTERM (15).
    """

    def __init__(self, line: str):
        name = line.removeprefix("stopped by ").split()[0]
        super().__init__(128 + signal.Signals[name])
        self.line = line


def last_line(printed: str) -> str:
    """Return the last line of `printed`, all that a program printed; at most 300 characters, to fit a message."""
    lines = printed.strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
