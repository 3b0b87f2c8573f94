"""Test whether systems differ from a baseline by more than the choice of test sentences explains, and print tables.

A system is a model, or a way to translate, of which fairseq-generate's output is given.
"""

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
from .resampling import RESAMPLES, sample_scores, seed_of_samples, sentence_statistics
from .scores import ChrF, bleu_metric_of

# subset, and direction or "" if that is unknown; None for the only test set of bilingual runs
TestSet = tuple[str, str] | None
LEVEL = 0.05  # of significance: a smaller p has a star


@dataclass(frozen=True)
class Comparison:
    """Comparison of systems on one test set.

    systems: their names, the baseline first; results: "BLEU" or "chrF2" -> sacreBLEU's Result of each system, in the
    same order; signatures: "BLEU" or "chrF2" -> sacreBLEU's text of its settings. notes: what makes scores doubtful, a
    sentence each.

    A Result has score (0..100); mean and ci of the bootstrap samples, where ci is half the width of the 95% interval;
    and p_value of the difference from the baseline, None for the baseline itself.
    """

    systems: list[str]
    results: dict[str, list[Result]]
    signatures: dict[str, str]
    notes: list[str]


def shared_test_sets(paths: list[Path], data: str | Path | None) -> Iterator[tuple[TestSet, list[AlignedText]]]:
    """Yield each test set that all systems have, with the translations of each system in the order of `paths`.

    paths: for each system a file that fairseq-generate printed, or a folder of such files (see find_outputs); data: the
    binarised data that were translated. Raises a UserError if a path comes twice, if there is no such test set, or if
    the references of two systems differ.
    """
    corpus = read_corpus(data)
    counts = Counter(path.resolve() for path in paths)
    twice = [path for path in paths if counts[path.resolve()] > 1]
    if twice:
        raise UserError(min(twice), "is given twice; compare different systems")

    outputs = [_by_test_set(find_outputs(path, corpus)) for path in paths]  # of each system
    shared = [key for key in outputs[0] if all(key in own for own in outputs)]
    if not shared:
        raise UserError(paths[0], f"has no direction that {' and '.join(map(str, paths[1:]))} have too")

    for key in shared:
        systems = [align_with_references(own[key], corpus) for own in outputs]
        first = systems[0]
        for other in systems[1:]:
            if other.references != first.references:
                wrong = f"has other references than {first.generated.path}"
                raise UserError(other.generated.path, f"{wrong}; translate the same test set")
        yield key, systems


def _by_test_set(outputs: list[Output]) -> dict[TestSet, Output]:
    """Return {test set: output} for the outputs of one system; an output without a subset is of the test set None."""
    by_test_set: dict[TestSet, Output] = {}
    for output in outputs:
        key = (output.subset, output.direction or "") if output.subset else None
        by_test_set[key] = output
    return by_test_set


def system_names(paths: list[Path]) -> list[str]:
    """Return a name for each system: that of its output's file or folder; the whole paths if two would be the same.

    paths: of the outputs.
    """
    short = []
    for path in paths:
        if path.name.startswith("generate") and path.is_file():
            path = path.parent  # of generated.txt or generate-SUBSET.txt; the name of the run's folder says more
        has_name = path.is_file() or path.is_dir()  # a pipe such as /dev/fd/63 has none
        short.append(path.resolve().name if has_name else str(path))

    if len(set(short)) < len(short):
        return [str(path) for path in paths]
    return short


def significance(
    baseline: Path, systems: list[Path], data: str | Path | None = None, tokenize: str | None = None
) -> dict[TestSet, Comparison]:
    """Compare systems with a baseline; return {test set: comparison} for each test set that all have.

    The test is sacreBLEU's paired bootstrap resampling (Koehn 2004), two-sided. baseline, systems: of each a file that
    fairseq-generate printed, or a folder of such files (see find_outputs); data: the binarised data that were
    translated, beside which the raw references are; tokenize: name of sacreBLEU's tokenizer, None for the one of the
    target language. Raises a UserError if the systems do not translate the same sentences.
    """
    paths = [baseline, *systems]
    comparisons = {}
    for key, aligned in shared_test_sets(paths, data):
        first = aligned[0]
        metrics = {"BLEU": bleu_metric_of(first, tokenize), "chrF2": ChrF(lowercase=first.corpus.lowercase)}
        hypotheses = [system.hypotheses for system in aligned]

        # results before signatures: scoring puts the number of samples and the seed into the metric's signature
        results = {name: _results(metric, hypotheses, first.references) for name, metric in metrics.items()}
        signatures = {name: str(metric.get_signature()) for name, metric in metrics.items()}
        notes = []
        for system in aligned:
            notes += system.notes
        comparisons[key] = Comparison(systems=system_names(paths), results=results, signatures=signatures, notes=notes)
    return comparisons


def _results(metric: Metric, systems: list[list[str]], references: list[str]) -> list[Result]:
    """Return the scores of systems, and p of their differences from the first, by paired bootstrap resampling.

    systems: of each its translations of all sentences. All are scored on the same samples of sentences, which one seed
    gives.
    """
    seed = seed_of_samples()
    results: list[Result] = []
    samples_of_first = np.array([])
    for hypotheses in systems:
        statistics = sentence_statistics(metric, hypotheses, references)
        score = metric._aggregate_and_compute(statistics).score  # of all sentences
        samples = np.array([sample.score for sample in sample_scores(metric, statistics, seed)])
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
    """Return p of a difference of two scores, as sacreBLEU computes it (Riezler and Maxwell 2005).

    p is the share of samples whose difference is further above the mean of all than the observed one is above 0.
    difference: the observed one, without sign; differences: those of the samples, without sign.
    """
    if difference == 0:  # the scores are equal; the formula below could still give a small p
        return 1.0
    further = int(np.sum(differences - differences.mean() > difference))
    return (further + 1) / (len(differences) + 1)


def significance_table(comparisons: Mapping[TestSet, Comparison]) -> str:
    """Return one table with a row for each system on each test set, and below it notes and signatures."""
    header = ["system", "BLEU", "mean ± 95% CI", "p", "chrF2", "mean ± 95% CI", "p"]
    if None not in comparisons:  # the test sets have names
        header = ["set", "direction", *header]

    rows = [header]
    notes = []
    signatures = [f"BLEU and chrF2: of all sentences; mean ± 95% CI: of {RESAMPLES:,} bootstrap samples of them"]
    for key, comparison in comparisons.items():
        for rank, system in enumerate(comparison.systems):
            bleu = comparison.results["BLEU"][rank]
            chrf = comparison.results["chrF2"][rank]
            test_set = key or ()  # its two cells
            rows.append([*test_set, system, *_cells(bleu), *_cells(chrf)])
        notes += [f"note: {note}" for note in comparison.notes]
        signatures += [f"{metric}: {signature}" for metric, signature in comparison.signatures.items()]
    return "\n".join([render(rows), "", *dict.fromkeys(notes + signatures)])  # each line once


def _cells(result: Result) -> list[str]:
    """Return a system's cells: score, "mean ± half-width" and p, with a star behind p if it is below LEVEL.

    The cell of p is "" for the baseline; a p without a star ends in a blank, so that the digits stand in one column.
    """
    p = ""
    if result.p_value is not None:
        star = "*" if result.p_value < LEVEL else " "
        p = f"{result.p_value:.4f}{star}"
    return [f"{result.score:.2f}", f"{result.mean:.2f} ± {result.ci:.2f}", p]
