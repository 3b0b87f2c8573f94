"""A training that is left alone, and the same one killed and started again until it is done: they must end equal."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from . import states
from .disk import ShortFiles, SmallDisk
from .fate import Durations, Event, draw
from .kinds import BACKGROUND
from .life import Launched, Life
from .log import Log
from .states import Lost
from .training import Training

PATIENCE = 60  # seconds that a rank may take to notice the death of another, and a life to end by itself
LAST = "checkpoint_last.pt"


@dataclass
class Tally:
    """What was done to the trainings on one number of processes."""

    kills: Counter = field(default_factory=Counter)  # by phase
    failed_saves: int = 0
    full_disks: int = 0
    resumes: int = 0
    survivors: int = 0  # ranks that ended by themselves when another was killed
    trainings: int = 0


class Campaign:
    """KILLS of one training, spread over as many repetitions of it as they take."""

    def __init__(self, training: Training, disk: SmallDisk | ShortFiles, logs: Path, chance: random.Random) -> None:
        self.training, self.disk, self.chance, self.tally = training, disk, chance, Tally()
        self._logs, self._lives = logs, 0
        logs.mkdir()
        folder = logs / "undisturbed"
        life = self._birth(folder)
        self._end(life)
        self.expected = states.load(folder / LAST)
        self.rows = life.log.rows()
        self.size = (folder / LAST).stat().st_size
        self.durations = Durations.of(life.log, life.started)

    def run(self, kills: int, launched: int, full: float) -> Tally:
        """Kills that many times, `launched` of them trainings started as a user does; Lost if anything is.

        full: the share of lives in which the disk fills up.
        """
        while kills > 0:
            folder = self.disk.folder / f"{self.training.name}-{self.tally.trainings}"
            known, done = 0, False
            while not done:
                life = self._birth(folder, Launched if 0 < kills <= launched else Life)
                killed = self._live(life, self._events(full) if kills else ())
                self._check_log(life.log, known)
                done = set(life.statuses()) == {0}
                over = 0 in life.statuses()  # on one rank, and killed on another on its last steps
                known = states.check(folder, self.training.updates if over else max(known, life.log.saved()))
                kills -= killed
                self.tally.resumes += not done
            self._compare(folder)
            self.tally.trainings += 1
        return self.tally

    def _events(self, full: float):
        return draw(self.chance, self.durations, self.training.processes, self.disk.full, full)

    def _birth(self, folder: Path, kind: type[Life] = Life) -> Life:
        self._lives += 1
        log = Log(self._logs / f"life{self._lives}.log", BACKGROUND in self.training.more)
        return kind(self.training.flags(folder), self.training.processes, log)

    def _live(self, life: Life, events) -> bool:
        """Lets it live through the events; was it killed?"""
        full = self.disk.full
        try:
            for event in events:
                if not life.reaches(event.text, event.times, event.delay):
                    break  # it was done before
                full |= event.act == "fill"
                self._act(life, event)
                if event.act == "kill":
                    self._mourn(life)
                    return True
            self.disk.empty(life.ranks())
            self._end(life, full)
            return False
        finally:
            life.bury()
            self.tally.failed_saves += life.log.failed_saves()

    def _act(self, life: Life, event: Event) -> None:
        if event.act == "kill":
            life.kill(list(event.ranks))
            life.log.read()
            self.tally.kills[life.log.phase()] += 1
        elif event.act == "fill":
            self.disk.fill(life.ranks(), self.size, self.chance)
            self.tally.full_disks += 1
        else:
            self.disk.empty(life.ranks())

    def _mourn(self, life: Life) -> None:
        """After a kill: the other ranks end; with status 0 only if all is saved, as `run` sees."""
        statuses = life.wait(PATIENCE)
        if None in statuses:
            raise Lost(f"{life.log.path}: {PATIENCE} s after the death of its launcher or another a rank still lives")
        self.tally.survivors += sum(status > 0 for status in statuses)

    def _end(self, life: Life, full: bool = False) -> None:
        """Waits for its natural death; full: the disk was, its last save may have failed, and it must tell."""
        statuses = life.wait(PATIENCE + 4 * self.training.updates)
        excused = full and life.log.failed_saves() and None not in statuses and "Traceback" not in life.log.text
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
            raise Lost(
                f"{folder.name}/{LAST} is not the undisturbed training's: {len(apart)} places, {'; '.join(apart[:3])}"
            )
        left = [path.name for path in folder.iterdir() if not path.name.endswith(".pt")]
        if left:
            raise Lost(f"{folder.name}: {', '.join(left)} was left behind")
