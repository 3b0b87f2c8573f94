"""What keeps the numbers of a table from meaning what they seem to, a line each."""

from __future__ import annotations

from collections.abc import Iterator

from .entry import Entry, key_of
from .table import Table


def caveats(table: Table, entries: list[Entry]) -> Iterator[str]:
    """Warnings about runs, by name."""
    modified = [entry.name for entry in entries if entry.run.environment.get("modified")]
    if modified:
        yield f"trained from a modified working tree, so the commit does not tell all: {', '.join(modified)}"
    twins: dict[tuple, list[str]] = {}
    for entry in entries:
        twins.setdefault((*key_of(table, entry.run), entry.run.seed), []).append(entry.name)
    for names in twins.values():
        if len(names) > 1:
            yield f"same row and same seed, yet counted as several: {', '.join(names)}"
    kind = table.metric.kind
    others = [f"{entry.name} ({entry.score['kind']})" for entry in entries if entry.score.get("kind", kind) != kind]
    if kind and others:
        yield f"the published numbers are {kind} BLEU, these are not: {', '.join(others)}"
    for (tokens, published), names in _other_batches(entries).items():
        yield f"an update has {tokens} tokens, the paper's {published}: {', '.join(names)}"
    if len({is_miniature(entry) for entry in entries}) > 1:
        yield "miniatures and runs in full stand in one table"


def is_miniature(entry: Entry) -> bool:
    return entry.run.facts.get("smoke") is True


def _other_batches(entries: list[Entry]) -> dict[tuple[int, int], list[str]]:
    """Tokens of an update, and those of the paper's -> the runs in full where they differ."""
    found: dict[tuple[int, int], list[str]] = {}
    for entry in entries:
        tokens, published = (entry.run.facts.get(key) for key in ("batch_tokens", "paper_batch_tokens"))
        if tokens and published and tokens != published and not is_miniature(entry):
            found.setdefault((tokens, published), []).append(entry.name)
    return found
