"""Comparisons with a baseline, for the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from ...text_table import render
from .paired_test import LEVEL, Comparison, Row, Value
from .pairing import TestSet

Comparisons = Mapping[TestSet, Comparison]


def as_json(comparisons: Comparisons) -> dict:
    """{"rows", "signatures"} of a bilingual run, else {"sets": subset -> direction -> the same}."""
    if None in comparisons:
        return asdict(comparisons[None])
    sets: dict[str, dict] = {}
    for (subset, direction), comparison in comparisons.items():
        sets.setdefault(subset, {})[direction] = asdict(comparison)
    return {"sets": sets}


def table(comparisons: Comparisons) -> str:
    """One table, of systems or of directions; below it the signatures, and how many directions differ."""
    if None in comparisons:
        comparison = comparisons[None]
        header = ["system", "BLEU", "mean ± 95% CI", "p", "chrF2", "mean ± 95% CI", "p"]
        rows = [[row.system, *_cells(row.bleu), *_cells(row.chrf)] for row in comparison.rows]
        return "\n".join([render([header, *rows]), "", *_signatures([comparison])])
    header = ["set", "direction", "system", "BLEU", "mean ± 95% CI", "p", "chrF2", "mean ± 95% CI", "p"]
    rows = [
        [*key, row.system, *_cells(row.bleu), *_cells(row.chrf)]
        for key, comparison in comparisons.items()
        for row in comparison.rows
    ]
    return "\n".join([render([header, *rows]), "", *_counts(comparisons), *_signatures(list(comparisons.values()))])


def _cells(value: Value) -> list[str]:
    p = "" if value.p is None else f"{value.p:.4f}" + ("*" if value.p < LEVEL else " ")
    return [f"{value.score:.2f}", f"{value.mean:.2f} ± {value.ci:.2f}", p]


def _counts(comparisons: Comparisons) -> list[str]:
    """One line a system: in how many directions its BLEU is better or worse than the baseline's."""
    lines = []
    for system, rows in _by_system(comparisons).items():
        sure = [row.bleu.score - base.bleu.score for base, row in rows if row.bleu.p < LEVEL]
        better, worse = sum(d > 0 for d in sure), sum(d < 0 for d in sure)
        lines.append(
            f"{system}: BLEU better in {better} and worse in {worse} of {len(rows)} directions at p < {LEVEL}, "
            f"mean difference {sum(row.bleu.score - base.bleu.score for base, row in rows) / len(rows):+.2f}"
        )
    return lines


def _by_system(comparisons: Comparisons) -> dict[str, list[tuple[Row, Row]]]:
    """System -> its row of each direction, with the baseline's."""
    rows: dict[str, list[tuple[Row, Row]]] = {}
    for comparison in comparisons.values():
        baseline, *systems = comparison.rows
        for row in systems:
            rows.setdefault(row.system, []).append((baseline, row))
    return rows


def _signatures(comparisons: list[Comparison]) -> list[str]:
    """Each once; directions may have tokenizers of their own."""
    return list(dict.fromkeys(f"{m}: {signature}" for c in comparisons for m, signature in c.signatures.items()))
