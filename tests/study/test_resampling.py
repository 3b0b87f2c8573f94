"""Tests that scores in parts are sacreBLEU's to the bit, in memory that grows with the text alone.

The text is counted in parts of so many sentences, and bootstrap samples are drawn one after the other.
"""

import tracemalloc

import pytest
from sacrebleu.metrics import BLEU, TER

from deepnet_fairseq.study.scoring import resampling
from deepnet_fairseq.study.scoring.resampling import score_of_text, score_with_samples
from deepnet_fairseq.study.scoring.scores import ChrF

from ..support.translated import random_sentences, with_wrong_words

REFERENCES = random_sentences(50)
TRANSLATIONS = with_wrong_words(REFERENCES, rate=0.3)
each_metric = pytest.mark.parametrize("metric", [BLEU, ChrF, TER])
BYTES_A_SENTENCE = 4000  # sacreBLEU takes 40,000 for its samples alone


@pytest.fixture
def parts_of_seven_sentences(monkeypatch):
    monkeypatch.setattr(resampling, "CHUNK", 7)


@each_metric
def test_scores_and_samples_in_parts_are_sacrebleus(metric, parts_of_seven_sentences):
    ours = metric()
    theirs = metric()

    score = score_with_samples(ours, TRANSLATIONS, REFERENCES)

    # _mean and _ci, of the samples, have no public names in sacreBLEU
    peer = theirs.corpus_score(TRANSLATIONS, [REFERENCES], n_bootstrap=1000)
    assert score.score == peer.score
    assert score._mean == peer._mean
    assert score._ci == peer._ci
    assert str(ours.get_signature()) == str(theirs.get_signature())


@each_metric
def test_scores_in_parts_without_samples_are_sacrebleus(metric, parts_of_seven_sentences):
    score = score_of_text(metric(), TRANSLATIONS, REFERENCES)

    assert score.score == metric().corpus_score(TRANSLATIONS, [REFERENCES]).score


def peak_memory(sentences: int) -> int:
    """Return the most bytes in use while so many sentences are scored."""
    references = random_sentences(sentences)
    translations = with_wrong_words(references, rate=0.3)

    tracemalloc.start()
    score_with_samples(BLEU(), translations, references)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_each_further_sentence_takes_little_memory(monkeypatch):
    monkeypatch.setattr(resampling, "CHUNK", 100)  # sentences counted at a time

    of_400 = peak_memory(400)
    of_1000 = peak_memory(1000)

    further_sentences = 1000 - 400
    assert of_1000 - of_400 < further_sentences * BYTES_A_SENTENCE
