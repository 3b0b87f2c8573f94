"""DeepNet's Figures 9 and 10: BLEU of every direction on Flores-101 as a map, M2M-100's beside DeepNet's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from statistics import fmean

import numpy as np
from matplotlib.figure import Figure

from ...errors import UserError
from ...files import whole
from ..runs import RecordedRun
from .sheet import number, page

SUBSET = "flores"
SOURCE = "paper: 87 languages, 7,482 directions, as colours without numbers; spBLEU 13.6 (M2M-100) and 18.6 (DeepNet)"
PER_LANGUAGE = 0.16  # inches
LEAST, MARGIN = 3.0, 1.2


def figure10(runs: Sequence[RecordedRun], path: Path) -> str:
    """A panel a run, rows by source, columns by target, on one scale; blank where a direction was not translated.

    runs: of Table 3, with the test set "flores" in score.json.
    """
    scores = {_name(run): _directions(run) for run in runs}
    languages = sorted({language for found in scores.values() for name in found for language in name.split("-")})
    highest = max(bleu for found in scores.values() for bleu in found.values())
    side = max(LEAST, PER_LANGUAGE * len(languages)) + MARGIN
    figure = Figure(figsize=(side * len(scores), side), layout="constrained")
    panels = figure.subplots(1, len(scores), squeeze=False)[0]
    for axes, (name, found) in zip(panels, scores.items(), strict=True):
        image = axes.imshow(_map(found, languages), vmin=0, vmax=highest or 1, cmap="viridis")
        axes.set(title=name, xlabel="target", ylabel="source")
        axes.set_xticks(range(len(languages)), languages, rotation=90, fontsize=6)
        axes.set_yticks(range(len(languages)), languages, fontsize=6)
    figure.colorbar(image, ax=panels, label="BLEU", shrink=0.7)
    with whole(path) as part:
        figure.savefig(part, format="png", dpi=110, metadata={"Software": None})
    rows = [["run", "directions", "mean", "lowest", "highest"], *(_row(*item) for item in scores.items())]
    return page("Figures 9 and 10: BLEU on Flores-101 by language", [rows], (), SOURCE)


def _name(run: RecordedRun) -> str:
    return f"{run.facts.get('system', run.name)} {run.depth}"


def _directions(run: RecordedRun) -> dict[str, float]:
    """Direction -> BLEU; UserError if the run was not scored on Flores."""
    sets = (run.score or {}).get("sets", {})
    found = {name: scores["bleu"] for name, scores in sets.get(SUBSET, {}).get("directions", {}).items()}
    if not found:
        raise UserError(f"{run.where('score')}: has no test set {SUBSET}; translate that and score the run again")
    return found


def _map(found: dict[str, float], languages: list[str]) -> np.ndarray:
    """(source, target), NaN where there is no score."""
    values = np.full((len(languages), len(languages)), np.nan)
    for (row, source), (column, target) in permutations(enumerate(languages), 2):
        values[row, column] = found.get(f"{source}-{target}", np.nan)
    return values


def _row(name: str, found: dict[str, float]) -> list[str]:
    ordered = sorted(found, key=found.__getitem__)
    ends = [f"{direction} {number(found[direction])}" for direction in (ordered[0], ordered[-1])]
    return [name, str(len(found)), number(fmean(found.values())), *ends]
