"""The line with which `deepnet` refuses a user's mistake, for tests of a fact in it; errors.py checks its subject."""

from __future__ import annotations

import pytest

from deepnet_fairseq.cli import main


def refusal(*words: object) -> str:
    """Return the line with which `deepnet WORDS`, run in this process, exits."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    line = str(ended.value)
    assert line.startswith("deepnet: error: "), line
    assert "\n" not in line, line
    return line
