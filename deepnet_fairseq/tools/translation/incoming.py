"""Read lines as they come: from a pipe, a terminal or a file, and say whether there is another one already."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Iterator
from typing import IO

from ...data.lines import LONGEST, split_lines

BLOCK = 1 << 16  # bytes read at a time: what a pipe holds
MANY = 32  # lines that came at once and are the text of no dialogue
PAUSE = 20  # milliseconds that such text may pause


class Incoming:
    """Lines of an open file, which may be a pipe or a terminal.

    A program that writes a line and waits for the answer gets it at once, and one that writes much is read in chunks.
    The file is read by its descriptor, so nothing of it may have been read before.
    """

    def __init__(self, file: IO[bytes]):
        self._descriptor = file.fileno()
        self._lines: deque[bytes] = deque()  # whole ones, and the last one at the end of the file
        self._begun: list[bytes] = []  # blocks of a line whose end has not come
        self._size = 0  # of these
        self._ended = False
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def readline(self, limit: int = LONGEST + 1) -> bytes:
        """Return the next line with its \\n, b"" at the end; wait for it. limit: bytes, above which one is cut."""
        while not self._lines and not self._ended:
            self._read(limit)
        return self._lines.popleft() if self._lines else b""

    def has_more(self, taken: int = 0) -> bool:
        """Return whether a line is there without waiting; taken: lines read since it was last false."""
        pause = PAUSE if taken >= MANY else 0
        while not self._lines and not self._ended:
            if not self._poll.poll(pause):
                return False
            self._read(LONGEST + 1)
        return bool(self._lines)

    def _read(self, limit: int) -> None:
        """Take in a block, and wait for it."""
        self._poll.poll()  # os.read fails at once for a descriptor that does not block
        block = os.read(self._descriptor, BLOCK)
        *whole, rest = block.split(b"\n")
        for line in whole:
            self._lines.append(b"".join((*self._begun, line, b"\n")))
            self._begun, self._size = [], 0
        if rest:
            self._begun.append(rest)
            self._size += len(rest)
        if not block:
            self._ended = True
        if self._begun and (self._ended or self._size >= limit):
            self._lines.append(b"".join(self._begun))
            self._begun, self._size = [], 0


def chunks(file: IO[bytes], name: str, most: int) -> Iterator[list[str]]:
    """Yield the lines of an open file in chunks: `most` of them, and fewer when no more are there yet.

    name: of the file, for a UserError about one of its lines.
    """
    try:
        incoming: Incoming | None = Incoming(file)
    except OSError:  # an object of Python's that has no descriptor
        incoming = None

    taken: list[str] = []
    for line in split_lines(incoming or file, name):  # type: ignore[arg-type]  # it calls readline alone
        taken.append(line)
        if len(taken) == most or (incoming and not incoming.has_more(len(taken))):
            yield taken
            taken = []
    if taken:
        yield taken
