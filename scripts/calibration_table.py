"""Compare the verdicts of `deepnet check` with the outcomes of the trainings: calibration_table.py RUNS.

RUNS is the folder that scripts/calibrate_check.sh writes. Prints two tables: verdicts by method and depth, with wrong
ones marked, and verdicts against outcomes.
"""

import sys
from collections import Counter
from pathlib import Path

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.files import read_object
from deepnet_fairseq.study.runs import RecordedRun, recorded_below
from deepnet_fairseq.text_table import render

VERDICTS, OUTCOMES = ("stable", "at risk", "diverging"), ("trained", "diverged")


def verdict_of(run: RecordedRun) -> str:
    """Return the verdict in the run's check.json; UserError if there is none."""
    path = run.place / "check.json"
    verdict = read_object(path, "delete it and check again").get("verdict")
    if verdict not in VERDICTS:
        raise UserError(f"{path}: is no report of `deepnet check --json`; delete it and check again")
    return verdict


def tables(folder: Path) -> str:
    """Return the tables for the finished runs in `folder`.

    A warning, "at risk" or "diverging", is right if the training diverged.
    """
    runs = [run for run in recorded_below(folder, over=True) if (run.place / "check.json").exists()]
    if not runs:
        raise UserError(f"{folder}: holds no finished runs with a check.json; scripts/calibrate_check.sh makes them")
    cells, tally, agree = {}, Counter(), 0
    for run in runs:
        verdict, outcome = verdict_of(run), OUTCOMES[run.diverged]
        right = (verdict != "stable") == run.diverged
        cells[run.method, run.layers] = f"{verdict}, {outcome}{'' if right else ' (!)'}"
        tally[verdict, outcome] += 1
        agree += right
    depths = sorted({run.layers for run in runs})
    rows = [["method", *(f"{depth}L-{depth}L" for depth in depths)]]
    rows += [[m, *(cells.get((m, depth), "-") for depth in depths)] for m in sorted({run.method for run in runs})]
    counts = [["verdict", *OUTCOMES], *([v, *(str(tally[v, outcome]) for outcome in OUTCOMES)] for v in VERDICTS)]
    closing = f"{agree} of {len(runs)} cells agree ({agree / len(runs):.0%}); (!) marks the others"
    return f"{render(rows)}\n\n{render(counts)}\n\n{closing}"


if __name__ == "__main__":
    try:
        print(tables(Path(sys.argv[1])))
    except UserError as error:
        sys.exit(f"calibration_table.py: error: {error}")
