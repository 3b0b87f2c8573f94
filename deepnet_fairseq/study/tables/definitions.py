"""What a table of a paper is; those of tables.toml, which `deepnet report --table` finds by name in TABLES."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import paper

DEPTH = ("method", "encoder_layers", "decoder_layers")
POINTS = {  # figure of DeepNet -> layers of encoder and decoder, and each method's BLEU at these depths
    6: ([(n, n) for n in paper.FIGURE6_LAYERS], paper.FIGURE6),
    8: ([(d // 2, d // 2) for d in paper.FIGURE8["deepnorm"]], {"deepnorm": paper.FIGURE8["deepnorm"].values()}),
}


@dataclass(frozen=True)
class Metric:
    """What a table's numbers are.

    kind: that of the published numbers, one of scoring.KINDS; "" if each column has its own.
    """

    name: str
    kind: str = ""
    higher_is_better: bool = True


@dataclass(frozen=True)
class Column:
    """A number of each row. key: in Row.published; name: in the head; path: of number_at in score.json."""

    key: str
    name: str
    path: str

    def read(self, score: Mapping) -> float | None:
        """The value, from the content of score.json; None where that has none."""
        return number_at(score, self.path)


def number_at(score: Mapping, path: str) -> float | None:
    """What the content of score.json has at these keys, as "a.b"; None where that is no number."""
    value: Any = score
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class Row:
    """A system of the paper.

    facts: what run.json of its runs holds under the table's keys; empty for a system that is not trained here.
    published: key of a column -> number or "diverged"; a number that is not given has no key. label, layers:
    only for a system that is not trained here.
    """

    facts: Mapping[str, Any]
    published: Mapping[str, float | str]
    label: str = ""
    layers: int | None = None


@dataclass(frozen=True)
class Table:
    """A table of a paper, or the numbers of a figure.

    name: for `deepnet report --table`; folders: where below RUNS its runs lie; script: what records them; paper: its
    "citation" (authors, year and title) and "url"; place: where in the paper the numbers stand. keys: of run.json, by
    which its rows differ; runs that differ in others alone, as in the seed, share a row. grid: print it as methods by
    depths, for tables of one column. figure: of the DeepNet paper, whose points are its numbers. tuned: a key of
    run.json that was searched over: the row's numbers are of the value whose runs have the best mean in the first
    column. notes: a paragraph each, below the table.
    """

    name: str
    folders: tuple[str, ...]
    script: str
    title: str
    paper: Mapping[str, str]
    place: str
    metric: Metric
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    keys: tuple[str, ...] = DEPTH
    grid: bool = False
    figure: int | None = None
    tuned: str = ""
    notes: tuple[str, ...] = ()

    @property
    def others(self) -> list[str]:
        """Keys beside method and depth."""
        return [key for key in self.keys if key not in DEPTH]


def read_tables(text: str) -> dict[str, Table]:
    """Name -> table, of a text like that of tables.toml."""
    content = tomllib.loads(text)
    return {fields["name"]: _table(content["papers"], **fields) for fields in content["table"]}


def _table(papers: dict[str, dict[str, str]], **fields: Any) -> Table:
    keys, columns = tuple(fields.get("keys", DEPTH)), tuple(Column(*words) for words in fields["columns"])
    rows = [_row(keys, columns, toml_row) for toml_row in _rows(fields, keys)]
    for own in ("head", "rows", "across", "values"):
        fields.pop(own, None)
    error = paper.ERROR.get(fields.get("figure", 0), "")
    return Table(**fields | {
        "folders": tuple(fields["folders"]), "paper": papers[fields["paper"]], "metric": Metric(**fields["metric"]),
        "columns": columns, "rows": tuple(rows), "keys": keys,
        "notes": tuple(note.strip().format(error=error) for note in fields.get("notes", ())),
    })  # fmt: skip


def _rows(fields: dict[str, Any], keys: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """What is given of each row."""
    if "rows" in fields:
        yield from (dict(zip(fields["head"], row, strict=True)) for row in fields["rows"])
        return
    across, values = (fields["across"], fields["values"]) if "values" in fields else POINTS[fields["figure"]]
    for method, numbers in values.items():
        for place, number in zip(across, numbers, strict=True):
            yield dict(zip(keys, (method, *place), strict=True)) | {"bleu": number}


def _row(keys: tuple[str, ...], columns: tuple[Column, ...], toml_row: dict[str, Any]) -> Row:
    facts = {key: toml_row[key] for key in keys} if toml_row["method"] else {}
    published = {column.key: toml_row[column.key] for column in columns if toml_row.get(column.key, "") != ""}
    return Row(facts, published, toml_row.get("label", ""), toml_row.get("layers") or None)


TABLES = read_tables(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))
