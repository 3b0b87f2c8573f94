"""The quickstart's runs as a table of Markdown."""

from __future__ import annotations

from ..figures.depth import rows
from ..recorded_run import RecordedRun
from ..report.document import Grid, Text
from ..report.environment import described, environment_of
from ..report.markdown import escape, grid_text

NAME = "quickstart"  # of the folder of its runs, and of its block


def quickstart(runs: list[RecordedRun]) -> str:
    """One row a run, and what they were trained with."""
    header, *cells = rows(runs)
    words = {"model", "method"}
    table = [[Text(text, "" if name in words else "number") for name, text in zip(header, row)] for row in cells]
    trained = dict.fromkeys(escape(described(environment_of(run))) for run in runs)
    return f"{grid_text(Grid(NAME, '', '', header, table))}\n\nTrained with {'; '.join(trained)}.\n"
