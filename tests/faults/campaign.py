"""A training that is left alone, and the same one killed and started again until it is done: they must end equal."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from . import states
from .disk import ShortFiles, SmallDisk
from .fate import Durations, Event, draw
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
            folder = self.disk.folder / f"{self.training.processes}-{self.tally.trainings}"
            known = 0
            while known < self.training.updates:
                by_hand = kills <= launched
                life = self._birth(folder, Launched if by_hand else Life)
                events = self._events(full) if kills else ()
                kills -= self._live(life, events, known)
                known = states.check(folder, max(known, life.log.saved()))
                self.tally.resumes += known < self.training.updates
            self._compare(folder)
            self.tally.trainings += 1
        return self.tally

    def _events(self, full: float):
        return draw(self.chance, self.durations, self.training.processes, self.disk.full, full)

    def _birth(self, folder: Path, kind: type[Life] = Life) -> Life:
        self._lives += 1
        log = self._logs / f"life{self._lives}.log"
        return kind(self.training.flags(folder), self.training.processes, log)

    def _live(self, life: Life, events, known: int) -> int:
        """Lets it live through the events; 1 if it was killed, else 0."""
        try:
            killed = any(self._befalls(life, event) for event in events)
            if killed:
                self._mourn(life)
            else:
                self.disk.empty(life.ranks())
                self._end(life)
        finally:
            life.bury()
        self.tally.failed_saves += life.log.failed_saves()
        self._check_rows(life.log)
        if known and f"@ {known} updates" not in life.log.text and life.log.phase() != "start":
            raise Lost(f"{life.log.path}: did not go on from update {known}")
        return killed

    def _befalls(self, life: Life, event: Event) -> bool:
        """Was the training killed by it?"""
        if not life.reaches(event.text, event.times, event.delay):
            return False
        if event.act == "kill":
            life.kill(list(event.ranks))
            return True
        if event.act == "fill":
            self.disk.fill(life.ranks(), self.size, self.chance)
            self.tally.full_disks += 1
        else:
            self.disk.empty(life.ranks())
        return False

    def _mourn(self, life: Life) -> None:
        """After a kill: the other ranks end, and not as if all were well."""
        statuses = life.wait(PATIENCE)
        if None in statuses:
            raise Lost(f"{life.log.path}: {PATIENCE} s after another rank's death a rank still lives")
        if 0 in statuses:
            raise Lost(f"{life.log.path}: a rank ended with status 0 though another was killed")
        self.tally.survivors += sum(status > 0 for status in statuses)
        self.tally.kills[life.log.phase()] += 1

    def _end(self, life: Life) -> None:
        statuses = life.wait(PATIENCE + 4 * self.training.updates)
        life.bury()
        if set(statuses) != {0}:
            words = life.log.text.strip().splitlines()[-1:]
            raise Lost(f"{life.log.path}: ended with {statuses} though nothing befell it: {''.join(words)}")

    def _check_rows(self, log: Log) -> None:
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
