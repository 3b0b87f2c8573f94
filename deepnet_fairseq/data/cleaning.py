"""Which sentence pairs are fit for training, as Moses' clean-corpus-n.perl decides it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# What Perl's \s matches; Python's also matches \x1c to \x1f.
SPACE = re.compile("[\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
LONGEST_WORD = 1000  # characters


@dataclass(frozen=True)
class Limits:
    """ratio: how many times as many words one side may have as the other; least and most: words of each side."""

    ratio: float
    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least} to {self.most} words, at most {self.ratio:g} times as many on one side"


def clean(pairs: Iterable[tuple[str, str]], limits: Limits) -> Iterator[tuple[str, str]]:
    """The pairs within the limits, white space made single blanks.

    A bar, Moses' separator of factors, is removed unless the first pair has one, and is then taken for that separator.
    """
    factored = None
    for pair in pairs:
        if factored is None:
            factored = any("|" in line for line in pair)
        kept = tuple(_normal(line, factored) for line in pair)
        if _fit(kept, limits):
            yield kept


def _normal(line: str, factored: bool) -> str:
    return SPACE.sub(" ", line if factored else line.replace("|", "")).strip(" ")


def _fit(pair: tuple[str, str], limits: Limits) -> bool:
    words = [line.split(" ") for line in pair if line]
    if len(words) < 2:
        return False
    first, second = map(len, words)
    if not (limits.least <= min(first, second) and max(first, second) <= limits.most):
        return False
    if max(first, second) / min(first, second) > limits.ratio:
        return False
    return all(len(factor) <= LONGEST_WORD for side in words for word in side for factor in word.split("|"))
