"""How often `deepnet check` says of a training what the training then does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..json_text import read_object
from ..text_table import render
from .recorded_run import RecordedRun

VERDICTS = ("stable", "at risk", "diverging")
TRAINED, DIVERGED = "trained", "diverged"


@dataclass(frozen=True)
class Cell:
    """A method at a depth of N layers a stack: check.json's verdict, and whether the training beside it diverged."""

    method: str
    depth: int
    verdict: str
    diverged: bool

    @property
    def agrees(self) -> bool:
        """A warning, "at risk" or "diverging", is right if the training diverged."""
        return (self.verdict != "stable") == self.diverged


def cells_of(folder: Path) -> list[Cell]:
    """The finished cells below `folder`, each a recorded run (recorded_run.py) with check.json.

    UserError if there is none, or a report is broken.
    """
    found = [_cell(path.parent) for path in sorted(folder.glob("*/check.json")) if (path.parent / "trained").exists()]
    if not found:
        raise UserError(f"{folder}: holds no finished runs with a check.json; scripts/calibrate_check.sh makes them")
    return found


def _cell(folder: Path) -> Cell:
    run = RecordedRun.read(folder)
    path = folder / "check.json"
    report = read_object(path, "delete it and check again")
    if "verdict" not in report:
        raise UserError(f"{path}: is no report of `deepnet check --json`; delete it and check again")
    verdict = report["verdict"]
    if not isinstance(verdict, str) or verdict not in VERDICTS:
        raise UserError(f"{path}: verdict {verdict!r}: must be one of {', '.join(VERDICTS)}")
    return Cell(run.method, run.layers, verdict, run.diverged)


def confusion(cells: list[Cell]) -> str:
    """Two tables: verdicts by method and depth, marked where they are wrong; and verdicts against outcomes."""
    depths = sorted({cell.depth for cell in cells})
    by_place = {(cell.method, cell.depth): cell for cell in cells}
    rows = [["method", *(f"{depth}L-{depth}L" for depth in depths)]]
    for method in sorted({cell.method for cell in cells}):
        rows.append([method, *(_shown(by_place.get((method, depth))) for depth in depths)])
    counts = [["verdict", TRAINED, DIVERGED]]
    for verdict in VERDICTS:
        outcomes = [cell.diverged for cell in cells if cell.verdict == verdict]
        counts.append([verdict, str(outcomes.count(False)), str(outcomes.count(True))])
    right = sum(cell.agrees for cell in cells)
    closing = f"{right} of {len(cells)} cells agree ({right / len(cells):.0%}); (!) marks the others"
    return f"{render(rows)}\n\n{render(counts)}\n\n{closing}"


def _shown(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    return f"{cell.verdict}, {DIVERGED if cell.diverged else TRAINED}" + ("" if cell.agrees else " (!)")
