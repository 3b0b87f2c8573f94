"""Tokenise and clean as Moses does, by sacremoses and additions to it.

docs/corpora.md, "sacremoses and the Perl originals", lists differences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

# Characters that Perl's \s matches; Python's also matches \x1c to \x1f.
WHITE = "\t\n\v\f\r\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # and the blank
SPACE = re.compile(f"[ {WHITE}]+")
UNEVEN = re.compile(f"[{WHITE}][ {WHITE}]*| [ {WHITE}]+")  # all white space except single blanks, which stay
LONGEST_WORD = 1000  # characters
PATTERN = frozenset(r".^$*+?{}[]\|()")  # characters with a special meaning in a pattern


@dataclass(frozen=True)
class Chain:
    """Processing of a line, in this order; tokenising, with special characters escaped, always takes place.

    normalise: normalize-punctuation.perl, then remove-non-printing-char.perl; aggressive: tokenizer.perl -a, which
    splits at hyphens; lowercase: lowercase.perl.
    """

    normalise: bool = False
    aggressive: bool = False
    lowercase: bool = False

    def __str__(self) -> str:
        steps = []
        if self.normalise:
            steps += ["normalise punctuation", "remove what is not printed"]
        steps.append("tokenise")
        if self.aggressive:
            steps.append("splitting at hyphens")
        if self.lowercase:
            steps.append("lower-case")
        return ", ".join(steps)


def line_function(lang: str, chain: Chain) -> Callable[[str], str]:
    """Return the function that processes a line in `lang` ("de")."""
    import regex
    from sacremoses import MosesPunctNormalizer

    functions: list[Callable[[str], str]] = []
    if chain.normalise:
        functions.append(normaliser(MosesPunctNormalizer(lang, perl_parity=True).substitutions))
        functions.append(partial(regex.compile(r"\p{C}").sub, " "))
    functions.append(
        partial(tokeniser(lang).tokenize, aggressive_dash_splits=chain.aggressive, return_str=True, escape=True)
    )
    if chain.lowercase:
        functions.append(lowercase)

    def process(line: str) -> str:
        for function in functions:
            line = function(line)
        return line

    return process


def normaliser(rules: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    """Return sacremoses' normalize, applied to a line with its end, which Perl's rules see too.

    rules: patterns and replacements. For speed each pattern is compiled once, plain text is replaced without one, and
    blanks become one only where there are two.
    """
    replacing: list[Callable[[str], str]] = []
    for pattern, new in rules:
        if PATTERN.isdisjoint(pattern):
            replacing.append(lambda line, old=pattern, new=new: line.replace(old, new))
        elif pattern == " +":
            replacing.append(partial(re.compile("  +").sub, new))
        else:
            replacing.append(partial(re.compile(pattern).sub, new))

    def normalise(line: str) -> str:
        line = f"{line}\n"
        for function in replacing:
            line = function(line)
        return line.strip()

    return normalise


def tokeniser(lang: str):
    """Make sacremoses' MosesTokenizer, which looks letters and prefixes up in sets that are made once, for speed."""
    from sacremoses import MosesTokenizer

    class Tokeniser(MosesTokenizer):
        alphabetic: frozenset[str] = frozenset()
        lower: frozenset[str] = frozenset()

        def islower(self, text):
            return self.lower.issuperset(text)

        def isanyalpha(self, text):
            return not self.alphabetic.isdisjoint(text)

    tokenizer = Tokeniser(lang)
    tokenizer.alphabetic = frozenset(tokenizer.IsAlpha)
    tokenizer.lower = frozenset(tokenizer.IsLower)
    tokenizer.NONBREAKING_PREFIXES = frozenset(tokenizer.NONBREAKING_PREFIXES)
    return tokenizer


def lowercase(line: str) -> str:
    """Lower-case as Perl's lc, which has no final sigma."""
    if "Σ" in line:  # as a character of its own, it never is at the end of a word
        return "".join(map(str.lower, line))
    return line.lower()


@dataclass(frozen=True)
class Limits:
    """Limits of a pair: ratio of the sides' lengths in words, least and most words of each side."""

    ratio: float
    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least} to {self.most} words, at most {self.ratio:g} times as many on one side"


def clean(pairs: Iterable[tuple[str, str]], limits: Limits) -> Iterator[tuple[str, str]]:
    """Yield the pairs within the limits, with single blanks, and without bars, Moses' separator of factors."""
    for pair in pairs:
        kept = tuple(UNEVEN.sub(" ", line.replace("|", "")).strip(" ") for line in pair)
        if _fit(kept, limits):
            yield kept


def _fit(pair: tuple[str, str], limits: Limits) -> bool:
    """Return whether a pair has text on both sides, is within the limits, and has no word above LONGEST_WORD."""
    if not all(pair):
        return False

    short, long = sorted(line.count(" ") + 1 for line in pair)
    if short < limits.least or long > limits.most or long / short > limits.ratio:
        return False

    # the words of a line that is short enough as a whole need not be looked at
    return all(len(line) <= LONGEST_WORD or max(map(len, line.split(" "))) <= LONGEST_WORD for line in pair)
