"""Whether systems differ from a baseline by more than the choice of test sentences explains: paired tests, tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sacrebleu.significance import PairedTest, Result

from ...errors import UserError
from ...text_table import render
from .generated import AlignedText, align_with_references, find_outputs, read_corpus
from .scores import RESAMPLES, ChrF, bleu_metric

TestSet = tuple[str, str] | None  # subset and direction; None: the one of bilingual runs
SEED = 12345  # sacreBLEU's
LEVEL = 0.05


@dataclass(frozen=True)
class Comparison:
    """One test set: its systems, the baseline first; metric -> sacreBLEU's result of each, and its signature.

    A Result has score (0..100), mean and ci, the half width of the 95% bootstrap interval, and p_value against the
    baseline, None for itself.
    """

    systems: list[str]
    results: dict[str, list[Result]]
    signatures: dict[str, str]


def paired(paths: list[Path], data: str | Path | None) -> Iterator[tuple[TestSet, list[AlignedText]]]:
    """Each test set that all have, with what each made of it, in the order of `paths`.

    paths: see find_outputs; data: see read_corpus. UserError if a path is there twice, if there is no such test set, or
    if the systems do not translate the same sentences.
    """
    corpus = read_corpus(data)
    if twice := {path for path in paths if [other.resolve() for other in paths].count(path.resolve()) > 1}:
        raise UserError(f"{min(twice)}: is given twice; compare different systems")
    outputs = [{(o.subset, o.direction) if o.subset else None: o for o in find_outputs(path)} for path in paths]
    shared = [key for key in outputs[0] if all(key in output for output in outputs)]
    if not shared:
        raise UserError(f"{paths[0]}: has no direction that {' and '.join(map(str, paths[1:]))} have too")
    for key in shared:
        first, *others = systems = [align_with_references(output[key], corpus) for output in outputs]
        for other in others:
            if (found := len(other.hypotheses)) != (wanted := len(first.hypotheses)):
                wrong = f"{found} sentences, {wanted} in {first.generated.path}"
            elif other.references != first.references:
                wrong = f"has other references than {first.generated.path}"
            else:
                continue
            raise UserError(f"{other.generated.path}: {wrong}; translate the same test set")
        yield key, systems


def names(paths: list[Path]) -> list[str]:
    """What tells the systems apart: the names of their folders or files, else their paths."""
    runs = [path.parent if path.name == "generated.txt" else path for path in paths]
    short = [run.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def significance(baseline: Path, systems: list[Path], data: str | Path | None = None) -> dict[TestSet, Comparison]:
    """Test set -> its comparison: None for a bilingual run, else (subset, direction), those that all systems have.

    By sacreBLEU's paired bootstrap resampling (Koehn 2004), two-sided. baseline, systems: see find_outputs.
    UserError if the systems do not translate the same sentences.
    """
    paths = [baseline, *systems]
    return {key: _compare(aligned, names(paths)) for key, aligned in paired(paths, data)}


def _compare(aligned: list[AlignedText], systems: list[str]) -> Comparison:
    lowercase, references = aligned[0].corpus.lowercase, [aligned[0].references]
    metrics = {"BLEU": bleu_metric(lowercase), "chrF2": ChrF(lowercase=lowercase)}
    named = list(zip(systems, (system.hypotheses for system in aligned), strict=True))
    signatures, results = PairedTest(named, metrics, references, "bs")()
    for metric in metrics:
        baseline, *others = results[metric]
        for result in others:
            if result.score == baseline.score:  # sacreBLEU counts the samples that differ more, which none need do
                result.p_value = 1.0
    signatures = {metric: str(signature) for metric, signature in signatures.items()}
    return Comparison(systems, {metric: results[metric] for metric in metrics}, signatures)


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


def _resample(systems: list[AlignedText], rng: np.random.Generator) -> np.ndarray:
    """BLEU of [system, sample]; the first sample is the test set itself, the others are drawn from it."""
    size, metric = len(systems[0].hypotheses), bleu_metric(systems[0].corpus.lowercase)
    drawn = np.vstack([np.arange(size), rng.choice(size, size=(RESAMPLES, size), replace=True)])
    scores = []
    for system in systems:  # sacreBLEU has no other name for the counts of each sentence and the score of their sum
        counts = np.array(metric._extract_corpus_statistics(system.hypotheses, [system.references]))
        scores.append([metric._compute_score_from_stats(counts[sample].sum(0).tolist()).score for sample in drawn])
    return np.array(scores)


def table(comparisons: Mapping[TestSet, Comparison]) -> str:
    """One table, of systems or of directions; below it how many directions differ, and the signatures."""
    header = ["system", "BLEU", "mean ± 95% CI", "p", "chrF2", "mean ± 95% CI", "p"]
    rows = [
        [*(key or ()), system, *_cells(bleu), *_cells(chrf)]
        for key, comparison in comparisons.items()
        for system, bleu, chrf in zip(comparison.systems, *comparison.results.values(), strict=True)
    ]
    if None not in comparisons:
        header = ["set", "direction", *header]
    signatures = (f"{m}: {signature}" for c in comparisons.values() for m, signature in c.signatures.items())
    counts = [] if None in comparisons else _counts(comparisons)
    return "\n".join([render([header, *rows]), "", *counts, *dict.fromkeys(signatures)])


def _cells(result: Result) -> list[str]:
    p = "" if result.p_value is None else f"{result.p_value:.4f}" + ("*" if result.p_value < LEVEL else " ")
    return [f"{result.score:.2f}", f"{result.mean:.2f} ± {result.ci:.2f}", p]


def _counts(comparisons: Mapping[TestSet, Comparison]) -> list[str]:
    """One line a system: in how many directions its BLEU is better or worse than the baseline's."""
    lines = []
    systems = next(iter(comparisons.values())).systems
    baselines, *others = zip(*(comparison.results["BLEU"] for comparison in comparisons.values()), strict=True)
    for system, results in zip(systems[1:], others, strict=True):
        differences = [result.score - base.score for base, result in zip(baselines, results, strict=True)]
        sure = [d for d, result in zip(differences, results, strict=True) if result.p_value < LEVEL]
        lines.append(
            f"{system}: BLEU better in {sum(d > 0 for d in sure)} and worse in {sum(d < 0 for d in sure)} of "
            f"{len(results)} directions at p < {LEVEL}, mean difference {sum(differences) / len(results):+.2f}"
        )
    return lines
