"""Named pipes, which give their content once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def fill_pipe(path: Path, content: bytes) -> threading.Thread:
    """Make a named pipe; return the thread that writes its content as soon as somebody opens it to read."""
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(content,), daemon=True)
    writer.start()
    return writer


@contextmanager
def filled_pipes() -> Iterator[Callable[[Path, bytes], Path]]:
    """Provide a function that makes a named pipe with content and returns its path.

    Check at the end of the block that all these pipes have been read to their ends.
    """
    writers = []

    def make_pipe(path: Path, content: bytes) -> Path:
        writers.append(fill_pipe(path, content))
        return path

    yield make_pipe

    for writer in writers:
        writer.join(timeout=60)
        assert not writer.is_alive()
