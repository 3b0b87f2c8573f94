"""What became of all items: accuracy with its interval, beside chance."""

from __future__ import annotations

import json
import math
from pathlib import Path

from ..data.lines import write_lines
from .scoring import Scored

Z = 1.959964  # 95% of a normal distribution lie within so many standard deviations


def wilson(correct: int, total: int) -> tuple[float, float]:
    """95% interval of a proportion (Wilson 1927), total > 0; it stays within 0 and 1 and is never a single point."""
    share, spread = correct / total, Z * Z / total
    half = math.sqrt(spread * (share * (1 - share) + spread / 4))
    return max(0.0, (share + spread / 2 - half) / (1 + spread)), min(1.0, (share + spread / 2 + half) / (1 + spread))


def summary(scored: list[Scored], normalise: str) -> dict:
    """accuracy, interval and chance are over the items with an answer, None if there is none of them."""
    answered = [one for one in scored if one.correct is not None]
    correct = sum(one.correct for one in answered)
    return {
        "items": len(scored),
        "answered": len(answered),
        "correct": correct,
        "accuracy": correct / len(answered) if answered else None,
        "interval": wilson(correct, len(answered)) if answered else None,
        "chance": sum(1 / len(one.scores) for one in answered) / len(answered) if answered else None,
        "normalise": normalise,
        "truncated": sum(one.truncated for one in scored),
        "apart": sum(one.apart for one in scored),
        "unknown": sum(one.unknown for one in scored),
    }


def as_text(found: dict) -> str:
    """What `summary` found as lines for the terminal: accuracy and its interval, chance, what to know of the items."""
    lines = [f"{found['items']:,} item{'s' * (found['items'] != 1)}; log-likelihood, normalised: {found['normalise']}"]
    if found["answered"]:
        low, high = found["interval"]
        lines.append(
            f"accuracy {found['accuracy']:.1%} (95%: {low:.1%} to {high:.1%}), {found['correct']:,} of "
            f"{found['answered']:,}; chance {found['chance']:.1%}"
        )
    else:
        lines.append("no accuracy: no item has an answer")
    notes = {
        "truncated": "{:,} contexts were longer than the model takes: their beginnings are left out",
        "apart": "{:,} items with a choice whose pieces would merge with the context's: both were cut apart",
        "unknown": "{:,} pieces of choices are not in the dictionary",
    }
    return "\n".join([*lines, *(note.format(found[name]) for name, note in notes.items() if found[name])])


def write_results(path: Path, scored: list[Scored]) -> None:
    """One JSON object an item, in the order of the items."""
    write_lines(path, (json.dumps(one.as_dict(), ensure_ascii=False) for one in scored))
