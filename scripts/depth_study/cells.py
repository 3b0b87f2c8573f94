"""The cells of scripts/depth_study.sh, by its plan and its runs: cells.py next|list|render|leads|kept|prune PLAN RUNS.

next     the cell to train now, as NAME METHOD LAYERS SEED RATE UPDATES FLAGS...; nothing at the end, or of the budget
list     all that can be named now, and the stages that wait for them
render   the table, methods by depths
leads    the names of the best run of each method, depth and number of updates that is long enough to translate with
kept     the names of the best run of each method, depth and number of updates, of no less than a cell of a grid
prune    removes the weights of all other runs that are over
RUNS: the folder of the runs, or of their records. --without NAMES: cells to pass over. METHODS="A B": these alone.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.study.depth_study import (
    Found,
    Plan,
    found_by,
    leaders,
    outcome,
    read_plan,
    spent_hours,
)
from deepnet_fairseq.study.depth_tables import ended, rows_by_rate
from deepnet_fairseq.study.runs import RecordedRun, recorded_below
from deepnet_fairseq.text_table import render


def _ended(run: RecordedRun | None) -> list[str]:
    if run is None:
        return ["to come", "-"]
    said = ended(run)
    return [f"{outcome(run):.3f} bits" if said == "trained" else said, f"{spent_hours([run]):.2f}"]


def listed(plan: Plan, found: Found, runs: list[RecordedRun]) -> str:
    """A line a cell, then the stages to come and the hours."""
    over = {run.name: run for run in runs}
    rows = [["stage", "cell", "state", "hours", "predicted"]]
    hours = 0.0
    for cell in found.cells():
        run = over.pop(cell.name, None)
        hours += 0 if run or math.isnan(plan.hours(cell)) else plan.hours(cell)
        rows.append([str(cell.stage), cell.name, *_ended(run), f"{plan.hours(cell):.2f}"])
    rows += [["-", name, *_ended(run), "-"] for name, run in over.items()]  # neighbours of what was the best
    named = max((cell.stage for cell in found.cells()), default=0)
    lines = [f"stage {s.number}, {s.title}: to be named" for s in plan.stages if s.number > named]
    total = f"{spent_hours(runs):.1f} of {plan.budget:g} core-hours spent, {hours:.1f} predicted for what is named"
    return "\n".join([render(rows), "", *lines, total])


def main() -> None:
    """Parses, does, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("next", "list", "render", "leads", "kept", "prune"))
    parser.add_argument("plan", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--without", nargs="*", default=())
    args = parser.parse_args()
    plan, runs = read_plan(args.plan), recorded_below(args.runs, over=True)
    if named := os.environ.get("METHODS", "").split():
        plan = plan.only(named)
    found = found_by(plan, runs)
    found.losses.update(dict.fromkeys(args.without, math.inf))
    if args.what == "next":
        cell = found.next()
        if cell and spent_hours(runs) >= plan.budget:
            print(f"the budget of {plan.budget:g} core-hours is spent; next were {cell.name}", file=sys.stderr)
        elif cell:
            print(cell)
    elif args.what == "list":
        print(listed(plan, found, runs))
    elif args.what == "render":
        print(render(rows_by_rate(runs)) if runs else "no cell is over")
    elif args.what == "leads":
        print("\n".join(run.name for run in leaders(runs) if run.facts["updates"] >= plan.translated))
    elif args.what == "kept":
        print("\n".join(run.name for run in leaders(runs) if run.facts["updates"] >= plan.updates))
    else:
        kept = {run.name for run in leaders(runs)}
        for run in runs:
            for path in run.place.glob("*.pt") if run.place.is_dir() and run.name not in kept else ():
                path.unlink()


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"depth_study.sh: error: {error}")
