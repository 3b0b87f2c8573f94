"""Someone who pastes a page's blocks into a shell, one after the other."""

from __future__ import annotations

from pathlib import Path

from .page import Block, commands
from .shell import Done, Shell, reader_environment

LIMIT = 600  # seconds of a command


class Reader:
    """Works in a folder; took holds the seconds of each block that ran, by its number."""

    def __init__(self, page: list[Block], root: Path, **environment: str):
        self.shell = Shell(root, reader_environment(OMP_NUM_THREADS="1", **environment))
        self.todo, self.took, self.trouble = list(page), {}, {}

    def read_to(self, wanted: Block) -> str:
        """Runs what stands before the block, too, if nothing did; what went wrong in the block, or ""."""
        while wanted.number not in self.trouble:
            block = self.todo.pop(0)
            done = [] if block.not_run else [self.shell.run(command, LIMIT) for command in commands(block.text)]
            self.took[block.number] = sum(each.seconds for each in done)
            self.trouble[block.number] = "\n".join(_told(each) for each in done if each.status != 0)
        return self.trouble[wanted.number]


def _told(failed: Done) -> str:
    status = f"stopped after {LIMIT} s" if failed.status is None else f"status {failed.status}"
    return f"$ {failed.command}\n{status}\n{failed.output[-3000:]}"
