"""Tests of the words of messages that count things."""

from __future__ import annotations

import pytest

from deepnet_fairseq.wording import counted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1234, "1,234 files")], ids=str
)
def test_a_noun_is_in_the_plural_unless_there_is_one_thing(number, text):
    assert counted(number, "file") == text


def test_an_irregular_plural_is_given():
    assert counted(1, "batch", "batches") == "1 batch"
    assert counted(3, "batch", "batches") == "3 batches"
