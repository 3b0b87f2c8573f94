"""Scores of sacreBLEU's metrics with bootstrap samples, in less memory than sacreBLEU takes.

sacreBLEU keeps the n-grams of all references, and draws all samples at once: some 90 kB a sentence. Here the text is
counted in parts of CHUNK sentences, and samples are drawn one after the other, with the same random numbers. The
results are sacreBLEU's to the bit. sacreBLEU has no public functions for this, hence its names with an underscore.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import numpy as np
from sacrebleu.metrics.base import Metric, Score

from ...errors import UserError

RESAMPLES = 1000  # bootstrap samples
CHUNK = 1000  # sentences whose n-grams are in memory at a time


def sentence_statistics(metric: Metric, translations: list[str], references: list[str]) -> list[list]:
    """Return for each sentence the list of numbers that the metric counts in it; for BLEU matching n-grams and lengths.

    The score of any selection of sentences follows from the sums of these numbers over the selection.
    """
    statistics: list[list] = []
    for start in range(0, len(translations), CHUNK):
        part = slice(start, start + CHUNK)
        statistics += metric._extract_corpus_statistics(translations[part], [references[part]])
    return statistics


def seed_setting() -> str:
    """Return sacreBLEU's setting of the seed: the environment variable SACREBLEU_SEED, by default "12345".

    "none" stands for another seed each time.
    """
    return os.environ.get("SACREBLEU_SEED", "12345").lower()


def seed_of_samples() -> int:
    """Return the seed of the random numbers that seed_setting asks for; a new one at each call if that is "none".

    UserError if it is neither that nor a whole number.
    """
    setting = seed_setting()
    if setting == "none":
        return secrets.randbits(64)
    if not setting.isdecimal():
        raise UserError(f"SACREBLEU_SEED={setting}", "give a whole number, or none for another seed each time")
    return int(setting)


def sample_scores(metric: Metric, statistics: list[list], seed: int) -> list[Score]:
    """Return the scores of RESAMPLES bootstrap samples, each as many sentences as the text has, drawn with replacement.

    statistics: of sentence_statistics; seed: of seed_of_samples. The same seed gives the same samples of sentences. The
    number of samples and seed_setting are set as attributes of the metric, which prints them in its signature.
    """
    metric.n_bootstrap = RESAMPLES
    metric.seed = seed_setting()
    generator = np.random.default_rng(seed)

    table = np.array(statistics, dtype="float32")
    scores = []
    for _ in range(RESAMPLES):
        sentences = generator.choice(len(table), size=len(table), replace=True)
        scores.append(metric._compute_score_from_stats(table[sentences].sum(0)))
    return scores


def score_of_text(metric: Metric, translations: list[str], references: list[str]) -> Score:
    """Return the score of the whole text, as sacreBLEU's corpus_score does; a text for each sentence."""
    return metric._aggregate_and_compute(sentence_statistics(metric, translations, references))


def score_with_samples(metric: Metric, translations: list[str], references: list[str]) -> Any:
    """Return the metric's Score of the whole text with a bootstrap interval, as corpus_score does with n_bootstrap.

    The Score's _mean and _ci are the mean of the bootstrap samples, and half the width of their 95% interval.
    """
    statistics = sentence_statistics(metric, translations, references)
    result = metric._aggregate_and_compute(statistics)
    result.estimate_ci(sample_scores(metric, statistics, seed_of_samples()))
    return result
