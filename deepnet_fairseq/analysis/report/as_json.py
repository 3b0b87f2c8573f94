"""A report as JSON, with everything its pages show; keys are described in docs/reports.md and stay."""

from __future__ import annotations

import json

from .cell import Cell
from .collect import Report
from .document import Document
from .entry import Entry
from .result import Result

FORMAT = 1


def as_json(report: Report, document: Document) -> str:
    """The report as one object, with the keys of docs/reports.md; ends in a line break."""
    table = report.table
    content = {
        "format": FORMAT,
        "table": table.name,
        "title": table.title,
        "paper": {"citation": table.paper.citation, "url": table.paper.url, "place": table.place},
        "metric": {"name": table.metric.name, "higher_is_better": table.metric.higher_is_better},
        "columns": [{"key": column.key, "name": column.name} for column in table.columns],
        "baseline": report.baseline or None,
        "miniature": report.miniature,
        "warnings": document.warnings,
        "notes": document.notes,
        "results": [_result(result) for result in report.results],
        "runs": [_run(report, entry, document) for entry in report.entries],
        "environments": report.environments,
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _result(result: Result) -> dict:
    return {
        "label": result.label,
        "method": result.method,
        "norm": result.norm,
        "depth": result.depth,
        "layers": result.layers,
        "facts": dict(result.row.facts),
        "parameters": result.parameters,
        "published_parameters": result.row.parameters or None,
        "cells": {key: _cell(cell) for key, cell in result.cells.items()},
        "runs": [entry.name for entry in result.entries],
        "best": [entry.name for entry in result.best],
    }


def _cell(cell: Cell) -> dict:
    return {
        "state": cell.state.value,
        "n": len(cell.values),
        "mean": cell.mean,
        "sd": cell.sd,
        "published": cell.published,
        "difference": cell.difference,
        "others": [str(standing) for standing in cell.without_value],
    }


def _run(report: Report, entry: Entry, document: Document) -> dict:
    run, standing = entry.run, entry.standing
    amount, unit = entry.cost or (None, None)
    return {
        "name": entry.name,
        "method": run.method,
        "encoder_layers": run.encoder_layers,
        "decoder_layers": run.decoder_layers,
        "seed": run.seed,
        "state": standing.state.value,
        "diverged_at": run.diverged_at,
        "values": {column.key: column.read(entry.score) for column in report.table.columns},
        "score": entry.score or None,
        "baseline_run": entry.baseline,
        "p": entry.p,
        "parameters": entry.parameters,
        "updates": entry.updates,
        "wall_hours": entry.wall_hours,
        "cost_hours": amount,
        "cost_unit": unit,
        "environment": entry.environment,
        "log": document.logs.get(entry.name),
        "command": document.commands.get(entry.name),
        "facts": run.facts,
    }
