"""Trainings that are killed, starved of disk and started again, beside one that is left alone; docs/checkpoints.md."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

INSIDE = "FAULTS_INSIDE"  # set in a namespace of our own
NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
KINDS = ("alone", "pair", "zero", "loaders", "launcher")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("fault_test", description=__doc__)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    parser.add_argument("kills", nargs="?", type=int, default=60, help="how many, over all trainings")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of trainings; pair: 2 processes")
    parser.add_argument("--updates", type=int, default=45, help="of a training")
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--full-disks", type=float, default=0.25, help="share of lives in which the disk fills up")
    return parser.parse_args()


def namespaces_work() -> bool:
    """May this user mount a disk of his own?"""
    trial = [*NAMESPACE, "sh", "-c", 'mount -t tmpfs faults "$0"', "/mnt"]
    return bool(shutil.which(trial[0])) and subprocess.run(trial, capture_output=True).returncode == 0


def main() -> int:
    given = arguments()
    if given.full_disks and INSIDE not in os.environ and namespaces_work():
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
    """One campaign for each kind of training; what went wrong, if anything."""
    import torch

    from . import campaign, life  # which imports what every life needs

    torch.set_num_threads(1)  # a process with threads cannot be forked
    begun, chance, disk = time.monotonic(), random.Random(given.seed), campaign.Disk(folder / "disk")
    if INSIDE in os.environ:
        disk.mount()
    else:
        given.full_disks = 0.0
    print(f"seed {given.seed}; full disks: {'a tmpfs' if given.full_disks else 'none, or no namespaces'}", flush=True)
    data, tallies = campaign.make_data(folder), {}
    try:
        for place, name in enumerate(given.kinds):
            kills = given.kills // len(given.kinds) + (place < given.kills % len(given.kinds))
            processes, more, killed = campaign.KINDS[name]
            training = campaign.Training(name, data, processes, given.updates, more, killed)
            one = campaign.Campaign(training, disk, folder / f"logs-{name}", chance)
            tallies[name] = one.run(kills, given.full_disks)
    except campaign.Lost as error:
        return str(error)
    disk.close()
    heads = ("training", "trainings", "kills", *life.PHASES, *campaign.COUNTED)
    rows = [(name, tally["trainings"], sum(tally[phase] for phase in life.PHASES), *(tally[h] for h in heads[3:]))
            for name, tally in tallies.items()]  # fmt: skip
    print(tabulate(rows, heads, "plain", colalign=("right",) * len(heads)))
    print("no checkpoint lost; weights, optimiser, moving average and logs are the undisturbed training's, bit for bit")
    print(f"{time.monotonic() - begun:.0f} s")
    return None


if __name__ == "__main__":
    sys.argv[0] = "fairseq-train"  # whose mistakes the package explains in one line
    sys.exit(main())
