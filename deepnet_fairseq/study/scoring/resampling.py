"""Scores of sacreBLEU's metrics with bootstrap samples, in memory that grows with the text alone.

sacreBLEU keeps the n-grams of all references, and draws all samples at once: some 90 kB a sentence. Here a part of the
text is counted after another, and one sample is drawn after another, by the same generator: the numbers are
sacreBLEU's to the bit.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric, Score

RESAMPLES = 1000
CHUNK = 1000  # sentences whose n-grams are in memory at a time


def sentence_statistics(metric: Metric, translations: list[str], references: list[str]) -> list[list]:
    """Return what the metric counts in each sentence, from which its score of any selection of sentences follows."""
    statistics: list[list] = []
    for start in range(0, len(translations), CHUNK):
        part = slice(start, start + CHUNK)
        statistics += metric._extract_corpus_statistics(translations[part], [references[part]])
    return statistics


def sample_scores(metric: Metric, statistics: list[list]) -> list[Score]:
    """Return the scores of bootstrap samples, drawn with sacreBLEU's seed (SACREBLEU_SEED).

    The number of samples and the seed are set in the metric, so that they stand in its signature.
    """
    metric.n_bootstrap = RESAMPLES
    metric.seed = os.environ.get("SACREBLEU_SEED", "12345").lower()
    seed = None if metric.seed == "none" else int(metric.seed)
    generator = np.random.default_rng(seed)

    table = np.array(statistics, dtype="float32")
    scores = []
    for _ in range(RESAMPLES):
        sentences = generator.choice(len(table), size=len(table), replace=True)
        scores.append(metric._compute_score_from_stats(table[sentences].sum(0)))
    return scores


def score_of_text(metric: Metric, translations: list[str], references: list[str]) -> Score:
    """Return the score of the text, as sacreBLEU's corpus_score does."""
    return metric._aggregate_and_compute(sentence_statistics(metric, translations, references))


def score_with_samples(metric: Metric, translations: list[str], references: list[str]) -> Any:
    """Return the metric's own Score of the text, with _mean and _ci of bootstrap samples, as corpus_score does."""
    statistics = sentence_statistics(metric, translations, references)
    result = metric._aggregate_and_compute(statistics)
    result.estimate_ci(sample_scores(metric, statistics))
    return result
