"""What a user can do nothing about is not printed; what looks like it is."""

from __future__ import annotations

import logging
import warnings

import numpy
import pytest
import torch
from fairseq.data.token_block_dataset import TokenBlockDataset

from deepnet_fairseq import compat

PAD, EOS = 1, 2


@pytest.fixture
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_an_empty_line_of_a_language_models_text(warnings_are_errors):
    lines = [torch.tensor([5, 6, EOS]), torch.tensor([EOS]), torch.tensor([7, EOS])]
    blocks = TokenBlockDataset(lines, [3, 1, 2], 4, PAD, EOS, break_mode="eos", include_targets=True)
    with pytest.raises(RuntimeWarning, match="overflow"):
        blocks[1]
    compat.silence()
    source, target, _ = blocks[1]
    assert (source.tolist(), target.tolist()) == ([EOS], [EOS])
    with pytest.raises(RuntimeWarning, match="overflow"):  # anybody else's
        numpy.uint8(1) - numpy.uint8(2)


@pytest.mark.parametrize("name", compat.LOGGED)
def test_matplotlib_on_its_caches(name, caplog):
    compat.silence()
    compat.silence()
    for text in (*compat.LOGGED[name], "findfont: Font family 'Arial' not found."):
        logging.getLogger(name).warning("%s", text)
    assert [record.getMessage()[:8] for record in caplog.records] == ["findfont"]
