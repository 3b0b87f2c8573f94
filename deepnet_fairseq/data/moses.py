"""Moses' way of tokenising and cleaning: sacremoses, and what it lacks.

Where it differs from the Perl originals: docs/corpora.md, "sacremoses and the Perl originals".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce

# What Perl's \s matches; Python's also matches \x1c to \x1f.
SPACE = re.compile("[\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
LONGEST_WORD = 1000  # characters


@dataclass(frozen=True)
class Chain:
    """What is done to a line, in this order; tokenising, with special characters escaped, always is.

    normalise: normalize-punctuation.perl, then remove-non-printing-char.perl; aggressive: tokenizer.perl -a, which
    splits at hyphens; lowercase: lowercase.perl.
    """

    normalise: bool = False
    aggressive: bool = False
    lowercase: bool = False

    def __str__(self) -> str:
        normalise = "normalise punctuation, remove what is not printed, " if self.normalise else ""
        aggressive = ", splitting at hyphens" if self.aggressive else ""
        return f"{normalise}tokenise{aggressive}{', lower-case' if self.lowercase else ''}"


def line_function(lang: str, chain: Chain) -> Callable[[str], str]:
    """line in `lang` ("de") -> line."""
    import regex
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    functions = []
    if chain.normalise:
        normaliser = MosesPunctNormalizer(lang, perl_parity=True)
        functions.append(lambda line: normaliser.normalize(f"{line}\n"))  # Perl's rules see the end of the line, too
        functions.append(partial(regex.compile(r"\p{C}").sub, " "))
    functions.append(
        partial(MosesTokenizer(lang).tokenize, aggressive_dash_splits=chain.aggressive, return_str=True, escape=True)
    )
    if chain.lowercase:
        functions.append(lowercase)

    return lambda line: reduce(lambda text, function: function(text), functions, line)


def lowercase(line: str) -> str:
    """Perl's lc, which knows no final sigma."""
    return "".join(map(str.lower, line)) if "Σ" in line else line.lower()


@dataclass(frozen=True)
class Limits:
    """ratio: how many times as many words one side may have as the other; least and most: words of each side."""

    ratio: float
    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least} to {self.most} words, at most {self.ratio:g} times as many on one side"


def clean(pairs: Iterable[tuple[str, str]], limits: Limits) -> Iterator[tuple[str, str]]:
    """The pairs within the limits, white space made single blanks; a bar, Moses' separator of factors, is removed."""
    for pair in pairs:
        kept = tuple(SPACE.sub(" ", line.replace("|", "")).strip(" ") for line in pair)
        if _fit(kept, limits):
            yield kept


def _fit(pair: tuple[str, str], limits: Limits) -> bool:
    words = [line.split(" ") for line in pair if line]
    if len(words) < 2:
        return False
    short, long = sorted(map(len, words))
    if short < limits.least or long > limits.most or long / short > limits.ratio:
        return False
    return all(len(word) <= LONGEST_WORD for side in words for word in side)
