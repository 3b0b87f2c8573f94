"""Paired bootstrap resampling (Koehn 2004) of the mean BLEU over directions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sacrebleu.metrics import BLEU

from .metrics import RESAMPLES
from .pairing import paired
from .prepared import Prepared
from .tokenizers import bleu_metric, tokenizer_for

SEED = 12345  # sacreBLEU's


def compare_to_baseline(baseline: Path, run: Path, data: str | Path | None = None) -> float:
    """p of the difference in BLEU between two runs: the chance of one as large if they were equally good.

    Of many directions it is the mean over those that both have; a sample draws the sentences of each direction anew. Of
    a single one it is sacreBLEU's p of a paired bootstrap, seed and all. UserError if the runs cannot be compared.
    """
    rng = np.random.default_rng(SEED)
    scores = np.mean([_resample(systems, rng) for _, systems in paired([baseline, run], data)], axis=0)
    differences = np.abs(scores[1] - scores[0])
    difference, drawn = differences[0], differences[1:]
    if difference == 0:
        return 1.0
    return float((np.sum(drawn - drawn.mean() > difference) + 1) / (len(drawn) + 1))


def _resample(systems: list[Prepared], rng: np.random.Generator) -> np.ndarray:
    """BLEU of [system, sample]; the first sample is the test set itself, the others are drawn from it."""
    size = len(systems[0].hypotheses)
    drawn = np.vstack([np.arange(size), rng.choice(size, size=(RESAMPLES, size), replace=True)])
    counts = [_sentence_counts(system) for system in systems]
    return np.array([[_bleu(count[sample].sum(0)) for sample in drawn] for count in counts])


def _sentence_counts(system: Prepared) -> np.ndarray:
    """[sentence, 2 + 4 + 4]: length of translation and reference, matching n-grams, n-grams, n = 1..4."""
    metric = bleu_metric(tokenizer_for(system.tokenizer, system.target), system.corpus.lowercase)
    metric.effective_order = True  # does not change the counts; sacreBLEU warns without
    pairs = zip(system.hypotheses, system.references, strict=True)
    scores = [metric.sentence_score(hypothesis, [reference]) for hypothesis, reference in pairs]
    return np.array([[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores])


def _bleu(counts: np.ndarray) -> float:
    sys_len, ref_len, *ngrams = counts.tolist()
    return BLEU.compute_bleu(ngrams[:4], ngrams[4:], sys_len, ref_len, smooth_method="exp").score
