"""Moses' way of tokenising and cleaning: sacremoses, and what it lacks.

Where it differs from the Perl originals: docs/corpora.md, "sacremoses and the Perl originals".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce

# What Perl's \s matches; Python's also matches \x1c to \x1f.
WHITE = "\t\n\v\f\r\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # and the blank
SPACE = re.compile(f"[ {WHITE}]+")
UNEVEN = re.compile(f"[{WHITE}][ {WHITE}]*| [ {WHITE}]+")  # all but single blanks, which may stay as they are
LONGEST_WORD = 1000  # characters
PATTERN = frozenset(r".^$*+?{}[]\|()")  # what means more than itself in one


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
    """What sacremoses' normalize makes of a line and its end, which Perl's rules see as well.

    rules: patterns and what to put for them. Each is compiled once; plain text needs no pattern, and blanks become one
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
    """sacremoses' MosesTokenizer, which asks for the kind of a letter by a set of them that is made once."""
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
