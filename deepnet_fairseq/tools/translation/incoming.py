"""Read lines as they come from a pipe, a terminal or a file, and tell whether another one has arrived already."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Iterator
from typing import IO

from ...data.lines import LONGEST, split_lines

BLOCK = 1 << 16  # bytes read at a time: what a pipe of Linux holds
MANY = 32  # lines without a pause between: more than a program writes that waits for their translations
PAUSE = 20  # milliseconds to wait for more lines after MANY without a pause


class Incoming:
    """Lines of an open file, a pipe or a terminal, read one by one; it can tell whether another has arrived already.

    A program that writes a line and waits for its translation must get it at once; one that writes much should be read
    in large chunks. `has_more` tells the two apart. The file is read by its descriptor with os.read, without Python's
    buffer, so nothing of it may have been read before.

    Raises an OSError for an object that has no descriptor.
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
        """Wait for the next line and return it with its \\n, if it has one; b"" at the end of the file.

        limit: in bytes: when so many of a line have come without its end, they are returned as a line, so that a text
        without line ends does not fill the memory.
        """
        while not self._lines and not self._ended:
            self._read(limit)
        return self._lines.popleft() if self._lines else b""

    def has_more(self, taken: int = 0) -> bool:
        """Return whether another line has come, and so can be read without waiting.

        taken: how many lines were read since the answer was last False. From MANY on this waits up to PAUSE for more.
        """
        pause = PAUSE if taken >= MANY else 0
        while not self._lines and not self._ended:
            if not self._poll.poll(pause):
                return False
            self._read(LONGEST + 1)
        return bool(self._lines)

    def _read(self, limit: int) -> None:
        """Wait for a block of bytes, and append its lines to those that were read; limit: as for `readline`."""
        self._poll.poll()  # waits; for a descriptor that does not block os.read would fail at once
        block = os.read(self._descriptor, BLOCK)
        *ends_of_lines, begun = block.split(b"\n")
        for end in ends_of_lines:
            self._begun.extend((end, b"\n"))
            self._end_line()

        if begun:  # a line without its end
            self._begun.append(begun)
            self._size += len(begun)
        if not block:  # the end of the file
            self._ended = True
        if self._begun and (self._ended or self._size >= limit):
            self._end_line()

    def _end_line(self) -> None:
        """Append the parts so far to the lines, as one line, and begin the next."""
        self._lines.append(b"".join(self._begun))
        self._begun = []
        self._size = 0


def chunks(file: IO[bytes], name: str, most: int) -> Iterator[list[str]]:
    """Yield the lines of an open file, without \\n, in lists of at most `most`; shorter ones if no more have come yet.

    name: of the file, for a UserError about one of its lines. An object without a descriptor, as io.BytesIO, has all of
    its lines from the beginning.
    """
    try:
        incoming: Incoming | None = Incoming(file)
    except OSError:
        incoming = None

    chunk: list[str] = []
    for line in split_lines(incoming or file, name):  # type: ignore[arg-type]  # it calls readline alone
        chunk.append(line)
        full = len(chunk) == most
        if full or (incoming and not incoming.has_more(len(chunk))):
            yield chunk
            chunk = []
    if chunk:
        yield chunk
