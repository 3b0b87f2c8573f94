"""Campaign: an undisturbed training, and the same training killed and restarted until it ends; both must end equal."""

from __future__ import annotations

import random
import re
import resource
import time
from collections import Counter
from pathlib import Path
from statistics import median

from deepnet_fairseq.data.language import make_corpus, write_corpus
from deepnet_fairseq.data.parallel_text import prepare_text

from ..support.lives import rows
from . import states
from .life import FAILED, FLAGS, SAVES, Life, children, phase, saved
from .states import Lost

PATIENCE = 60  # seconds for a rank to notice that another has ended, and for a training to end
LAST = "checkpoint_last.pt"
SPLITS = {"train": 100, "valid": 10, "test": 10}
SOON = ("--heartbeat-timeout", "15")
KINDS = {  # name: processes, flags, victims of a kill
    "alone": (1, ("--optimizer", "adam", "--store-ema", "--ema-decay", "0.9", "--ema-fp32"), "ranks"),
    "pair": (2, ("--optimizer", "deepnet_adam", "--update-freq", "2", *SOON), "ranks"),
    "zero": (2, ("--optimizer", "deepnet_adam", "--zero-sharding", "os", *SOON), "ranks"),
    "loaders": (1, ("--optimizer", "adam", "--num-workers", "2"), "a loader"),
    "launcher": (2, ("--optimizer", "deepnet_adam", *SOON), "the launcher"),
}
COUNTED = ("resumes", "full disks", "failed saves", "survivors ended")  # beside kills by phase, and trainings


def make_data(folder: Path) -> Path:
    """Write binarised qaa-qab text of about 15 batches an epoch; return its folder."""
    write_corpus(make_corpus(SPLITS, nouns=20, verbs=10), folder / "text")
    prepare_text(("qaa", "qab"), {split: str(folder / "text" / split) for split in SPLITS}, folder / "bin", vocab=150)
    return folder / "bin"


def words_of(data: Path, updates: int, folder: Path, more: tuple) -> list[str]:
    """Return the arguments of `fairseq-train`."""
    return [str(word) for word in (data, *FLAGS, "--max-update", updates, "--save-dir", folder, *more)]


class Campaign:
    """Campaign of kills for one kind of training in KINDS, and a tally of its events.

    Raises Lost if a killed training differs from the undisturbed one.
    """

    def __init__(self, name: str, data: Path, updates: int, folder: Path, chance: random.Random) -> None:
        """Run the undisturbed training."""
        self.processes, self.more, self.victim = KINDS[name]
        self.data, self.updates, self.folder, self.chance = data, updates, folder, chance
        self.tally: Counter[str] = Counter()
        folder.mkdir()
        begun, life = time.monotonic(), self.begin("alone")
        if any(life.wait(PATIENCE + 4 * updates)):
            raise Lost(f"{life.log}: ended with {life.statuses()} though nothing befell it")
        self.seconds = (time.monotonic() - begun) / 2  # the second half of the undisturbed time follows a resume
        self.writing = median(map(float, re.findall(r"writing took ([\d.]+) seconds", life.said())))
        self.expected, self.rows = states.load(folder / "alone" / LAST), rows(life.log)
        self.size = (folder / "alone" / LAST).stat().st_size

    def begin(self, name: str) -> Life:
        """Start a training, or resume it if it has a checkpoint."""
        log = self.folder / f"{name}-life{self.tally['resumes']}.log"
        return Life(words_of(self.data, self.updates, self.folder / name, self.more), self.processes, log)

    def run(self, kills: int, share: float) -> Counter:
        """Kill trainings `kills` times, starting new ones as needed; a `share` of all starts meet a full disk."""
        while kills > 0:
            name, known, done = f"killed{self.tally['trainings']}", 0, False
            while not done:
                life = self.begin(name)
                try:
                    full = kills > 0 and self.chance.random() < share
                    killed = kills > 0 and self.befall(life, full)
                    statuses = life.wait(PATIENCE if killed else PATIENCE + 4 * self.updates)
                finally:
                    life.end()
                self.check(life, statuses, killed, full, known)
                # one rank may end at the instant when another is killed
                least = self.updates if 0 in statuses else max(known, saved(life.said()))
                known, done = states.check(self.folder / name, least), set(statuses) == {0}
                kills -= killed
                self.tally["resumes"] += not done
            self.compare(self.folder / name)
            self.tally["trainings"] += 1
        return self.tally

    def befall(self, life: Life, full: bool) -> bool:
        """Limit the disk if `full`, then kill at a random moment; return False if the training ended first."""
        chance = self.chance
        if full and life.reaches(SAVES, chance.randint(1, 2)):
            life.limit_files(int(chance.uniform(0.3, 0.9) * self.size))
            self.tally["full disks"] += 1
            if chance.random() < 0.6 and life.reaches(FAILED, 1):
                life.limit_files(resource.RLIM_INFINITY)
        saving = chance.random() < 0.4 and life.reaches(SAVES, chance.randint(1, 2))
        life.wait(chance.uniform(0, self.writing if saving else self.seconds))
        if not life.alive:
            return False
        ranks, loaders = list(life.pids), [child for rank in life.pids for child in children(rank)]
        if self.victim == "the launcher":
            ranks = [life.launcher.pid]
        elif self.victim == "a loader" and loaders:
            ranks = [chance.choice(loaders)]
        elif chance.random() < 0.6:
            ranks = [chance.choice(ranks)]
        life.kill(ranks)
        self.tally[phase(life.said())] += 1
        return True

    def check(self, life: Life, statuses: list[int | None], killed: bool, full: bool, known: int) -> None:
        """Check the exit statuses and the log of one start, which resumed from update `known`."""
        log = life.said()
        self.tally["failed saves"] += log.count(FAILED)
        self.tally["survivors ended"] += killed and sum((status or 0) > 0 for status in statuses)
        if None in statuses:
            raise Lost(f"{life.log}: a rank still runs")
        if "Traceback" in log:
            raise Lost(f"{life.log}: a traceback in place of a line")
        if not killed and any(statuses) and not (full and FAILED in log):  # otherwise the last save failed
            raise Lost(f"{life.log}: ended with {statuses} though nothing befell it")
        if known and f"@ {known} updates" not in log and phase(log) != "start":
            raise Lost(f"{life.log}: did not go on from update {known}")
        for row, numbers in rows(life.log).items() if log else ():
            if numbers != self.rows.get(row):
                raise Lost(f"{life.log}: logged {numbers}, undisturbed {self.rows.get(row)}")

    def compare(self, folder: Path) -> None:
        """Compare the last checkpoint with the undisturbed training's, bit for bit."""
        apart = list(states.differences(states.load(folder / LAST), self.expected))
        if apart:
            places = f"{len(apart)} places, {'; '.join(apart[:3])}"
            raise Lost(f"{folder.name}/{LAST} is not the undisturbed training's: {places}")
        if left := [path.name for path in folder.iterdir() if path.suffix != ".pt" and path.name != ".lock"]:
            raise Lost(f"{folder.name}: {', '.join(left)} was left behind")
