"""Read lines as they come from a pipe, a terminal or a file, and tell whether another one has arrived already."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Iterator
from typing import IO

from ...data.lines import LONGEST, split_lines

BLOCK = 1 << 16  # bytes read at a time: what a pipe of Linux holds
MANY = 32  # lines that came without a pause: more than a program writes that waits for answers
PAUSE = 20  # milliseconds to wait for more after so many lines


class Incoming:
    """Lines of an open file, which may be a pipe or a terminal, for a reader that does not wait for more than it needs.

    A program that writes a line and waits for its translation must get it at once; one that writes much should be read
    in large chunks. `has_more` tells the two apart. The file is read by its descriptor, past Python's buffer, so
    nothing of it may have been read before.
    """

    def __init__(self, file: IO[bytes]):
        self._descriptor = file.fileno()
        self._lines: deque[bytes] = deque()  # complete lines that were read but not returned
        self._begun: list[bytes] = []  # the parts so far of a line whose end has not come
        self._size = 0  # bytes of these parts
        self._ended = False
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def readline(self, limit: int = LONGEST + 1) -> bytes:
        """Wait for the next line and return it with its \\n, b"" at the end of the file.

        limit: bytes after which a line is returned although its end has not come.
        """
        while not self._lines and not self._ended:
            self._read(limit)
        return self._lines.popleft() if self._lines else b""

    def has_more(self, taken: int = 0) -> bool:
        """Return whether a line can be read without waiting, but for PAUSE.

        taken: how many lines were read since the answer was last False.
        """
        pause = PAUSE if taken >= MANY else 0
        while not self._lines and not self._ended:
            if not self._poll.poll(pause):
                return False
            self._read(LONGEST + 1)
        return bool(self._lines)

    def _read(self, limit: int) -> None:
        """Wait for a block of bytes and split it into lines; limit: as for `readline`."""
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
        """Make a line of the parts so far."""
        self._lines.append(b"".join(self._begun))
        self._begun = []
        self._size = 0


def chunks(file: IO[bytes], name: str, most: int) -> Iterator[list[str]]:
    """Yield the lines of an open file in lists of at most `most` lines, shorter ones when no more have arrived yet.

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
