"""Many directions: means, and which are missing."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from ...errors import UserError
from .corpus import Corpus
from .outputs import Output

ENGLISH = {"en", "eng"}
GROUPS = ("to_english", "from_english", "between_others")
NAMED = 5  # directions that a message lists


def group(direction: str) -> str:
    """Which of GROUPS; languages by ISO 639 code, also with a script or country (eng_Latn)."""
    source, target = (language.split("_")[0].lower() in ENGLISH for language in direction.split("-"))
    return GROUPS[0] if target else GROUPS[1] if source else GROUPS[2]


def check_complete(path: Path, outputs: list[Output], corpus: Corpus, partial: bool) -> dict[str, list[str]]:
    """Subset -> the corpus's directions without a translation; UserError if there are any, unless `partial`."""
    found: dict[str, set[str]] = {}
    for output in outputs:
        found.setdefault(output.subset, set()).add(output.direction)
    lost = {subset: sorted(corpus.directions(subset) - directions) for subset, directions in found.items()}
    lost = {subset: directions for subset, directions in lost.items() if directions}
    if lost and not partial:
        subset, directions = next(iter(lost.items()))
        names = ", ".join(directions[:NAMED]) + (", ..." if len(directions) > NAMED else "")
        raise UserError(
            f"{path}: {len(directions)} directions of pairs.txt are missing in {subset} ({names}); "
            "translate them, or give --partial for the mean of the others"
        )
    return lost


def summarise(sets: dict[str, dict[str, dict]]) -> dict:
    """sets: subset -> direction -> its scores. The top level repeats the subset "test", or else is the sets' mean."""
    summaries = {subset: _means(directions) for subset, directions in sets.items()}
    directions = [scores for subset in sets.values() for scores in subset.values()]
    seconds = [scores["generation"]["seconds"] for scores in directions if scores["generation"]]
    return {
        **(summaries["test"] if "test" in summaries else _mean_of_sets(summaries)),
        "sets": summaries,
        "generation": {"seconds": sum(seconds)} if len(seconds) == len(directions) else None,
    }


def _means(directions: dict[str, dict]) -> dict:
    """Means over directions, each of the same weight whatever its number of sentences."""
    groups: dict[str, list[float]] = {name: [] for name in GROUPS}
    for direction, scores in directions.items():
        groups[group(direction)].append(scores["bleu"])
    return {
        "bleu": fmean(scores["bleu"] for scores in directions.values()),
        "kind": " and ".join(sorted({scores["kind"] for scores in directions.values()})),
        "signature": " or ".join(sorted({scores["signature"] for scores in directions.values()})),
        **{name: fmean(values) if values else None for name, values in groups.items()},
        "directions": directions,
    }


def _mean_of_sets(summaries: dict[str, dict]) -> dict:
    def mean(key: str) -> float | None:
        values = [summary[key] for summary in summaries.values() if summary[key] is not None]
        return fmean(values) if values else None

    one = next(iter(summaries.values())) if len(summaries) == 1 else None
    return {
        "bleu": mean("bleu"),
        "kind": " and ".join(sorted({summary["kind"] for summary in summaries.values()})),
        "signature": " or ".join(sorted({summary["signature"] for summary in summaries.values()})),
        **{name: mean(name) for name in GROUPS},
        "directions": one["directions"] if one else {},  # the sets may have the same directions
    }
