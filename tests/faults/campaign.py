"""Campaign: an undisturbed training, and the same training killed and restarted until it ends; both must end equal."""

from __future__ import annotations

import random
import re
import resource
import time
from collections import Counter
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ..support.lives import logged_numbers
from . import states
from .life import FAILED, FLAGS, SAVES, Life, children, phase, saved
from .states import Lost

PATIENCE = 60  # seconds: how long a rank may take to notice that another has ended, and a training to end
SECONDS_AN_UPDATE = 4  # of an undisturbed training at most
LAST = "checkpoint_last.pt"
SIZES = {"train": 100, "valid": 10, "test": 10}  # sentence pairs: about 15 batches an epoch
SOON = ("--heartbeat-timeout", "15")  # seconds after which a rank ends that does not hear of another
# what a tally counts, beside "trainings" and the kills in each of life.PHASES:
# starts that resume; starts that met a full disk; saves that failed; ranks that ended by themselves after a kill
COUNTED = ("resumes", "full disks", "failed saves", "survivors ended")

# probabilities, for a start that is to be killed
IN_A_SAVE = 0.4  # that the kill comes while the training saves
ONE_RANK_ALONE = 0.6  # that one rank is killed and not all, where ranks are the victims
DISK_GETS_FREE = 0.6  # that a full disk has room again after the first save that failed


class Kind(NamedTuple):
    """Kind of training."""

    processes: int
    flags: tuple[str, ...]  # of fairseq-train, beside life.FLAGS
    victims: str  # of a kill: "ranks" (all or one), "a loader" (a process that loads data) or "the launcher"


KINDS = {
    "alone": Kind(1, ("--optimizer", "adam", "--store-ema", "--ema-decay", "0.9", "--ema-fp32"), "ranks"),
    "pair": Kind(2, ("--optimizer", "deepnet_adam", "--update-freq", "2", *SOON), "ranks"),
    "zero": Kind(2, ("--optimizer", "deepnet_adam", "--zero-sharding", "os", *SOON), "ranks"),
    "loaders": Kind(1, ("--optimizer", "adam", "--num-workers", "2"), "a loader"),
    "launcher": Kind(2, ("--optimizer", "deepnet_adam", *SOON), "the launcher"),
}


def words_of(data: Path, updates: int, folder: Path, more: tuple) -> list[str]:
    """Return the arguments of `fairseq-train` for so many updates in a folder, with more flags."""
    words = (data, *FLAGS, "--max-update", updates, "--save-dir", folder, *more)
    return [str(word) for word in words]


