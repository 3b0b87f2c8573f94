"""The README's commands, extracted from it and run as printed in a clone of their own; so the page cannot rot.

A block stands behind those before it: what they leave (data, checkpoints, the environment that is active) is there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .readme.clone import make_clone
from .readme.page import Block, all_blocks, blocks, commands
from .readme.shell import Shell, reader_environment

pytestmark = pytest.mark.smoke
ROOT = Path(__file__).resolve().parent.parent
LIMIT = 300  # seconds of a command


class Reader:
    """Someone who pastes a page's blocks into a shell, one after the other."""

    def __init__(self, page: str, root: Path):
        self.shell = Shell(make_clone(root), reader_environment(OMP_NUM_THREADS="1"))
        self.todo, self.trouble = blocks(root, page), {}

    def read_to(self, wanted: Block) -> str:
        """Runs what comes before the block, too, if nothing did; what went wrong in it, or ""."""
        while wanted.number not in self.trouble:
            block = self.todo.pop(0)
            self.trouble[block.number] = "" if block.not_run else self.paste(block)
        return self.trouble[wanted.number]

    def paste(self, block: Block) -> str:
        done = [self.shell.run(command, LIMIT) for command in commands(block.text)]
        failed = [each for each in done if each.status != 0]
        return "\n".join(f"$ {one.command}\nstatus {one.status}\n{one.output[-3000:]}" for one in failed)


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """Page -> its reader."""
    return {}


@pytest.mark.parametrize("block", all_blocks(ROOT), ids=lambda block: block.name)
def test_block_runs_as_printed(block, readers, tmp_path_factory):
    if block.not_run:
        pytest.skip(block.not_run)
    if block.page not in readers:
        readers[block.page] = Reader(block.page, tmp_path_factory.mktemp("a reader") / "deepnet fairseq")
    trouble = readers[block.page].read_to(block)
    assert not trouble, f"{block.page}:{block.line}\n{trouble}"
