"""One row a run, and one a method."""

from __future__ import annotations

from ...methods import METHODS
from .collect import Report
from .document import Grid, Text
from .entry import Entry
from .numbers import DASH, MISSING, hours, interval, number, whole_number
from .overview import further_metrics
from .papers import paper_of
from .result import Result
from .table import DEPTH


def run_list(report: Report, logs: dict[str, str]) -> Grid:
    """Every run: how it stands, its scores, what it took, with what it was trained.

    logs: name of a run -> address.
    """
    metrics = further_metrics(report)
    tested = any(entry.p is not None for entry in report.entries)
    tuned = [report.table.tuned] * bool(report.table.tuned)
    header = ["run", "method", "layers" if DEPTH[1] in report.table.keys else "row", *tuned, "seed", "state"]
    header += [column.name for column in report.table.columns]
    header += [f"{name} [95%]" for name in metrics] + [f"p against {report.baseline}"] * tested
    header += ["updates", "cost", "trained with", "log"]
    rows = []
    for result in report.results:
        for entry in result.entries:
            tests = [Text(_p(entry, report.baseline), "number")] * tested
            rows.append(_run(report, result, entry, metrics) + tests + _training(entry, logs))
    return Grid("runs", "Runs", "one row a training", header, rows)


def _run(report: Report, result: Result, entry: Entry, metrics: dict[str, str]) -> list[Text]:
    digits = report.table.metric.digits
    seed = DASH if entry.run.seed is None else str(entry.run.seed)
    return [
        Text(entry.name),
        Text(result.label),
        Text(result.depth, "number"),
        *[Text(str(entry.run.facts.get(report.table.tuned)), "number")] * bool(report.table.tuned),
        Text(seed, "number"),
        Text(str(entry.standing), entry.standing.state.value),
        *(Text(number(column.read(entry.score), digits), "number") for column in report.table.columns),
        *(Text(interval(entry.score, key, digits), "number") for key in metrics.values()),
    ]


def _training(entry: Entry, logs: dict[str, str]) -> list[Text]:
    return [
        Text(whole_number(entry.updates), "number"),
        Text(hours(entry.cost), "number"),
        Text(entry.environment, "environment"),
        Text("train.log", link=logs[entry.name]) if entry.name in logs else MISSING,
    ]


def _p(entry: Entry, baseline: str) -> str:
    if entry.run.method == baseline:
        return "baseline"
    if entry.p is None:
        return DASH
    return "<0.001" if entry.p < 0.001 else f"{entry.p:.3f}"


def method_list(report: Report) -> Grid:
    """Where each method puts LayerNorm, what a residual branch computes, and its paper."""
    named = {result.method: result for result in report.results if result.method in METHODS}
    rows = []
    for name, result in named.items():
        citation, address = paper_of(name)
        equation = Text(METHODS[name].equation)
        rows.append([Text(result.label), Text(name), Text(METHODS[name].norm), equation, Text(citation, link=address)])
    header = ["method", "--method", "LayerNorm", "a residual branch computes", "paper"]
    return Grid("methods", "Methods", "where LayerNorm stands, and the paper", header, rows)
