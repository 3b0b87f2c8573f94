"""The records of the list's parts, one line of JSON each: what ran, how it ended, and what it measured.

A record is one try of a part, an entry of the list. Its "part" is the name, its "ended" one of DONE, CUT and FAILED,
and its "rows" are what the part measured: dictionaries, each with a "what" that names the measurement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.files import whole

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "results" / "gpu" / "records.jsonl"
DONE = "done"  # a part that ran to its end, whatever it found
CUT = "cut off"  # one that had no time left; it begins again another time
FAILED = "failed"  # one whose process ended with an error


def read(path: Path) -> list[dict]:
    """Return the records of a file in its order, none if there is no file; UserError for a line that is no JSON object.

    A part's rows have a file of the same form.
    """
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise UserError(f"{path}, line {number}: is no JSON object; remove it, or take the file of another commit")
        records.append(record)
    return records


def append(path: Path, record: dict) -> None:
    """Add a record at the end of a file, which is made with its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{json.dumps(record)}\n")


def collect(source: Path, target: Path) -> int:
    """Add the records of the file `source` that `target` lacks to `target`, in their order; return how many they are.

    UserError if `source` is missing, or a line of either file is no record.
    """
    if not source.exists():
        raise UserError(f"{source}: no such file; give the records.jsonl in the --out DIR of the other machine")
    known = read(target)
    new = [record for record in read(source) if record not in known]
    with whole(target) as new_file:
        new_file.write_text("".join(f"{json.dumps(record)}\n" for record in [*known, *new]), encoding="utf-8")
    return len(new)


def of_part(records: Iterable[dict], name: str) -> list[dict]:
    """Return the records of the part with a name, in their order, the oldest first.

    Some records were made before there was a list of parts; those without a "part" belong to none.
    """
    return [record for record in records if record.get("part") == name]


def is_done(records: Iterable[dict], name: str) -> bool:
    """Return whether some try of the part with a name ran to its end, on whatever machine."""
    return any(record["ended"] == DONE for record in of_part(records, name))


def rows(records: Iterable[dict], name: str, what: str) -> list[dict]:
    """Return the rows of the part with a name whose "what" is `what`, of all its records, the oldest first.

    Records of measurements from before there was a list of parts have no "rows".
    """
    found = []
    for record in of_part(records, name):
        found += [row for row in record.get("rows", []) if row.get("what") == what]
    return found
