"""Kill, starve and restart trainings, and compare them with undisturbed ones; see results/faults.md."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from tabulate import tabulate

from ..support.corpora import make_data
from .campaign import COUNTED, KINDS, SIZES, Campaign
from .life import PHASES
from .states import Lost


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser("fault_test", description=__doc__)
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    parser.add_argument("kills", nargs="?", type=int, default=60, help="how many, over all trainings (default 60)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="of trainings; pair: 2 processes")
    parser.add_argument("--updates", type=int, default=45, help="of a training (default 45)")
    parser.add_argument("--seed", type=int, default=seed, help="of the random moments (default $SEED, or a random one)")
    parser.add_argument("--full-disks", type=float, default=0.25, help="share of starts to kill that meet a full disk")
    return parser.parse_args()


def run_campaigns(given: argparse.Namespace, folder: Path) -> dict[str, Counter]:
    """Run a campaign for each kind of training; return its tally by the name of the kind.

    given: the parsed command line; folder: of all trainings. The kills are shared out, and the first campaigns get
    those that are left over. Raises Lost if a training has lost something.
    """
    data = make_data(folder, SIZES)
    chance = random.Random(given.seed)  # one for all campaigns
    kills_of_each, left_over = divmod(given.kills, len(given.kinds))
    tallies = {}
    for number, name in enumerate(given.kinds):
        kills = kills_of_each + 1 if number < left_over else kills_of_each
        campaign = Campaign(name, data, given.updates, folder / name, chance)
        tallies[name] = campaign.run(kills, given.full_disks)
    return tallies


def main() -> None:
    """Run a campaign for each kind of training; print a table, or exit with one line that names what was lost."""
    given = arguments()
    folder = Path(tempfile.mkdtemp(prefix="faults"))
    torch.set_num_threads(1)  # a process with threads cannot be forked
    begun = time.monotonic()
    print(f"seed {given.seed}", flush=True)
    try:
        tallies = run_campaigns(given, folder)
    except Lost as error:
        sys.exit(f"fault_test: error: {error}; the logs are in {folder}; SEED={given.seed} repeats it")

    counts = ("trainings", *PHASES, *COUNTED)
    table = []
    for name, tally in tallies.items():
        numbers = [tally[count] for count in counts]
        table.append([name, *numbers])
    print(tabulate(table, ("training", *counts), "plain"))
    print("no checkpoint lost; weights, optimiser, moving average and logs are the undisturbed training's, bit for bit")
    print(f"{time.monotonic() - begun:.0f} s")
    shutil.rmtree(folder)


if __name__ == "__main__":
    sys.argv[0] = "fairseq-train"  # the package explains mistakes of programs of this name in one line
    main()
