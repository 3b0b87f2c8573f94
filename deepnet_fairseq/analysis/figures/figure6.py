"""Figure 6: BLEU against depth, methods by where their LayerNorm stands, DeepNorm in each panel."""

from __future__ import annotations

from pathlib import Path

from ...methods import METHODS, get_method
from .. import paper
from ..recorded_run import RecordedRun
from ..style import style_of
from .sheet import Sheet
from .summary import means, number, read_off, summary

PANELS = {"post": "(a) Post-LN", "none": "(b) no LN", "pre": "(c) Pre-LN"}
EVERYWHERE = "deepnorm"


def group(norm: str) -> list[str]:
    """Methods of one panel: DeepNorm, those of the paper, then others."""
    rest = [name for name in METHODS if get_method(name).norm == norm and name != EVERYWHERE]
    return [EVERYWHERE, *sorted(rest, key=lambda name: (name not in paper.FIGURE6, name))]


def draw(runs: list[RecordedRun], path: Path) -> str:
    """runs: methods at several depths, with score.json, or diverged."""
    sheet = Sheet(3, 1, paper.SETTING[6], size=(4.2, 4.4), shared=False)
    rows, missing, columns = [], [], sorted({run.layers for run in runs} | set(paper.FIGURE6_LAYERS))
    for panel, (norm, title) in enumerate(PANELS.items()):
        for method in group(norm):
            found = [run for run in runs if run.method == method]
            scores = _scores(sheet, panel, method, found)
            if method == EVERYWHERE and panel:
                continue
            rows += _rows(method, found, scores, columns)
            if not found:
                missing.append(style_of(method).label)
        sheet.label(panel, title, "layers N of an N-N model", "BLEU")
    sheet.save(path)
    return summary(6, "BLEU against depth", [[["method", *map(str, columns)], *rows]], missing)


def _scores(sheet: Sheet, panel: int, method: str, runs: list[RecordedRun]) -> dict[int, float]:
    """Draws one method; layers -> mean BLEU of the runs that did not diverge."""
    style, points = style_of(method), paper.FIGURE6.get(method)
    if points:
        sheet.paper(panel, paper.FIGURE6_LAYERS, points, style)
    scores = means((run.layers, run.bleu) for run in runs if not run.diverged)
    if scores:
        sheet.curve(panel, list(scores), list(scores.values()), style)
    for layers in sorted({run.layers for run in runs if run.diverged}):
        sheet.diverged(panel, layers, style)
    return scores


def _rows(method: str, runs: list[RecordedRun], scores: dict[int, float], columns: list[int]) -> list[list[str]]:
    """One row measured, where x is diverged, and one of the paper's."""
    label, failed = style_of(method).label, {run.layers for run in runs if run.diverged}
    rows = []
    if runs:
        mine = [" ".join(filter(None, (number(scores.get(n)).strip("-"), "x" * (n in failed)))) for n in columns]
        rows.append([label, *(cell or "-" for cell in mine)])
    if method in paper.FIGURE6:
        theirs = dict(zip(paper.FIGURE6_LAYERS, paper.FIGURE6[method], strict=True))
        rows.append([f"{label}, paper", *(read_off(theirs.get(n)) for n in columns)])
    return rows
