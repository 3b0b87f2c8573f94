"""Tests that scores in parts are sacreBLEU's to the bit, in memory that grows with the text alone."""

import tracemalloc

import pytest
from sacrebleu.metrics import BLEU, TER

from deepnet_fairseq.study.scoring import resampling
from deepnet_fairseq.study.scoring.resampling import score_of_text, score_with_samples
from deepnet_fairseq.study.scoring.scores import ChrF

from ..support.translated import noisy, sentences

TEXT = sentences(50)
WRONG = noisy(TEXT, 0.3)


@pytest.mark.parametrize("metric", [BLEU, ChrF, TER])
def test_parts_give_sacrebleus_numbers(metric, monkeypatch):
    monkeypatch.setattr(resampling, "CHUNK", 7)
    ours, theirs = metric(), metric()
    score, peer = score_with_samples(ours, WRONG, TEXT), theirs.corpus_score(WRONG, [TEXT], n_bootstrap=1000)
    assert (score.score, score._mean, score._ci) == (peer.score, peer._mean, peer._ci)
    assert str(ours.get_signature()) == str(theirs.get_signature())
    assert score_of_text(metric(), WRONG, TEXT).score == peer.score


def peak(count: int) -> int:
    """Return the most bytes in use while so many sentences are scored."""
    text = sentences(count)
    wrong = noisy(text, 0.3)
    tracemalloc.start()
    score_with_samples(BLEU(), wrong, text)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return used


def test_a_sentence_takes_little_memory(monkeypatch):
    """Each further sentence takes less than 4 kB; sacreBLEU takes 40 for its samples alone."""
    monkeypatch.setattr(resampling, "CHUNK", 100)
    assert peak(1000) - peak(400) < 600 * 4000
