"""Whether systems differ from a baseline by more than the choice of test sentences explains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sacrebleu.metrics import CHRF
from sacrebleu.significance import PairedTest, Result

from .pairing import TestSet, names, paired
from .prepared import Prepared
from .tokenizers import bleu_metric, tokenizer_for

LEVEL = 0.05
INTERVAL_SAMPLES = {"bs": -1, "ar": 0}  # sacreBLEU's: the test's own samples give the interval; 1000 beside the test's


@dataclass(frozen=True)
class Value:
    """A score in 0..100; mean and half width of the 95% bootstrap interval; p against the baseline, None for it."""

    score: float
    mean: float
    ci: float
    p: float | None


@dataclass(frozen=True)
class Row:
    """A system; the baseline's is the first of its list."""

    system: str
    bleu: Value
    chrf: Value


@dataclass(frozen=True)
class Comparison:
    """One test set: rows, the baseline first; name of the metric -> sacreBLEU's signature of metric and test."""

    rows: list[Row]
    signatures: dict[str, str]


def significance(
    baseline: Path, systems: list[Path], data: str | Path | None = None, test: str = "bs", samples: int = 0
) -> dict[TestSet, Comparison]:
    """Test set -> its comparison: None for a bilingual run, else (subset, direction), those that all systems have.

    baseline, systems: see find_outputs; test: "bs", paired bootstrap resampling (Koehn 2004), or "ar", approximate
    randomisation (Riezler and Maxwell 2005), both two-sided and by sacreBLEU; samples 0: sacreBLEU's number of them.
    UserError if the systems do not translate the same sentences.
    """
    paths = [baseline, *systems]
    return {key: _compare(prepared, names(paths), test, samples) for key, prepared in paired(paths, data)}


def _compare(prepared: list[Prepared], systems: list[str], test: str, samples: int) -> Comparison:
    first = prepared[0]
    lowercase = first.corpus.lowercase
    metrics = {
        "BLEU": bleu_metric(tokenizer_for(first.tokenizer, first.target), lowercase),
        "chrF2": CHRF(lowercase=lowercase),
    }
    named = list(zip(systems, (system.hypotheses for system in prepared), strict=True))
    signatures, results = PairedTest(named, metrics, [first.references], test, samples, INTERVAL_SAMPLES[test])()
    columns = {metric: _values(results[metric]) for metric in metrics}
    rows = [Row(*cells) for cells in zip(systems, columns["BLEU"], columns["chrF2"], strict=True)]
    return Comparison(rows, {metric: str(signature) for metric, signature in signatures.items()})


def _values(results: list[Result]) -> list[Value]:
    """sacreBLEU counts the samples with a larger difference: for no difference at all that gives the smallest p."""
    baseline = results[0]
    chance = [None] + [1.0 if result.score == baseline.score else result.p_value for result in results[1:]]
    return [Value(float(r.score), float(r.mean), float(r.ci), p) for r, p in zip(results, chance, strict=True)]
