"""Write and read the folder of one training.

    run.json           its facts, by which tables and figures find it
    environment.json   commit, versions, hardware
    command            the command that trained it
    train.log          what fairseq-train printed; probes.jsonl: what its probes recorded
    checkpoint_*.pt, weightsN.pt, averaged.pt
    trained            marks a training that is over
    diverged, stuck    say at which update its numbers stopped being finite, or it was given up; such an end is a result
    generated.txt, generated/SUBSET/SRC-TGT.txt, evaluated/SUBSET.txt    what the model said
    score.json         its score
    disk               the size of the checkpoints that were kept
    lock               held by the process that works on the folder

Every runner of the project writes these names and marks, so that each goes on with what another began.
"""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import read_object, whole
from ..plugin.probe_record import FILE

FILES = {  # part of a record -> file
    "run": "run.json", "environment": "environment.json", "command": "command", "diverged": "diverged",
    "stuck": "stuck", "check": "check.json", "score": "score.json",
    "log": "train.log", "probes": FILE,
}  # fmt: skip
TRAINED, LOCK = "trained", "lock"
FAILURES = ("diverged", "stuck")  # marks of the ends that are no trained model
ENDED = re.compile(r"error: (diverged at update \d+|stuck at update \d+[^;\n]*)")
STOPPED = re.compile(r"(stopped by SIG[A-Z0-9]+ after .*)")
NOT_SAVED = "could not be saved"


class RunFolder:
    """The folder of one training."""

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
        """True of a training that has ended in any of its ways."""
        return (self / TRAINED).exists()

    @property
    def failed(self) -> str | None:
        """How the training ended if it diverged or was stuck, as its mark says; else None."""
        for mark in FAILURES:
            if (self / mark).exists():
                return (self / mark).read_text().strip()
        return None

    @property
    def facts(self) -> dict[str, Any] | None:
        """The content of run.json, None if there is none; UserError if it is no JSON object."""
        file = self / FILES["run"]
        return read_object(file, "remove it") if file.exists() else None

    @property
    def command(self) -> str | None:
        """The command that began the training, None if it was not begun."""
        file = self / FILES["command"]
        return file.read_text().strip() if file.exists() else None

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Hold the folder's lock in the context; the value is False, and nothing is held, if another process has it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self / LOCK, "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def begin(self, facts: Mapping[str, Any], command: str, environment: Mapping[str, Any]) -> None:
        """Write facts and command; the environment stays that in which the training began.

        The marks of an earlier attempt go, and without a checkpoint its log, which nothing continues.
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
        """Write the file of a part of the record, a key of FILES, whole or not at all."""
        with whole(self / FILES[part]) as file:
            file.write_text(f"{text}\n", encoding="utf-8")

    def size_of_log(self) -> int:
        """Return the bytes of the log, 0 before it begins."""
        return self.log.stat().st_size if self.log.exists() else 0

    def end(self, status: int, what: str, begun_at: int = 0) -> None:
        """Mark the training as over, if fairseq-train's exit status says so.

        what: the training, for messages; begun_at: size of the log when this attempt began. Divergence and being stuck
        are ends too; torchrun turns their statuses into 1, and the log tells them apart. Raises a UserError, naming the
        log, if the program failed, and SystemExit with the signal's status if a signal has stopped it.
        """
        if status:
            with open(self.log, "rb") as file:
                file.seek(begun_at)
                said = file.read().decode(errors="replace")
            stopped = STOPPED.findall(said)
            if stopped and NOT_SAVED not in stopped[-1]:
                raise Stopped(stopped[-1])
            ended = ENDED.findall(said)
            if not ended:
                raise UserError(f"{what} failed: {last_line(said)}; whole log: {self.log}")
            mark, _ = ended[-1].split(maxsplit=1)
            (self / mark).write_text(f"{ended[-1]}\n")
        (self / TRAINED).touch()


class Stopped(SystemExit):
    """Raised when a signal stopped a training, which has saved; its status is the signal's."""

    def __init__(self, line: str):
        super().__init__(138 if "SIGUSR1" in line else 143)
        self.line = line


def last_line(said: str) -> str:
    """Return the last line of what a program said, at most 300 characters of it."""
    return (said.strip().splitlines() or ["it said nothing"])[-1][:300]
