"""Words of messages: numbers of things, and the flags that misspelt ones resemble."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SIMILAR = 0.7  # lowest ratio of difflib, of names without hyphens in front, at which a flag is suggested; at most 1


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number of things as "1 file" or "1,234 files"; noun: in the singular; plural: None for noun + "s"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {plural or noun + 's'}"


def did_you_mean(words: Iterable[str], known_flags: Iterable[str]) -> str:
    """Return "did you mean --beam? ", with a blank at the end, if one of the words is "--bean"; "" if none is similar.

    words: those that a parser does not know, flags and their values; known_flags: the parser's, as "--beam".
    """
    flag_of_name = {flag.lstrip("-"): flag for flag in known_flags}
    nearest = []
    for word in words:
        if word.startswith("-"):
            name = word.lstrip("-").partition("=")[0]  # bean of --bean=5
            names = difflib.get_close_matches(name, flag_of_name, n=1, cutoff=SIMILAR)
            nearest += [flag_of_name[name] for name in names]
    return f"did you mean {' and '.join(nearest)}? " if nearest else ""
