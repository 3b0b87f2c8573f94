"""What a table of a paper is: its rows and columns, what was published, and where a run's score holds the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DIVERGED = "diverged"  # a published value like a number; what a paper does not give has none
DEPTH = ("method", "encoder_layers", "decoder_layers")


@dataclass(frozen=True)
class Paper:
    """Authors, year and title; where it is to be read."""

    citation: str
    url: str


@dataclass(frozen=True)
class Metric:
    """What a table's numbers are.

    kind: that of the published numbers, as score.json names it (tokenised, sacrebleu, spbleu); "" if each column has
    its own. digits: decimals of measured values.
    """

    name: str
    kind: str = ""
    higher_is_better: bool = True
    digits: int = 2


@dataclass(frozen=True)
class Column:
    """A number of each row. key: in Row.published; name: in the head; path: the keys that lead to it in score.json."""

    key: str
    name: str
    path: tuple[str, ...]

    def read(self, score: Mapping) -> float | None:
        """The value, from the content of score.json; None where that has none."""
        value: Any = score
        for key in self.path:
            value = value.get(key) if isinstance(value, Mapping) else None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if is_number else None


@dataclass(frozen=True)
class Row:
    """A system of the paper.

    facts: what run.json of its runs holds under the table's keys; empty for a system that is not trained here.
    published: key of a column -> number or DIVERGED. parameters: as the paper prints them. label, layers: only for a
    system that is not trained here.
    """

    facts: Mapping[str, Any]
    published: Mapping[str, float | str]
    label: str = ""
    layers: int | None = None
    parameters: str = ""


@dataclass(frozen=True)
class Table:
    """A table of a paper, or the numbers of a figure; each of them is in tables.py, its published numbers cited.

    name: for `deepnet report --table`; folders: where below RUNS its runs lie; script: what records them; place: where
    in the paper the numbers stand. keys: of run.json, by which its rows differ; runs that differ in others alone, as in
    the seed, share a row. grid: print it as methods by depths, for tables of one column. baseline: the method whose run
    at the same depth the others are compared with. figure: of the DeepNet paper, drawn from the same runs. tuned: a key
    of run.json that was searched over: the row's numbers are of the value whose runs have the best mean in the first
    column. notes: a paragraph each, below the table.
    """

    name: str
    folders: tuple[str, ...]
    script: str
    title: str
    paper: Paper
    place: str
    metric: Metric
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    keys: tuple[str, ...] = DEPTH
    grid: bool = False
    baseline: str = ""
    figure: int | None = None
    tuned: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def others(self) -> list[str]:
        """Keys beside method and depth."""
        return [key for key in self.keys if key not in DEPTH]
