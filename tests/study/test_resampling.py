"""Tests that scores in parts are sacreBLEU's to the bit, in memory that grows with the text alone."""

import tracemalloc

import pytest
from sacrebleu.metrics import BLEU, TER

from deepnet_fairseq.study.scoring import resampling
from deepnet_fairseq.study.scoring.resampling import score_of_text, score_with_samples
from deepnet_fairseq.study.scoring.scores import ChrF

from ..support.translated import random_sentences, with_wrong_words

TEXT = random_sentences(50)
WRONG = with_wrong_words(TEXT, 0.3)
METRICS = pytest.mark.parametrize("metric", [BLEU, ChrF, TER])
BYTES_A_SENTENCE = 4000  # sacreBLEU takes 40,000 for its samples alone


@pytest.fixture
def parts_of_seven_sentences(monkeypatch):
    monkeypatch.setattr(resampling, "CHUNK", 7)


@METRICS
def test_scores_and_samples_in_parts_are_sacrebleus(metric, parts_of_seven_sentences):
    ours = metric()
    theirs = metric()

    score = score_with_samples(ours, WRONG, TEXT)

    peer = theirs.corpus_score(WRONG, [TEXT], n_bootstrap=1000)
    assert score.score == peer.score
    assert score._mean == peer._mean
    assert score._ci == peer._ci
    assert str(ours.get_signature()) == str(theirs.get_signature())


@METRICS
def test_scores_in_parts_without_samples_are_sacrebleus(metric, parts_of_seven_sentences):
    score = score_of_text(metric(), WRONG, TEXT)

    assert score.score == metric().corpus_score(WRONG, [TEXT]).score


def peak_memory(sentences: int) -> int:
    """Return the most bytes in use while so many sentences are scored."""
    text = random_sentences(sentences)
    wrong = with_wrong_words(text, 0.3)
    tracemalloc.start()
    score_with_samples(BLEU(), wrong, text)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_each_further_sentence_takes_little_memory(monkeypatch):
    monkeypatch.setattr(resampling, "CHUNK", 100)

    of_400 = peak_memory(400)
    of_1000 = peak_memory(1000)

    assert of_1000 - of_400 < 600 * BYTES_A_SENTENCE
