"""Words of messages that count things."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number of things as "1 file" or "1,234 files"; noun: in the singular; plural: None for noun + "s"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {plural or noun + 's'}"
