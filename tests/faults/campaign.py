"""A training that is left alone, and the same one killed and started again until it is done: they must end equal."""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from deepnet_fairseq.data.language import make_corpus, write_corpus
from deepnet_fairseq.data.parallel_text import prepare_text

from . import states
from .life import FAILED, FLAGS, SAVED, SAVES, START, UPDATE, VALIDATED, VALIDATES, Launched, Life, Log
from .states import Lost

PATIENCE = 60  # seconds that a rank may take to notice the death of another, and a life to end by itself
LAST = "checkpoint_last.pt"
SPLITS = {"train": 100, "valid": 10, "test": 10}
SOON = ("--heartbeat-timeout", "15")
KINDS = {  # name: processes, flags, whom a kill is for
    "alone": (1, ("--optimizer", "adam", "--store-ema", "--ema-decay", "0.9", "--ema-fp32"), "ranks"),
    "pair": (2, ("--optimizer", "deepnet_adam", "--update-freq", "2", *SOON), "ranks"),
    "zero": (2, ("--optimizer", "deepnet_adam", "--zero-sharding", "os", *SOON), "ranks"),
    "loaders": (1, ("--optimizer", "adam", "--num-workers", "2"), "a loader"),
    "launcher": (2, ("--optimizer", "deepnet_adam", *SOON), "the launcher"),
}
COUNTED = ("resumes", "full disks", "failed saves", "survivors ended")  # and kills by phase, and trainings


def make_data(folder: Path) -> Path:
    """A folder of binarised qaa-qab text, some 15 batches an epoch."""
    write_corpus(make_corpus(SPLITS, nouns=20, verbs=10), folder / "text")
    prepare_text(("qaa", "qab"), {split: str(folder / "text" / split) for split in SPLITS}, folder / "bin", vocab=150)
    return folder / "bin"


