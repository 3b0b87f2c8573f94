"""Reads the commands out of a page: its blocks of bash, and each block's commands."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

PAGES = ("README.md", "docs/adding_a_method.md", "docs/reproducing.md")  # those there are, in this order

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<language>[\w-]*)")
HEADING = re.compile(r"^#+ +(.+?) *$")
NOT_RUN = re.compile(r"^ *<!-- not run: *(.*?) *-->$")


@dataclass(frozen=True)
class Block:
    """A fenced block: number counts the blocks of bash of its page from 1, line is that of its first command."""

    page: str
    number: int
    heading: str
    line: int
    language: str
    text: str
    not_run: str | None  # the reason

    @property
    def name(self) -> str:
        """README.md-3-train-on-your-own-text"""
        slug = re.sub(r"[^a-z0-9]+", "-", self.heading.lower()).strip("-")
        return f"{Path(self.page).name}-{self.number}-{slug}"


def fenced(text: str, page: str) -> list[Block]:
    """All fenced blocks of a page's text. Raises ValueError for a fence that nothing closes."""
    found, heading, before, opened, number, body = [], "", "", None, 0, []
    for line_number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None and fence:
            opened, start, body = fence, line_number + 1, []
        elif opened is not None and line.strip() == opened["ticks"]:
            number += opened["language"] == "bash"
            reason = NOT_RUN.match(before)
            lines = [inner.removeprefix(opened["indent"]) + "\n" for inner in body]
            found.append(Block(page, number, heading, start, opened["language"], "".join(lines), reason and reason[1]))
            opened, before = None, ""
        elif opened is not None:
            body.append(line)
        elif line.strip():
            title = HEADING.match(line)
            heading, before = title[1] if title else heading, line
    if opened is not None:
        raise ValueError(f"{page}: the block of line {start} is not closed")
    return found


def blocks(root: Path, page: str) -> list[Block]:
    """The blocks of bash of a page."""
    return [block for block in fenced((root / page).read_text(), page) if block.language == "bash"]


def all_blocks(root: Path) -> list[Block]:
    """Those of every page that is there."""
    return [block for page in PAGES if (root / page).exists() for block in blocks(root, page)]


def commands(text: str) -> list[str]:
    """The commands of a block as they are printed; one may have several lines. Bash itself says where each ends.

    Raises ValueError where the block ends within a command.
    """
    found, pending = [], []
    for line in text.splitlines():
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        pending.append(line)
        if not line.endswith("\\") and _is_whole("\n".join(pending)):
            found.append("\n".join(pending))
            pending = []
    if pending:
        raise ValueError(f"bash finds no end of this command: {pending[0]}")
    return found


def _is_whole(command: str) -> bool:
    done = subprocess.run(["bash", "-n"], input=command + "\n", capture_output=True, text=True)
    return (done.returncode, done.stderr) == (0, "")
