"""Text as a stream of lines, which no memory must hold; only \\n ends one, as for every other tool of the trade."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path

from ..atomic_output import whole
from ..errors import UserError


def read_lines(path: Path) -> Iterator[str]:
    """The lines as they are, without their \\n and a byte order mark; UserError for a missing file or bad UTF-8."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n")
            except UnicodeDecodeError:
                raise UserError(f"{path}, line {number}: not UTF-8; convert it, say with iconv -t UTF-8") from None


def read_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Lines of two files beside each other; UserError if one has more of them."""
    for pair in zip_longest(read_lines(source), read_lines(target)):
        if None in pair:
            lengths = [sum(1 for _ in read_lines(path)) for path in (source, target)]
            raise UserError(
                f"{source} has {lengths[0]:,} lines, {target} has {lengths[1]:,}: each line must translate its twin"
            )
        yield pair


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Writes `path` whole, and its folder if there is none; the number of lines."""
    return write_columns([path], ((line,) for line in lines))


def write_columns(paths: list[Path], rows: Iterable[tuple[str, ...]]) -> int:
    """Column i of every row to paths[i], each whole; the number of rows."""
    count = 0
    with ExitStack() as stack:
        files = []
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = stack.enter_context(whole(path))
            files.append(stack.enter_context(open(part, "w", encoding="utf-8", newline="\n")))
        for row in rows:
            count += 1
            for file, line in zip(files, row, strict=True):
                file.write(f"{line}\n")
    return count
