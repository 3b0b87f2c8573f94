"""What stands below a report's tables: how to read them, and how their numbers were computed."""

from __future__ import annotations

from collections.abc import Iterator

from .collect import Report
from .overview import further_metrics

NAMES = {"tokenised": "tokenised BLEU", "sacrebleu": "sacreBLEU", "chrf": "chrF", "spbleu": "spBLEU"}


def notes(report: Report) -> list[str]:
    """Paragraphs below the tables, in the order of importance."""
    better = "Higher" if report.table.metric.higher_is_better else "Lower"
    found = [
        f"In parentheses the published number, of {report.table.place}; no parentheses where the paper gives none. "
        f'"not run": no run was recorded. {better} is better.',
        *report.table.notes,
    ]
    if further_metrics(report):
        found.append("In brackets the 95% interval of 1,000 bootstrap samples of the test set.")
    if any(entry.p is not None for entry in report.entries):
        found.append(f"p: paired test of sacreBLEU, same sentences, against {report.baseline}'s run at the same depth.")
    if any(entry.cost for entry in report.entries):
        found.append(
            "Cost: wall time of the training, all its attempts, times its GPUs; on a CPU wall time alone. "
            "Translating and scoring are not in it."
        )
    signatures = {
        (name, text) for entry in report.entries for name, text in _signatures(entry.score) if name in NAMES and text
    }
    return found + [f"Signature of {NAMES[name]}: {text}" for name, text in sorted(signatures)]


def _signatures(score: dict) -> Iterator[tuple[str, str]]:
    """Metric and signature, at any depth of a score."""
    for key, value in score.items():
        if isinstance(value, dict):
            if isinstance(value.get("signature"), str):
                yield key, value["signature"]
            yield from _signatures(value)
