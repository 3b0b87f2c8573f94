"""Was `deepnet check` right on the depth study's cells? As tables of texts, header first, for its page."""

from __future__ import annotations

import math

from .depth_study import outcome
from .depth_tables import FAILED, Bests, bests, ended, long_enough, place_of, rate_of
from .runs import RecordedRun
from .style import style_of

VERDICTS = ("diverging", "at risk", "stable")  # of `deepnet check`; the first two are warnings


def verdict_of(run: RecordedRun) -> str:
    """Of `deepnet check`, one of VERDICTS; "none" where the cell was not checked."""
    return str(run.parts.get("check", {}).get("verdict", "none"))


def rows_of_verdicts(runs: list[RecordedRun]) -> list[list[str]]:
    """The confusion matrix: what `deepnet check` said before, and how the training ended."""
    rows, runs = [["verdict", *FAILED[:2], "no number", "trained"]], long_enough(runs)
    for verdict in (*VERDICTS, *sorted({verdict_of(run) for run in runs} - {*VERDICTS})):
        ways = [ended(run) for run in runs if verdict_of(run) == verdict]
        rows.append([verdict, *(str(ways.count(way)) for way in (*FAILED, "trained"))])
    return rows


def rows_of_misjudged(runs: list[RecordedRun]) -> list[list[str]]:
    """A row a cell whose verdict its training refuted: no warning and no learning, or a warning and a loss."""
    rows, found = [["cell", "verdict", "outcome", "its rate", "what it found"]], bests(runs)
    for run in sorted(long_enough(runs), key=lambda run: (ended(run), run.method, run.layers, rate_of(run), run.name)):
        verdict, way = verdict_of(run), ended(run)
        if verdict in VERDICTS and (verdict == "stable") != (way == "trained"):
            loss = f"{outcome(run):.3f} bits" if way == "trained" else run.parts.get(way, way).split(":")[0]
            findings = "; ".join(finding["evidence"] for finding in run.parts["check"]["findings"]) or "-"
            rows.append([run.name, verdict, loss, _beside(run, found), findings])
    return rows


def _beside(run: RecordedRun, found: Bests) -> str:
    """Its rate, by the best of its method and depth, as "best / 4"."""
    times = rate_of(run) / found[run.method, place_of(run)].rate
    if math.isnan(times):
        return "none learns"
    return "the best" if times == 1 else f"best x {times:g}" if times > 1 else f"best / {1 / times:g}"


def said_of_verdicts(runs: list[RecordedRun]) -> str:
    """How often `deepnet check` was right, in a sentence or two."""
    checked, found = [run for run in long_enough(runs) if verdict_of(run) in VERDICTS], bests(runs)
    failed = [run for run in checked if ended(run) != "trained"]
    trained = [run for run in checked if ended(run) == "trained"]
    missed = [run for run in failed if verdict_of(run) == "stable"]
    alarms = sum(verdict_of(run) != "stable" for run in trained)
    slow = sum(ended(run) == "stuck" and rate_of(run) < found[run.method, place_of(run)].rate for run in missed)
    most = max(failed, key=lambda run: [other.method for other in failed].count(run.method), default=None)
    said = (
        f"It warned of {len(failed) - len(missed)} of the {len(failed)} cells that failed and of {alarms} of the "
        f"{len(trained)} that trained: right on {len(checked) - len(missed) - alarms} of {len(checked)}, where saying "
        f'"stable" of all is right on {len(trained)}.'
    )
    if most:
        own, others = ([run for run in failed if (run.method == most.method) is same] for same in (True, False))
        warned = [sum(verdict_of(run) != "stable" for run in some) for some in (own, others)]
        said += (
            f" Of {style_of(most.method).label}'s {len(own)} failures it warned of {warned[0]}, of the other methods' "
            f"{len(others)} of {warned[1]}."
        )
    if slow:
        said += (
            f" Of the {len(missed)} that it missed {slow} were stuck at a rate below the best of their method and "
            "depth: too low to leave the frequencies of pieces in time, which no check of stability can tell."
        )
    return f"{said}\n"
