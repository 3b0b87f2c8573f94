"""The README's commands, extracted from it and run as printed in a clone of their own; so the page cannot rot.

A block stands behind those before it: what they leave (data, checkpoints, the environment that is active) is there.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from .readme.clone import make_clone
from .readme.page import all_blocks, blocks
from .readme.reader import Reader
from .readme.warm import server
from .support.helpers import ROOT

pytestmark = pytest.mark.smoke


@pytest.fixture(scope="module")
def reader_of(tmp_path_factory):
    """Page -> its reader, in a clone of its own."""
    readers = {}
    with ExitStack() as servers:

        def reader_of(page: str) -> Reader:
            if page not in readers:
                root = make_clone(tmp_path_factory.mktemp("a reader") / "deepnet fairseq")
                warm = servers.enter_context(server(root / ".venv/bin/python3"))
                readers[page] = Reader(blocks(root, page), root, **warm)
            return readers[page]

        yield reader_of


@pytest.mark.parametrize("block", all_blocks(ROOT), ids=lambda block: block.name)
def test_block_runs_as_printed(block, reader_of, record_property):
    if block.not_run:
        pytest.skip(block.not_run)
    reader = reader_of(block.page)
    trouble = reader.read_to(block)
    record_property("seconds", round(reader.took[block.number], 1))
    assert not trouble, f"{block.page}:{block.line}\n{trouble}"
