"""Time the quickstart of two checkouts in turn, on idle cores and beside one busy core, after set-up.

    python results/threads/quickstart.py OLD NEW [--rounds 1] [--busy 0,1] [quickstart's own flags]

OLD and NEW are folders of two checkouts; the environment is the active one. It takes about an hour on two cores.
Appends a line for each run to quickstart.jsonl: checkout, commit, busy cores, seconds, BLEU and held-out loss by
method.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.threads import busy
from deepnet_fairseq.threads import VARIABLES
from deepnet_fairseq.tools.environment import processor

RECORDS = Path(__file__).with_suffix(".jsonl")


def timed(checkout: Path, programs: int, flags: list[str]) -> dict:
    """Run the quickstart of a checkout to its end; return what is recorded of the run.

    programs: number of other programs that keep a core busy meanwhile; flags: of the quickstart. The dict has
    "seconds", and two dicts by method, "bleu" and "held_out": the last held-out loss (bits per token).
    """
    # without the variables that set a number of threads, so that the quickstart chooses it itself
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment["PYTHONPATH"] = str(checkout)
    words = [sys.executable, "-m", "deepnet_fairseq", "quickstart", *flags]
    with tempfile.TemporaryDirectory() as folder, busy(programs):
        start = time.monotonic()
        words += ["--out", folder]
        subprocess.run(words, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - start
        rows = [json.loads(line) for line in Path(folder, "records.jsonl").read_text().splitlines()]
    return {
        "seconds": round(seconds, 1),
        "bleu": {row["run"]["method"]: row["score"]["bleu"] for row in rows if "score" in row},
        "held_out": {row["run"]["method"]: float(row["log"]["valid"][-1]["valid_loss"]) for row in rows},
    }


def commit_of(checkout: Path) -> str:
    """Return the first ten digits of a checkout's commit."""
    words = ["git", "-C", str(checkout), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Time the quickstart of both checkouts in turn, for each round and number of busy programs; append records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="folder of a checkout")
    parser.add_argument("new", type=Path, help="folder of the checkout to compare it with")
    parser.add_argument("--rounds", type=int, default=1, help="how often to time each checkout (default: 1)")
    parser.add_argument(
        "--busy", default="0,1", help="numbers of other programs, each of which keeps a core busy (default: 0,1)"
    )
    args, flags = parser.parse_known_args()

    checkouts = (("old", args.old.resolve()), ("new", args.new.resolve()))
    numbers_busy = [int(number) for number in args.busy.split(",")]
    for _round, programs, (name, checkout) in product(range(args.rounds), numbers_busy, checkouts):
        record = {
            "checkout": name,
            "commit": commit_of(checkout),
            "hardware": processor(),
            "busy": programs,
            "load": os.getloadavg()[0],  # of the minute before the run
            "flags": flags,
        }
        record |= timed(checkout, programs, flags)
        print(json.dumps(record), flush=True)
        with open(RECORDS, "a", encoding="utf-8") as records:
            records.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
