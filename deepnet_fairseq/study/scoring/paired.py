"""Test whether systems differ from a baseline by more than the choice of test sentences explains, and print tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import Result, estimate_ci

from ...errors import UserError
from ...text_table import render
from .generated import AlignedText, Output, align_with_references, find_outputs, read_corpus
from .resampling import sample_scores, sentence_statistics
from .scores import ChrF, metric_of

TestSet = tuple[str, str] | None  # subset and direction; None: the only one of bilingual runs
LEVEL = 0.05  # of significance, below which p has a star


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
    counts = Counter(path.resolve() for path in paths)
    twice = [path for path in paths if counts[path.resolve()] > 1]
    if twice:
        raise UserError(f"{min(twice)}: is given twice; compare different systems")

    outputs = [_by_test_set(find_outputs(path, corpus)) for path in paths]
    shared = [key for key in outputs[0] if all(key in output for output in outputs)]
    if not shared:
        raise UserError(f"{paths[0]}: has no direction that {' and '.join(map(str, paths[1:]))} have too")

    for key in shared:
        systems = [align_with_references(output[key], corpus) for output in outputs]
        first = systems[0]
        for other in systems[1:]:
            if other.references != first.references:
                wrong = f"has other references than {first.generated.path}"
                raise UserError(f"{other.generated.path}: {wrong}; translate the same test set")
        yield key, systems


def _by_test_set(outputs: list[Output]) -> dict[TestSet, Output]:
    """Return test set -> output of one system."""
    by_test_set: dict[TestSet, Output] = {}
    for output in outputs:
        key = (output.subset, output.direction or "") if output.subset else None
        by_test_set[key] = output
    return by_test_set


def names(paths: list[Path]) -> list[str]:
    """Return distinct names of the systems: those of their folders or files, else their paths."""
    short = []
    for path in paths:
        if path.name.startswith("generate") and path.is_file():
            path = path.parent  # generated.txt or generate-SUBSET.txt; the name of the run says more
        there = path.is_file() or path.is_dir()  # no pipe
        short.append(path.resolve().name if there else str(path))

    if len(set(short)) < len(short):
        return [str(path) for path in paths]
    return short


def significance(
    baseline: Path, systems: list[Path], data: str | Path | None = None, tokenize: str | None = None
) -> dict[TestSet, Comparison]:
    """Compare systems on each test set that all have: None for a bilingual run, else (subset, direction).

    The test is sacreBLEU's paired bootstrap resampling (Koehn 2004), two-sided. baseline, systems: see find_outputs;
    tokenize: see score. Raises a UserError if the systems do not translate the same sentences.
    """
    paths = [baseline, *systems]
    comparisons = {}
    for key, aligned in paired(paths, data):
        first = aligned[0]
        metrics = {"BLEU": metric_of(first, tokenize), "chrF2": ChrF(lowercase=first.corpus.lowercase)}
        hypotheses = [system.hypotheses for system in aligned]

        # the scores come first: they put the bootstrap's settings into the signatures
        results = {name: _results(metric, hypotheses, first.references) for name, metric in metrics.items()}
        signatures = {name: str(metric.get_signature()) for name, metric in metrics.items()}
        notes = []
        for system in aligned:
            notes += system.notes
        comparisons[key] = Comparison(systems=names(paths), results=results, signatures=signatures, notes=notes)
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
        mean, ci = estimate_ci(samples)
        result = Result(score=score, p_value=None, mean=mean, ci=ci)

        if results:
            difference = abs(results[0].score - score)
            result.p_value = _p_value(difference, np.abs(samples - samples_of_first))
        else:
            samples_of_first = samples
        results.append(result)
    return results


def _p_value(difference: float, differences: np.ndarray) -> float:
    """Return p of the observed difference of two scores; differences: of their samples, without sign."""
    if difference == 0:  # sacreBLEU counts the samples that differ more: there may be none
        return 1.0
    further = int(np.sum(differences - differences.mean() > difference))
    return (further + 1) / (len(differences) + 1)


def table(comparisons: Mapping[TestSet, Comparison]) -> str:
    """Return one table, of systems or of directions, and the signatures below it."""
    header = ["system", "BLEU", "mean ± 95% CI", "p", "chrF2", "mean ± 95% CI", "p"]
    if None not in comparisons:
        header = ["set", "direction", *header]

    rows = [header]
    notes = []
    signatures = []
    for key, comparison in comparisons.items():
        for rank, system in enumerate(comparison.systems):
            bleu = comparison.results["BLEU"][rank]
            chrf = comparison.results["chrF2"][rank]
            rows.append([*(key or ()), system, *_cells(bleu), *_cells(chrf)])
        notes += [f"note: {note}" for note in comparison.notes]
        signatures += [f"{metric}: {signature}" for metric, signature in comparison.signatures.items()]
    return "\n".join([render(rows), "", *dict.fromkeys(notes + signatures)])  # each line once


def _cells(result: Result) -> list[str]:
    """Return score, interval and p of a system; a star behind p if the difference is significant, else a blank."""
    p = ""
    if result.p_value is not None:
        star = "*" if result.p_value < LEVEL else " "
        p = f"{result.p_value:.4f}{star}"
    return [f"{result.score:.2f}", f"{result.mean:.2f} ± {result.ci:.2f}", p]