class Campaign:
    """Campaign of kills for one kind of training in KINDS, and a tally of its events (see COUNTED).

    A start is one run of fairseq-train, which begins a training or resumes it. Methods raise Lost if a killed training
    differs from the undisturbed one.
    """

    def __init__(self, name: str, data: Path, updates: int, folder: Path, chance: random.Random) -> None:
        """Run the undisturbed training.

        name: a key of KINDS; updates: of each training; folder: of the campaign, which is made; chance: of all draws.
        """
        self.kind = KINDS[name]
        self.data = data
        self.updates = updates
        self.folder = folder
        self.chance = chance
        self.tally: Counter[str] = Counter()
        folder.mkdir()

        begun = time.monotonic()
        life = self.begin("alone")
        statuses = life.wait(self.seconds_to_the_end)
        if any(status != 0 for status in statuses):
            raise Lost(f"{life.log}: ended with {life.statuses()} though nothing befell it")

        self.latest_kill = (time.monotonic() - begun) / 2  # seconds after a start; the second half follows a resume
        seconds_of_writing = re.findall(r"writing took ([\d.]+) seconds", life.said())
        self.latest_kill_in_a_save = median(map(float, seconds_of_writing))  # seconds after the save has begun
        # what a killed training has to end with
        self.expected_checkpoint = states.load(folder / "alone" / LAST)
        self.expected_rows = logged_numbers(life.log)
        self.checkpoint_bytes = (folder / "alone" / LAST).stat().st_size

    @property
    def seconds_to_the_end(self) -> float:
        """Seconds that an undisturbed training takes at most."""
        return PATIENCE + SECONDS_AN_UPDATE * self.updates

    def begin(self, name: str) -> Life:
        """Start the training of that name, or resume it if it has a checkpoint."""
        log = self.folder / f"{name}-life{self.tally['resumes']}.log"
        words = words_of(self.data, self.updates, self.folder / name, self.kind.flags)
        return Life(words, self.kind.processes, log)

    def run(self, kills: int, share: float) -> Counter:
        """Kill trainings `kills` times, starting new ones as needed, and check each; return the tally.

        share: of the starts that are to be killed, how many meet a full disk.
        """
        while kills > 0:
            name = f"killed{self.tally['trainings']}"
            kills -= self.train_to_the_end(name, kills, share)
            self.compare(self.folder / name)
            self.tally["trainings"] += 1
        return self.tally

    def train_to_the_end(self, name: str, most_kills: int, share: float) -> int:
        """Start a training and kill it, again and again, until it has ended; return how often it was killed.

        most_kills: after so many it is left alone; share: as for `run`.
        """
        kills = 0
        known = 0  # updates that are saved for certain
        done = False
        while not done:
            is_to_die = kills < most_kills
            life = self.begin(name)
            try:
                disk_fills = is_to_die and self.chance.random() < share
                killed = is_to_die and self.disturb(life, disk_fills)
                statuses = life.wait(PATIENCE if killed else self.seconds_to_the_end)
            finally:
                life.end()

            self.check(life, statuses, killed, disk_fills, known)
            one_has_ended_well = 0 in statuses  # as one rank may at the instant when another is killed
            least = self.updates if one_has_ended_well else max(known, saved(life.said()))
            known = states.check(self.folder / name, least)
            done = set(statuses) == {0}
            if killed:
                kills += 1
            if not done:
                self.tally["resumes"] += 1
        return kills

    def disturb(self, life: Life, disk_fills: bool) -> bool:
        """Fill the disk if `disk_fills`, then kill at a random moment; return False if the training ended before."""
        if disk_fills:
            self.fill_disk(life)
        self.wait_for_random_moment(life)
        if not life.alive:
            return False

        life.kill(self.choose_victims(life))
        self.tally[phase(life.said())] += 1
        return True

    def fill_disk(self, life: Life) -> None:
        """Let the disk be full from one of the next two saves on, perhaps until a save has failed."""
        if not life.reaches(SAVES, self.chance.randint(1, 2)):
            return
        share_written = self.chance.uniform(0.3, 0.9)
        life.limit_files(int(share_written * self.checkpoint_bytes))
        self.tally["full disks"] += 1

        gets_free = self.chance.random() < DISK_GETS_FREE
        if gets_free and life.reaches(FAILED, 1):
            life.limit_files(resource.RLIM_INFINITY)

    def wait_for_random_moment(self, life: Life) -> None:
        """Wait until a random moment of the training, or of one of its next two saves (IN_A_SAVE)."""
        in_a_save = self.chance.random() < IN_A_SAVE and life.reaches(SAVES, self.chance.randint(1, 2))
        latest = self.latest_kill_in_a_save if in_a_save else self.latest_kill
        life.wait(self.chance.uniform(0, latest))

    def choose_victims(self, life: Life) -> list[int]:
        """Return the processes to be killed: all ranks or one, a process that loads data, or the launcher."""
        ranks = list(life.pids)
        loaders = []
        for rank in ranks:
            loaders += children(rank)

        if self.kind.victims == "the launcher":
            return [life.launcher.pid]
        if self.kind.victims == "a loader" and loaders:
            return [self.chance.choice(loaders)]
        if self.chance.random() < ONE_RANK_ALONE:
            return [self.chance.choice(ranks)]
        return ranks

    def check(
        self, life: Life, statuses: list[int | None], killed: bool, disk_fills: bool, known: int
    ) -> None:  # fmt: skip
        """Check the exit statuses and the log of one start, which resumed from update `known`, 0 for none.

        statuses: of the ranks, as life.statuses() returns them; killed: whether some of its processes were killed;
        disk_fills: whether it met a full disk.
        """
        log = life.said()
        self.tally["failed saves"] += log.count(FAILED)
        if killed:
            ended_by_themselves = [status for status in statuses if status is not None and status > 0]
            self.tally["survivors ended"] += len(ended_by_themselves)

        if None in statuses:
            raise Lost(f"{life.log}: a rank still runs")
        if "Traceback" in log:
            raise Lost(f"{life.log}: a traceback in place of a line")

        last_save_may_have_failed = disk_fills and FAILED in log  # after which a training ends with an error
        if any(statuses) and not killed and not last_save_may_have_failed:
            raise Lost(f"{life.log}: ended with {statuses} though nothing befell it")
        has_begun = phase(log) != "start"
        if known and has_begun and f"@ {known} updates" not in log:
            raise Lost(f"{life.log}: did not go on from update {known}")

        logged = logged_numbers(life.log) if log else {}  # the file may not be there yet
        for row, numbers in logged.items():
            expected = self.expected_rows.get(row)
            if numbers != expected:
                raise Lost(f"{life.log}: logged {numbers}, undisturbed {expected}")

    def compare(self, folder: Path) -> None:
        """Check that a training's last checkpoint is the undisturbed one's, bit for bit, and no file is left over.

        The folder holds checkpoints, and .lock, which every training has.
        """
        differences = list(states.differences(states.load(folder / LAST), self.expected_checkpoint))
        if differences:
            places = f"{len(differences)} places, {'; '.join(differences[:3])}"
            raise Lost(f"{folder.name}/{LAST} is not the undisturbed training's: {places}")

        left_behind = [path.name for path in folder.iterdir() if path.suffix != ".pt" and path.name != ".lock"]
        if left_behind:
            raise Lost(f"{folder.name}: {', '.join(left_behind)} was left behind")
