"""Test whether systems differ from a baseline by more than the choice of test sentences explains, and print tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import Result, estimate_ci

from ...errors import UserError
from ...text_table import render
from .generated import AlignedText, align_with_references, find_outputs, read_corpus
from .resampling import sample_scores, sentence_statistics
from .scores import ChrF, metric_of

TestSet = tuple[str, str] | None  # subset and direction; None: the only one of bilingual runs
LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """Comparison on one test set: systems, the baseline first; metric -> sacreBLEU's results, and its signature.

    A Result has score (0..100), mean and ci, the half width of the 95% bootstrap interval, and p_value against the
    baseline, None for itself. notes: what makes scores doubtful, a sentence each.
    """

    systems: list[str]
    results: dict[str, list[Result]]
    signatures: dict[str, str]
    notes: list[str]


def paired(paths: list[Path], data: str | Path | None) -> Iterator[tuple[TestSet, list[AlignedText]]]:
    """Yield each test set that all systems have, with their translations of it, in the order of `paths`.

    paths: see find_outputs; data: see read_corpus. Raises a UserError if a path comes twice, if there is no such test
    set, or if the systems do not translate the same sentences.
    """
    corpus = read_corpus(data)
    if twice := {path for path in paths if [other.resolve() for other in paths].count(path.resolve()) > 1}:
        raise UserError(f"{min(twice)}: is given twice; compare different systems")
    by_path = [find_outputs(path, corpus) for path in paths]
    outputs = [
        {(one.subset, one.direction or "") if one.subset else None: one for one in several} for several in by_path
    ]
    shared = [key for key in outputs[0] if all(key in output for output in outputs)]
    if not shared:
        raise UserError(f"{paths[0]}: has no direction that {' and '.join(map(str, paths[1:]))} have too")
    for key in shared:
        first, *others = systems = [align_with_references(output[key], corpus) for output in outputs]
        for other in others:
            if other.references != first.references:
                wrong = f"has other references than {first.generated.path}"
                raise UserError(f"{other.generated.path}: {wrong}; translate the same test set")
        yield key, systems


def names(paths: list[Path]) -> list[str]:
    """Return distinct names of the systems: those of their folders or files, else their paths."""
    runs = [path.parent if path.name.startswith("generate") and path.is_file() else path for path in paths]
    short = [run.resolve().name if run.is_file() or run.is_dir() else str(run) for run in runs]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def significance(
    baseline: Path, systems: list[Path], data: str | Path | None = None, tokenize: str | None = None
) -> dict[TestSet, Comparison]:
    """Compare systems on each test set that all have: None for a bilingual run, else (subset, direction).

    The test is sacreBLEU's paired bootstrap resampling (Koehn 2004), two-sided. baseline, systems: see find_outputs;
    tokenize: see score. Raises a UserError if the systems do not translate the same sentences.
    """
    paths, comparisons = [baseline, *systems], {}
    for key, aligned in paired(paths, data):
        metrics = {"BLEU": metric_of(aligned[0], tokenize), "chrF2": ChrF(lowercase=aligned[0].corpus.lowercase)}
        hypotheses = [system.hypotheses for system in aligned]
        results = {name: _results(metric, hypotheses, aligned[0].references) for name, metric in metrics.items()}
        signatures = {name: str(metric.get_signature()) for name, metric in metrics.items()}
        notes = [note for system in aligned for note in system.notes]
        comparisons[key] = Comparison(names(paths), results, signatures, notes)
    return comparisons


def _results(metric: Metric, systems: list[list[str]], references: list[str]) -> list[Result]:
    """Return the scores of systems, and p of their differences from the first, by paired bootstrap resampling.

    Each system is scored on the same samples of sentences. p is the share of samples in which the difference is
    further from its mean than the observed one from 0 (Riezler and Maxwell 2005), as sacreBLEU computes it.
    """
    results: list[Result] = []
    samples_of_first = np.array([])
    for hypotheses in systems:
        statistics = sentence_statistics(metric, hypotheses, references)
        score = metric._aggregate_and_compute(statistics).score
        samples = np.array([sample.score for sample in sample_scores(metric, statistics)])
        result = Result(score, None, *estimate_ci(samples))
        if results:
            result.p_value = _p_value(abs(results[0].score - score), np.abs(samples - samples_of_first))
        else:
            samples_of_first = samples
        results.append(result)
    return results


def _p_value(difference: float, differences: np.ndarray) -> float:
    if difference == 0:  # sacreBLEU counts the samples that differ more: there may be none
        return 1.0
    further = int(np.sum(differences - differences.mean() > difference))
    return (further + 1) / (len(differences) + 1)


def table(comparisons: Mapping[TestSet, Comparison]) -> str:
    """Return one table, of systems or of directions, and the signatures below it."""
    header = ["system", "BLEU", "mean ± 95% CI", "p", "chrF2", "mean ± 95% CI", "p"]
    rows = [
        [*(key or ()), system, *_cells(bleu), *_cells(chrf)]
        for key, comparison in comparisons.items()
        for system, bleu, chrf in zip(comparison.systems, *comparison.results.values(), strict=True)
    ]
    if None not in comparisons:
        header = ["set", "direction", *header]
    lines = [f"note: {note}" for comparison in comparisons.values() for note in comparison.notes]
    for comparison in comparisons.values():
        lines += [f"{metric}: {signature}" for metric, signature in comparison.signatures.items()]
    return "\n".join([render([header, *rows]), "", *dict.fromkeys(lines)])


def _cells(result: Result) -> list[str]:
    p = "" if result.p_value is None else f"{result.p_value:.4f}" + ("*" if result.p_value < LEVEL else " ")
    return [f"{result.score:.2f}", f"{result.mean:.2f} ± {result.ci:.2f}", p]
