"""The README's commands, extracted from it and run as printed in a clone of their own; so the page cannot rot.

A block stands behind those before it: what they leave (data, checkpoints, the environment that is active) is there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .readme.clone import make_clone
from .readme.page import all_blocks, blocks
from .readme.reader import Reader

pytestmark = pytest.mark.smoke
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """Page -> its reader."""
    return {}


@pytest.mark.parametrize("block", all_blocks(ROOT), ids=lambda block: block.name)
def test_block_runs_as_printed(block, readers, tmp_path_factory):
    if block.not_run:
        pytest.skip(block.not_run)
    if block.page not in readers:
        root = make_clone(tmp_path_factory.mktemp("a reader") / "deepnet fairseq")
        readers[block.page] = Reader(blocks(root, block.page), root)
    trouble = readers[block.page].read_to(block)
    assert not trouble, f"{block.page}:{block.line}\n{trouble}"
