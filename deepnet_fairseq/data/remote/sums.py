"""SHA256SUMS: lines `HEX  NAME`, as sha256sum writes and checks them."""

from __future__ import annotations

import re
from pathlib import Path

from ...atomic_output import whole
from ...errors import UserError

NAME = "SHA256SUMS"


def parse_sums(text: str, where: str) -> dict[str, str]:
    """Name -> HEX. UserError naming `where` and the line that is none."""
    sums = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not (match := re.fullmatch(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)", line)):
            raise UserError(f"{where}, line {number}: is not `SHA256  NAME`; write the file anew with sha256sum")
        sums[match[2]] = match[1].lower()
    return sums


def recorded_sums(folder: Path) -> dict[str, str]:
    """What FOLDER/SHA256SUMS holds: the files for which no one published a checksum, as they first came."""
    path = folder / NAME
    return parse_sums(path.read_text(), str(path)) if path.exists() else {}


def record_sum(folder: Path, name: str, sha256: str) -> None:
    """Adds a file to FOLDER/SHA256SUMS, or replaces its sum; the lines are sorted by name."""
    sums = recorded_sums(folder) | {name: sha256}
    with whole(folder / NAME) as part:
        part.write_text("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)))
