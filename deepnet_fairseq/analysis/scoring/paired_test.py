"""Whether systems differ from a baseline by more than the choice of test sentences explains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sacrebleu.metrics import CHRF
from sacrebleu.significance import PairedTest, Result

from ...errors import UserError
from .corpus import read_corpus
from .outputs import Output, find_outputs, is_multilingual
from .prepared import Prepared, prepare
from .tokenizers import bleu_metric, tokenizer_for

LEVEL = 0.05


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
) -> dict[tuple[str, str] | None, Comparison]:
    """Test set -> its comparison: None for a bilingual run, else (subset, direction), those that all systems have.

    baseline, systems: see find_outputs; test: "bs", paired bootstrap resampling (Koehn 2004), or "ar", approximate
    randomisation (Riezler and Maxwell 2005), both two-sided and by sacreBLEU; samples 0: sacreBLEU's number of them.
    UserError if the systems do not translate the same sentences.
    """
    corpus = read_corpus(data)
    outputs = [_by_test_set(path) for path in (baseline, *systems)]
    shared = [key for key in outputs[0] if all(key in output for output in outputs)]
    if not shared:
        raise UserError(f"{baseline}: has no direction that all of {', '.join(map(str, systems))} have")
    names = _names([baseline, *systems])
    return {key: _compare([prepare(output[key], corpus) for output in outputs], names, test, samples) for key in shared}


def compare_to_baseline(baseline: Path, run: Path, data: str | Path | None = None) -> float:
    """p of the difference in BLEU between two bilingual runs: the chance of one as large if they were equally good."""
    [comparison] = significance(baseline, [run], data).values()
    return comparison.rows[1].bleu.p


def _by_test_set(path: Path) -> dict[tuple[str, str] | None, Output]:
    outputs = find_outputs(path)
    if not is_multilingual(outputs):
        return {None: outputs[0]}
    return {(output.subset, output.direction): output for output in outputs}


def _names(paths: list[Path]) -> list[str]:
    """The last part of each path that tells them apart."""
    runs = [path.parent if path.name == "generated.txt" else path for path in paths]
    names = [run.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _compare(prepared: list[Prepared], names: list[str], test: str, samples: int) -> Comparison:
    first = prepared[0]
    for other in prepared[1:]:
        if len(other.hypotheses) != len(first.hypotheses):
            raise UserError(
                f"{other.path}: {len(other.hypotheses)} sentences, {len(first.hypotheses)} in {first.path}; "
                "translate the same test set"
            )
        if other.references != first.references:
            raise UserError(f"{other.path}: has other references than {first.path}; translate the same test set")
    lowercase = first.corpus.lowercase
    metrics = {
        "BLEU": bleu_metric(tokenizer_for(first.tokenizer, first.target), lowercase),
        "chrF2": CHRF(lowercase=lowercase),
    }
    systems = list(zip(names, (system.hypotheses for system in prepared), strict=True))
    # 0: a confidence interval for approximate randomisation too, from sacreBLEU's own number of samples
    signatures, results = PairedTest(systems, metrics, [first.references], test, samples, n_ar_confidence=0)()
    columns = {metric: _values(results[metric]) for metric in metrics}
    rows = [Row(*cells) for cells in zip(names, columns["BLEU"], columns["chrF2"], strict=True)]
    return Comparison(rows, {metric: str(signature) for metric, signature in signatures.items()})


def _values(results: list[Result]) -> list[Value]:
    """sacreBLEU counts the samples with a larger difference: for no difference at all that gives the smallest p."""
    baseline = results[0]
    chance = [None] + [1.0 if result.score == baseline.score else result.p_value for result in results[1:]]
    return [Value(*map(float, (r.score, r.mean, r.ci)), p) for r, p in zip(results, chance, strict=True)]
