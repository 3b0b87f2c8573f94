"""Read lines as they come: from a pipe, a terminal or a file, and say whether there is another one already."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Iterator
from typing import IO

from ...data.lines import LONGEST, split_lines

BLOCK = 1 << 16  # bytes read at a time: what a pipe holds
MANY = 32  # lines that came at once: more than anyone writes in a dialogue
PAUSE = 20  # milliseconds to wait for more of such a text


class Incoming:
    """Lines of an open file, which may be a pipe or a terminal.

    A program that writes a line and waits for the answer gets it at once, and one that writes much is read in chunks.
    The file is read by its descriptor, so nothing of it may have been read before.
    """

    def __init__(self, file: IO[bytes]):
        self._descriptor = file.fileno()
        self._lines: deque[bytes] = deque()  # whole ones, and the last one at the end of the file
        self._begun: list[bytes] = []  # blocks of a line whose end has not come
        self._size = 0  # bytes of these blocks
        self._ended = False
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def readline(self, limit: int = LONGEST + 1) -> bytes:
        """Wait for the next line and return it with its \\n, b"" at the end of the file.

        limit: bytes; a longer line is returned in parts.
        """
        while not self._lines and not self._ended:
            self._read(limit)
        return self._lines.popleft() if self._lines else b""

    def has_more(self, taken: int = 0) -> bool:
        """Return whether a line is there already; taken: lines read since the answer was last False."""
        pause = PAUSE if taken >= MANY else 0
        while not self._lines and not self._ended:
            if not self._poll.poll(pause):
                return False
            self._read(LONGEST + 1)
        return bool(self._lines)

    def _read(self, limit: int) -> None:
        """Wait for a block and take it in; limit: as for `readline`."""
        self._poll.poll()  # os.read fails at once for a descriptor that does not block
        block = os.read(self._descriptor, BLOCK)
        *ended, rest = block.split(b"\n")
        for line in ended:
            self._begun.extend((line, b"\n"))
            self._end_line()

        if rest:
            self._begun.append(rest)
            self._size += len(rest)
        if not block:
            self._ended = True
        if self._begun and (self._ended or self._size >= limit):
            self._end_line()

    def _end_line(self) -> None:
        self._lines.append(b"".join(self._begun))
        self._begun = []
        self._size = 0


def chunks(file: IO[bytes], name: str, most: int) -> Iterator[list[str]]:
    """Yield the lines of an open file in chunks of at most `most` lines, fewer when no more are there yet.

    name: of the file, for a UserError about one of its lines.
    """
    try:
        incoming: Incoming | None = Incoming(file)
    except OSError:  # an object of Python's that has no descriptor
        incoming = None

    taken: list[str] = []
    for line in split_lines(incoming or file, name):  # type: ignore[arg-type]  # it calls readline alone
        taken.append(line)
        full = len(taken) == most
        if full or (incoming and not incoming.has_more(len(taken))):
            yield taken
            taken = []
    if taken:
        yield taken