class Disk:
    """A folder; mounted as a disk in memory, a file in it takes the room when told."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self._ballast, self._mounted = folder, folder / "ballast", False

    def mount(self, size: int = 64 << 20) -> None:
        """In a mount namespace of our own; size: bytes."""
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "faults", str(self.folder)], check=True)
        self._mounted = True

    def close(self) -> None:
        """Nothing on it is wanted any more."""
        if self._mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)

    @property
    def full(self) -> bool:
        return self._ballast.exists()

    def fill(self, leave: int) -> None:
        """leave: bytes."""
        with self._ballast.open("wb") as file:
            while True:  # the training takes room and gives room at the same time
                state = os.statvfs(self.folder)
                room = state.f_bavail * state.f_frsize - leave
                try:
                    if room > 0:
                        os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, room)
                    return
                except OSError:
                    continue

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)


@dataclass(frozen=True)
class Training:
    """What is trained on how many processes; all but the folder of its checkpoints."""

    name: str
    data: Path
    processes: int
    updates: int
    more: tuple[str, ...]
    killed: str = "ranks"

    def flags(self, folder: Path) -> list[str]:
        """What follows `fairseq-train`."""
        return [str(self.data), *FLAGS, "--max-update", str(self.updates), "--save-dir", str(folder), *self.more]


class Event(NamedTuple):
    """`act` (kill | fill | empty) `delay` seconds after `text` was said `times` times more; ranks: whom it kills."""

    act: str
    text: str
    times: int
    delay: float = 0.0
    ranks: tuple[int, ...] = ()


def draw(chance: random.Random, seconds: dict, processes: int, full: bool, share: float) -> Iterator[Event]:
    """A life that ends by SIGKILL; for a `share` of lives the disk fills up.

    seconds: that the undisturbed training took, by what it did; full: is the disk so at birth already?
    """
    fills = not full and chance.random() < share
    if fills:
        yield Event("fill", SAVES if chance.random() < 0.5 else UPDATE, chance.randint(1, 2))
    if full or (fills and chance.random() < 0.6):  # else it dies while the disk is full
        yield Event("empty", SAVES, chance.randint(1, 2), chance.uniform(0, seconds[SAVES]))
    ranks = tuple(range(processes))
    if processes > 1 and chance.random() < 0.6:
        ranks = (chance.randrange(processes),)
    where = chance.random()
    for share_of, text, times in ((0.4, SAVES, 2), (0.5, VALIDATES, 2), (0.9, UPDATE, 6)):
        if where < share_of:
            yield Event("kill", text, chance.randint(1, times), chance.uniform(0, seconds[text]), ranks)
            return
    yield Event("kill", "", 1, chance.uniform(0, seconds[START]), ranks)


class Campaign:
    """KILLS of one training, spread over as many repetitions of it as they take."""

    def __init__(self, training: Training, disk: Disk, logs: Path, chance: random.Random) -> None:
        self.training, self.disk, self.chance, self.tally = training, disk, chance, Counter()
        self._logs, self._lives = logs, 0
        logs.mkdir()
        folder = logs / "undisturbed"
        life = self._birth(folder)
        self._end(life)
        self.expected, self.rows, log = states.load(folder / LAST), life.log.rows(), life.log
        self.size = (folder / LAST).stat().st_size
        self.seconds = {
            START: next(moment for moment, line in log.lines if START in line) - life.started,
            UPDATE: log.seconds(UPDATE, UPDATE),
            VALIDATES: log.seconds(VALIDATES, VALIDATED),
            SAVES: log.seconds(SAVES, SAVED),
        }

    def run(self, kills: int, full: float) -> Counter:
        """Kills that many times; Lost if anything is.

        full: the share of lives in which the disk fills up. What was done: kills by phase, and what else is COUNTED.
        """
        while kills > 0:
            folder = self.disk.folder / f"{self.training.name}-{self.tally['trainings']}"
            known, done = 0, False
            while not done:
                life = self._birth(folder)
                killed = self._live(life, full if kills else None)
                self._check_log(life.log, known)
                statuses = life.statuses()
                done = set(statuses) == {0}
                # one rank may be done in the instant in which another is killed
                known = states.check(folder, self.training.updates if 0 in statuses else max(known, life.log.saved()))
                kills -= killed
                self.tally["resumes"] += not done
            self._compare(folder)
            self.tally["trainings"] += 1
        return self.tally

    def _birth(self, folder: Path) -> Life:
        self._lives += 1
        log = Log(self._logs / f"life{self._lives}.log")
        kind = Launched if self.training.killed == "the launcher" else Life
        return kind(self.training.flags(folder), self.training.processes, log)

    def _live(self, life: Life, share: float | None) -> bool:
        """Lets it live through what befalls it, nothing if `share` is None; was it killed?"""
        full, fate = self.disk.full, ()
        if share is not None:
            fate = draw(self.chance, self.seconds, self.training.processes, full, share)
        try:
            for event in fate:
                if not life.reaches(event.text, event.times, event.delay):
                    break  # it was done before
                if event.act == "kill":
                    self._kill(life, event.ranks)
                    return True
                if event.act == "fill":
                    self.disk.fill(int(self.chance.uniform(0, 0.9) * self.size))
                    self.tally["full disks"] += 1
                    full = True
                else:
                    self.disk.empty()
            self.disk.empty()
            self._end(life, full)
            return False
        finally:
            life.bury()
            self.tally["failed saves"] += life.log.count(FAILED)

    def _kill(self, life: Life, ranks: tuple[int, ...]) -> None:
        """The other ranks end by themselves; with status 0 only if all is saved, as `run` sees."""
        if self.training.killed == "the launcher":
            life.kill_launcher()
        elif self.training.killed == "ranks" or not life.kill_worker(self.chance):
            life.kill(ranks)
        life.log.read()
        self.tally[life.log.phase()] += 1
        statuses = life.wait(PATIENCE)
        if None in statuses:
            raise Lost(f"{life.log.path}: {PATIENCE} s after the death of another a rank still lives")
        self.tally["survivors ended"] += sum(status > 0 for status in statuses)
        if "Traceback" in life.log.text:
            raise Lost(f"{life.log.path}: it took a survivor more than a line to say so")

    def _end(self, life: Life, full: bool = False) -> None:
        """Waits for its natural death; full: the disk was, its last save may have failed, and it must tell."""
        statuses = life.wait(PATIENCE + 4 * self.training.updates)
        excused = full and life.log.count(FAILED) and None not in statuses and "Traceback" not in life.log.text
        if set(statuses) != {0} and not excused:
            lines = life.log.text.strip().splitlines()
            told = [line for line in lines if "rror: " in line] or lines
            raise Lost(f"{life.log.path}: ended with {statuses} though nothing befell it: {''.join(told[:1])}")

    def _check_log(self, log: Log, known: int) -> None:
        """It went on where the last one was saved, and logged what the undisturbed training did."""
        if known and f"@ {known} updates" not in log.text and log.phase() != "start":
            raise Lost(f"{log.path}: did not go on from update {known}")
        for row, numbers in log.rows().items():
            if numbers != self.rows.get(row):
                raise Lost(f"{log.path}: logged {numbers}, undisturbed {self.rows.get(row)}")

    def _compare(self, folder: Path) -> None:
        apart = list(states.differences(states.load(folder / LAST), self.expected))
        if apart:
            places = f"{len(apart)} places, {'; '.join(apart[:3])}"
            raise Lost(f"{folder.name}/{LAST} is not the undisturbed training's: {places}")
        if left := [path.name for path in folder.iterdir() if path.suffix != ".pt" and path.name != ".lock"]:
            raise Lost(f"{folder.name}: {', '.join(left)} was left behind")
