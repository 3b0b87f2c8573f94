"""Read and write probes.jsonl, the file of a run's probes: JSON lines, a header and then a row for each probed update.

A row is {"update": number, probe: {address: value}, ...}, with addresses as "decoder.18" or "encoder.1.self_attn".
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.probes.base import Values
from ..errors import UserError
from ..files import WRONG_VALUES, parse_json_object, whole

FILE = "probes.jsonl"  # beside the run's checkpoints
FORMAT = 1


@dataclass
class Record:
    """Content of a run's probes.jsonl.

    header: method, layers, width, probes and interval of the run by name; rows: {update: {probe: {address: value}}}.
    `update` is the number of updates made before: row 0 is of the model as it was built.
    """

    header: dict
    rows: dict[int, dict[str, Values]]

    def updates(self) -> list[int]:
        """Return the probed updates in order."""
        return sorted(self.rows)

    def series(self, probe: str, address: str) -> tuple[list[int], list[float]]:
        """Return the updates at which `probe` has a value for `address`, and these values."""
        updates = []
        series = []
        for update in self.updates():
            values = self.rows[update].get(probe, {})
            if address in values:
                updates.append(update)
                series.append(values[address])
        return updates, series


class Writer:
    """Append rows to the file `path` of a run, after a header.

    header: as in Record; fresh: begin the file anew, as a training does that is not resumed. A resumed training appends
    a header and its rows to the file; of two rows for an update, readers take the later one. Raises OSError if the file
    cannot be written.
    """

    def __init__(self, path: Path, header: dict, fresh: bool):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

        kept = b""
        if path.exists() and not fresh:
            kept = path.read_bytes()
            kept = kept[: kept.rfind(b"\n") + 1]  # drop a line that a killed run left unfinished
        line = json.dumps({"format": FORMAT} | header).encode() + b"\n"
        with whole(path) as part:
            part.write_bytes(kept + line)

    def append_row(self, update: int, values: dict[str, Values]) -> None:
        """Append the row of an update, with five significant digits; a value that is not finite becomes null.

        values: {probe: {address: value}}.
        """
        content: dict[str, Any] = {"update": update}
        for probe, numbers in values.items():
            content[probe] = {address: _rounded(value) for address, value in numbers.items()}
        with open(self.path, "a") as file:
            file.write(json.dumps(content, separators=(",", ":")) + "\n")


def _rounded(value: float) -> float | None:
    """Round to five significant digits; return None for a value that is not finite."""
    rounded = float(f"{value:.5g}")
    return rounded if math.isfinite(rounded) else None


def read_rows(path: Path) -> list[dict]:
    """Return the rows of a file, headers included, with {} for a broken line; raise a UserError if it is missing.

    What follows the last line's end is left out: a row that a killed training had begun to write, or nothing.
    """
    if not path.is_file():
        raise UserError(path, "no such file; train with --deepnet-probe to get one")
    text = path.read_text(encoding="utf-8", errors="replace")
    return [parse_json_object(line) for line in text.split("\n")[:-1]]


def record_of(lines: list[dict], where: object) -> Record:
    """Make a Record of the rows that read_rows returns; of two for one update the later counts, and null becomes NaN.

    lines: the rows and headers; where: where they come from, for messages. Raises a UserError for broken rows, and for
    a header of another format or none. Of several headers the last one counts.
    """
    header: dict = {}
    rows: dict[int, dict[str, Values]] = {}
    try:
        for row in lines:
            if "format" in row:  # a header: each start and resume of the training has written one
                header = dict(row)
                continue
            probed = {probe: _with_nan(values) for probe, values in row.items() if probe != "update"}
            rows[int(row["update"])] = probed
    except WRONG_VALUES as error:
        raise UserError(where, f"is no record of probes, or broken ({error}); delete it") from error
    if header.get("format") != FORMAT:
        raise UserError(where, f"is of format {header.get('format')}, this package reads {FORMAT}")
    return Record(header, rows)


def read_record(path: Path) -> Record:
    """Read a run's probes.jsonl; raise a UserError, naming the file, if it is missing or broken."""
    return record_of(read_rows(path), path)


def _with_nan(values: dict) -> Values:
    """Return {address: value} with every value as a float, None as NaN."""
    return {address: math.nan if value is None else float(value) for address, value in values.items()}
