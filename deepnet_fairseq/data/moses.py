"""Tokenise and clean as Moses does, by sacremoses and additions to it.

docs/corpora.md, "sacremoses and the Perl originals", lists differences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce

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
        normalise = "normalise punctuation, remove what is not printed, " if self.normalise else ""
        aggressive = ", splitting at hyphens" if self.aggressive else ""
        return f"{normalise}tokenise{aggressive}{', lower-case' if self.lowercase else ''}"


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

    return lambda line: reduce(lambda text, function: function(text), functions, line)


def normaliser(rules: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    """Return sacremoses' normalize, applied to a line with its end, which Perl's rules see too.

    rules: patterns and replacements. Each is compiled once; plain text needs no pattern, and blanks become one
    only where there are two.
    """
    replace: list[Callable[[str], str]] = []
    for pattern, new in rules:
        if PATTERN.isdisjoint(pattern):
            replace.append(lambda line, old=pattern, new=new: line.replace(old, new))
        else:
            replace.append(partial(re.compile("  +" if pattern == " +" else pattern).sub, new))

    def normalise(line: str) -> str:
        line = f"{line}\n"
        for function in replace:
            line = function(line)
        return line.strip()

    return normalise


def tokeniser(lang: str):
    """Make sacremoses' MosesTokenizer, with a set of letters that is made once in place of its look-ups."""
    from sacremoses import MosesTokenizer

    class Tokeniser(MosesTokenizer):
        alphabetic = lower = frozenset()

        def islower(self, text):
            return self.lower.issuperset(text)

        def isanyalpha(self, text):
            return not self.alphabetic.isdisjoint(text)

    made = Tokeniser(lang)
    made.alphabetic, made.lower = frozenset(made.IsAlpha), frozenset(made.IsLower)
    made.NONBREAKING_PREFIXES = frozenset(made.NONBREAKING_PREFIXES)
    return made


def lowercase(line: str) -> str:
    """Lower-case as Perl's lc, which has no final sigma."""
    return "".join(map(str.lower, line)) if "Σ" in line else line.lower()


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
    if not all(pair):
        return False
    short, long = sorted(line.count(" ") + 1 for line in pair)
    if short < limits.least or long > limits.most or long / short > limits.ratio:
        return False
    return all(len(line) <= LONGEST_WORD or max(map(len, line.split(" "))) <= LONGEST_WORD for line in pair)
