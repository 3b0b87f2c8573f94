"""What an update trained on, in numbers."""

from __future__ import annotations

import statistics

ODD_RATIO, ODD_LENGTH = 8, 32  # of the two sides of a sentence pair that stands out, and tokens of the longer


def describe(samples: list, padding: int) -> dict:
    """Of all batches of this rank's update: ids (positions in the binarised text, from 0) and lengths in tokens.

    padding: index of the target dictionary's padding. Lengths are missing for tasks that translate nothing.
    """
    found = {"ids": [], "source_lengths": [], "target_lengths": []}
    for sample in samples:
        if not sample:
            continue
        if "id" in sample:
            found["ids"] += sample["id"].tolist()
        lengths = (sample.get("net_input") or {}).get("src_lengths")
        if lengths is not None:
            found["source_lengths"] += lengths.tolist()
        if sample.get("target") is not None and sample["target"].dim() == 2:
            found["target_lengths"] += sample["target"].ne(padding).sum(1).tolist()
    return {"sentences": len(found["ids"]), **found}


def odd_one(batch: dict) -> tuple[int, int, int] | None:
    """(id, source, target length) of the sentence whose lengths differ most; eos counts.

    None if none has ODD_LENGTH tokens on one side, and ODD_RATIO times those of the other.
    """
    pairs = zip(batch["ids"], batch["source_lengths"], batch["target_lengths"])
    odd = [pair for pair in pairs if max(pair[1:]) >= max(ODD_LENGTH, ODD_RATIO * min(pair[1:]))]
    return max(odd, key=lambda pair: max(pair[1:]) / max(min(pair[1:]), 1), default=None)


def longest(batch: dict) -> tuple[int, int]:
    """The longest sentence of either side and the median of the source, in tokens; zeros without lengths."""
    lengths = batch["source_lengths"] + batch["target_lengths"]
    return (max(lengths), int(statistics.median(batch["source_lengths"] or lengths))) if lengths else (0, 0)
