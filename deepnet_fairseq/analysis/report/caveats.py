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
        searched = entry.run.facts.get(table.tuned)
        twins.setdefault((*key_of(table, entry.run), searched, entry.run.seed), []).append(entry.name)
    for names in twins.values():
        if len(names) > 1:
            yield f"same row and same seed, yet counted as several: {', '.join(names)}"
    kind = table.metric.kind
    others = [f"{entry.name} ({entry.score['kind']})" for entry in entries if entry.score.get("kind", kind) != kind]
    if kind and others:
        yield f"the published numbers are {kind} BLEU, these are not: {', '.join(others)}"
    for (corpus, published), names in _different(entries, "corpus", "paper_corpus").items():
        yield f"trained and tested on the corpus {corpus}, the paper's is {published}: {', '.join(names)}"
    for (tokens, published), names in _different(entries, "batch_tokens", "paper_batch_tokens").items():
        yield f"an update has {tokens} tokens, the paper's {published}: {', '.join(names)}"
    if len({is_miniature(entry) for entry in entries}) > 1:
        yield "miniatures and runs in full stand in one table"


def is_miniature(entry: Entry) -> bool:
    """Was it trained on generated data, in a few updates? The scripts write "smoke" into its run.json."""
    return entry.run.facts.get("smoke") is True


def _different(entries: list[Entry], ours: str, papers: str) -> dict[tuple, list[str]]:
    """The run's fact and the paper's -> the runs in full where they differ."""
    found: dict[tuple, list[str]] = {}
    for entry in entries:
        own, published = entry.run.facts.get(ours), entry.run.facts.get(papers)
        if own and published and own != published and not is_miniature(entry):
            found.setdefault((own, published), []).append(entry.name)
    return found
