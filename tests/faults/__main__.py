"""Trainings that are killed, starved of disk and started again, beside one that is left alone; docs/faults.md."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

from .disk import NAMESPACE, ShortFiles, SmallDisk, namespaces_work

INSIDE = "FAULTS_INSIDE"  # set in a namespace of our own
KINDS = ("alone", "background", "pair")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("fault_test", description=__doc__)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    parser.add_argument("kills", nargs="?", type=int, default=60, help="how many, over all trainings")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of trainings; pair: 2 processes")
    parser.add_argument("--launched", type=int, default=1, help="kills of each kind started as a user does")
    parser.add_argument("--updates", type=int, default=45, help="of a training")
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--full-disks", type=float, default=0.25, help="share of lives in which the disk fills up")
    parser.add_argument("--no-namespace", action="store_true", help="limit the size of files instead of filling a disk")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    if not given.no_namespace and INSIDE not in os.environ and namespaces_work():
        words = [*NAMESPACE, sys.executable, "-m", "tests.faults", *sys.argv[1:], "--seed", str(given.seed)]
        os.execvpe(NAMESPACE[0], words, os.environ | {INSIDE: "1"})
    folder = Path(tempfile.mkdtemp(prefix="faults"))
    error = run(given, folder)
    if error:
        print(f"fault_test: error: {error}; the logs are in {folder}; SEED={given.seed} repeats it", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def run(given: argparse.Namespace, folder: Path) -> str | None:
    """One campaign for each number of processes; what went wrong, if anything."""
    import torch

    from . import campaign  # which imports what every life needs

    torch.set_num_threads(1)  # a process with threads cannot be forked
    begun, chance = time.monotonic(), random.Random(given.seed)
    disk = SmallDisk(folder / "disk", 64 << 20) if INSIDE in os.environ else ShortFiles(folder / "disk")
    print(f"seed {given.seed}; full disks: {disk.name}", flush=True)
    data, tallies = campaign.make_data(folder), {}
    try:
        for place, name in enumerate(given.kinds):
            kills = given.kills // len(given.kinds) + (place < given.kills % len(given.kinds))
            processes, more = campaign.KINDS[name]
            training = campaign.Training(name, data, processes, given.updates, more)
            one = campaign.Campaign(training, disk, folder / f"logs-{name}", chance)
            tallies[name] = one.run(kills, given.launched, given.full_disks)
    except campaign.Lost as error:
        return str(error)
    disk.close()
    print(table(tallies))
    print("no checkpoint lost; weights, optimiser, moving average and logs are the undisturbed training's, bit for bit")
    print(f"{time.monotonic() - begun:.0f} s")
    return None


def table(tallies: dict) -> str:
    from .log import PHASES

    rows = []
    for name, tally in tallies.items():
        kills = [tally.kills[phase] for phase in PHASES]
        numbers = (tally.resumes, tally.full_disks, tally.failed_saves, tally.survivors)
        rows.append((name, tally.trainings, sum(kills), *kills, *numbers))
    heads = ("training", "trainings", "kills", *PHASES, "resumes", "full disks", "failed saves", "survivors ended")
    return tabulate(rows, heads, "plain", colalign=("right",) * len(heads))


if __name__ == "__main__":
    sys.argv[0] = "fairseq-train"  # whose mistakes the package explains in one line
    sys.exit(main())
