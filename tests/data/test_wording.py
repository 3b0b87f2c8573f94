"""Tests of the words of messages that count things, and of the flags that they suggest."""

from __future__ import annotations

import pytest

from deepnet_fairseq.wording import counted, did_you_mean


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1234, "1,234 files")], ids=str
)
def test_a_noun_is_in_the_plural_unless_there_is_one_thing(number, text):
    assert counted(number, "file") == text


def test_an_irregular_plural_is_given():
    assert counted(1, "batch", "batches") == "1 batch"
    assert counted(3, "batch", "batches") == "3 batches"


@pytest.mark.parametrize("words", [["--bean", "5"], ["--bean=5"], ["-beam", "5"], ["text", "--Beam"]], ids=" ".join)
def test_the_flag_that_a_misspelt_one_resembles_is_suggested(words):
    assert "--beam" in did_you_mean(words, ["--lenpen", "--beam", "--beam-size"]).rstrip("? ").split()


@pytest.mark.parametrize("words", [["--nonsense"], ["--epochs", "3"], ["text"], ["-1"], []], ids=" ".join)
def test_no_flag_is_suggested_for_words_that_resemble_none(words):
    """The hyphens in front, which all flags have, make none similar: --epochs is not --eos."""
    assert did_you_mean(words, ["--lenpen", "--beam", "--eos", "-s"]) == ""


def test_each_misspelt_flag_has_its_suggestion():
    suggested = did_you_mean(["--bean", "5", "--lenpem"], ["--lenpen", "--beam"])

    assert "--beam" in suggested
    assert "--lenpen" in suggested
