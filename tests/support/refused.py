"""What `deepnet` says of a mistake."""

from __future__ import annotations

import pytest

from deepnet_fairseq.cli import main


def assert_refused(said: str, *words: str) -> None:
    """`deepnet WORDS` ends in one line, in which `said` stands."""
    with pytest.raises(SystemExit) as ended:
        main([*words])
    message = str(ended.value)
    assert message.startswith("deepnet: error: ") and said in message and "\n" not in message, message
