"""How far something long has come, on stderr: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time

from tqdm import tqdm


def amount(size: float) -> str:
    """Bytes, readable: 1.3 GB, 12.0 MB, 4 bytes."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:.0f} bytes"


def say(text: str) -> None:
    """A line on stderr, above the bars."""
    tqdm.write(text, file=sys.stderr)


def progress(what: str, total: int | None, start: int = 0):
    """A Bar or Lines; both have `at(bytes)`, which may also go back, and are context managers."""
    return (Bar if sys.stderr.isatty() else Lines)(what, total, start)


class Bar:
    """A bar of tqdm; takes positions in bytes."""

    def __init__(self, what: str, total: int | None, start: int = 0):
        self.bar = tqdm(total=total, initial=start, desc=what, unit="B", unit_scale=True, file=sys.stderr)

    def at(self, position: int, total: int | None = None) -> None:
        """Shows the position, and a total that was not known before."""
        self.bar.total = total or self.bar.total
        self.bar.update(position - self.bar.n)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bar.close()


class Lines:
    """One line per tenth or per 30 s, no two within a second, and one at the end."""

    SECONDS, TENTH, APART = 30.0, 0.1, 1.0

    def __init__(self, what: str, total: int | None, start: int = 0):
        self.what, self.total, self.position = what, total, start
        self.begun = self.told = time.monotonic()
        self.start = self.told_at = start

    def at(self, position: int, total: int | None = None) -> None:
        """The position in bytes, perhaps with a total that was not known before; prints if it is time."""
        self.total = total or self.total
        self.start = min(self.start, position)
        self.position = position
        quiet = time.monotonic() - self.told
        far = self.total and position - self.told_at >= self.TENTH * self.total
        if quiet >= self.SECONDS or (far and quiet >= self.APART):
            self.tell()

    def tell(self) -> None:
        """Prints position, share, bytes a second and seconds left."""
        self.told, self.told_at = time.monotonic(), self.position
        rate = (self.position - self.start) / max(self.told - self.begun, 1e-3)
        text = f"{self.what}: {amount(self.position)}"
        if self.total:
            text += f" of {amount(self.total)} ({self.position / self.total:.0%})"
        text += f", {amount(rate)}/s"
        if self.total and 0 < self.position < self.total and rate:
            text += f", {(self.total - self.position) / rate:.0f} s left"
        say(text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.position != self.told_at:
            self.tell()
