"""sacreBLEU's numbers with their signatures and bootstrap confidence intervals."""

from __future__ import annotations

from pathlib import Path

from sacrebleu.metrics.base import Metric, Score

from ...errors import UserError
from .generated import Generated, read_generated, read_text
from .tokenizers import bleu_metric

RESAMPLES = 1000


def bleu(generated: Path, reference: Path) -> tuple[float, str]:
    """BLEU in 0..100 and sacreBLEU's signature, against the lines of a file, with tokenizer 13a.

    generated: what fairseq-generate printed. UserError unless there are as many lines as translations.
    """
    output, metric = read_generated(generated), bleu_metric("13a")
    score = metric.corpus_score(output.translations, [read_references(reference, output)])
    return score.score, str(metric.get_signature())


def read_references(reference: Path, generated: Generated) -> list[str]:
    """The lines of `reference`; UserError if they are not as many as the translations of `generated`."""
    text = read_text(reference)
    lines = text.removesuffix("\n").split("\n") if text else []
    if len(lines) != len(generated.translations):
        raise UserError(
            f"{generated.path}: {len(generated.translations)} translations for {len(lines)} lines of {reference}"
        )
    return lines


def resample(metric: Metric, translations: list[str], references: list[str]) -> Score:
    """sacreBLEU's score of the whole text, with the mean and the interval of 1000 bootstrap samples."""
    return metric.corpus_score(translations, [references], n_bootstrap=RESAMPLES)


def entry(metric: Metric, score: Score) -> dict:
    """score and mean in 0..100; ci: half the width of the 95% interval; the signature."""
    return {
        "score": float(score.score),
        "mean": float(score._mean),  # sacreBLEU has no other name for the two
        "ci": float(score._ci),
        "signature": str(metric.get_signature()),
    }
