"""Tests of the generated text that miniatures of corpora are made of."""

from __future__ import annotations

from itertools import islice

from deepnet_fairseq.data.miniature.text import EVERY, TALK, translations

ENGLISH = 1  # place in a pair of texts, German and English


def test_one_sentence_in_every_twelve_is_in_a_frame_and_frames_take_turns():
    pairs = islice(translations("a", ("de", "en"), TALK), EVERY * len(TALK))
    english = [pair[ENGLISH] for pair in pairs]

    framed = english[EVERY - 1 :: EVERY]  # sentences 12, 24, and so on
    found = []
    for sentence in framed:
        found.append([frame for frame in TALK if is_in(sentence, frame)])

    assert all(len(frames) == 1 for frames in found)
    assert {frames[0] for frames in found} == set(TALK)


def test_other_sentences_are_in_no_frame():
    pairs = islice(translations("a", ("de", "en"), TALK), EVERY - 1)

    for _german, english in pairs:
        assert not any(is_in(english, frame) for frame in TALK)


def is_in(sentence: str, frame: str) -> bool:
    """Return whether a sentence begins and ends as the frame does; frame: for example "[{}]"."""
    beginning, end = frame.split("{}")
    return sentence.startswith(beginning) and sentence.endswith(end)
