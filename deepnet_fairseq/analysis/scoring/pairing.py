"""The same sentences, translated by several systems."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...errors import UserError
from .corpus import read_corpus
from .outputs import Output, find_outputs, is_multilingual
from .prepared import Prepared, prepare

TestSet = tuple[str, str] | None  # subset and direction; None: the one of bilingual runs


def paired(paths: list[Path], data: str | Path | None) -> Iterator[tuple[TestSet, list[Prepared]]]:
    """Each test set that all have, with what each made of it, in the order of `paths`.

    paths: see find_outputs; data: see read_corpus. UserError if a path is there twice, if there is no such test set, or
    if the systems do not translate the same sentences.
    """
    corpus = read_corpus(data)
    if twice := {path for path in paths if [other.resolve() for other in paths].count(path.resolve()) > 1}:
        raise UserError(f"{min(twice)}: is given twice; compare different systems")
    outputs = [_by_test_set(path) for path in paths]
    shared = [key for key in outputs[0] if all(key in output for output in outputs)]
    if not shared:
        raise UserError(f"{paths[0]}: has no direction that {' and '.join(map(str, paths[1:]))} have too")
    for key in shared:
        systems = [prepare(output[key], corpus) for output in outputs]
        _check_same_sentences(systems)
        yield key, systems


def names(paths: list[Path]) -> list[str]:
    """What tells the systems apart: the names of their folders or files, else their paths."""
    runs = [path.parent if path.name == "generated.txt" else path for path in paths]
    short = [run.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def _by_test_set(path: Path) -> dict[TestSet, Output]:
    outputs = find_outputs(path)
    if not is_multilingual(outputs):
        return {None: outputs[0]}
    return {(output.subset, output.direction): output for output in outputs}


def _check_same_sentences(systems: list[Prepared]) -> None:
    first = systems[0]
    for other in systems[1:]:
        if len(other.hypotheses) != len(first.hypotheses):
            raise UserError(
                f"{other.path}: {len(other.hypotheses)} sentences, {len(first.hypotheses)} in {first.path}; "
                "translate the same test set"
            )
        if other.references != first.references:
            raise UserError(f"{other.path}: has other references than {first.path}; translate the same test set")
