"""Tokenise and clean text as the Perl scripts of Moses do, by sacremoses and additions to it.

docs/corpora.md, "sacremoses and the Perl originals", lists the differences that remain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

# What Perl's \s matches besides the blank, as ranges of a pattern; Python's \s also matches \x1c to \x1f.
WHITE = "\t\n\v\f\r\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
SPACE = re.compile(f"[ {WHITE}]+")
UNEVEN = re.compile(f"[{WHITE}][ {WHITE}]*| [ {WHITE}]+")  # all white space except single blanks, which stay
LONGEST_WORD = 1000  # characters, as in clean-corpus-n.perl
PATTERN = frozenset(r".^$*+?{}[]\|()")  # characters with a special meaning in a regular expression


@dataclass(frozen=True)
class Chain:
    """Scripts of Moses that process a line; tokenizer.perl, which also escapes special characters, is always one.

    normalise: whether normalize-punctuation.perl and then remove-non-printing-char.perl come first
    aggressive: whether tokenizer.perl has its flag -a, with which it splits at hyphens
    lowercase: whether lowercase.perl comes last
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
    """Return the function that processes a line of a language, as "de", by the scripts of `chain`."""
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
    """Return a function that normalises the punctuation of a line like sacremoses' normalize, but faster.

    The rules are applied to the line with its "\\n", which Perl's rules see too.

    rules: (pattern, replacement) of sacremoses' MosesPunctNormalizer
    """
    replacing: list[Callable[[str], str]] = []
    for pattern, new in rules:
        if PATTERN.isdisjoint(pattern):  # plain text, for which str.replace is faster
            replacing.append(lambda line, old=pattern, new=new: line.replace(old, new))
        elif pattern == " +":  # by a single blank: single blanks need no replacement
            replacing.append(partial(re.compile("  +").sub, new))
        else:
            replacing.append(partial(re.compile(pattern).sub, new))

    def normalise(line: str) -> str:
        line = f"{line}\n"
        for replace in replacing:
            line = replace(line)
        return line.strip()

    return normalise


def tokeniser(lang: str):
    """Return sacremoses' MosesTokenizer, changed so that it looks letters and prefixes up in sets, which is faster."""
    from sacremoses import MosesTokenizer

    class FasterTokenizer(MosesTokenizer):
        alphabetic: frozenset[str] = frozenset()
        lower: frozenset[str] = frozenset()

        def islower(self, text):
            """Return whether all characters are lower-case letters, as MosesTokenizer.islower."""
            return self.lower.issuperset(text)

        def isanyalpha(self, text):
            """Return whether any character is a letter, as MosesTokenizer.isanyalpha."""
            return not self.alphabetic.isdisjoint(text)

    tokenizer = FasterTokenizer(lang)
    tokenizer.alphabetic = frozenset(tokenizer.IsAlpha)
    tokenizer.lower = frozenset(tokenizer.IsLower)
    tokenizer.NONBREAKING_PREFIXES = frozenset(tokenizer.NONBREAKING_PREFIXES)
    return tokenizer


def lowercase(line: str) -> str:
    """Return the line in lower case as Perl's lc makes it, where Σ always becomes σ.

    Python's str.lower makes it ς at the end of a word; a Σ that is lower-cased alone is at no end.
    """
    if "Σ" in line:
        return "".join(map(str.lower, line))
    return line.lower()


@dataclass(frozen=True)
class Limits:
    """Limits of a sentence pair.

    ratio: at most so many times as many words on one side as on the other
    least, most: words of each side
    """

    ratio: float
    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least} to {self.most} words, at most {self.ratio:g} times as many on one side"


def clean(pairs: Iterable[tuple[str, str]], limits: Limits) -> Iterator[tuple[str, str]]:
    """Yield the pairs within the limits, with single blanks between words and without "|", as clean-corpus-n.perl.

    The bar separates the factors of a word in Moses.
    """
    for pair in pairs:
        source, target = (UNEVEN.sub(" ", line.replace("|", "")).strip(" ") for line in pair)
        if _within((source, target), limits):
            yield source, target


def _within(pair: tuple[str, str], limits: Limits) -> bool:
    """Return whether a pair has text on both sides, is within the limits, and has no word above LONGEST_WORD.

    The words of each side are separated by single blanks.
    """
    if not all(pair):
        return False

    short, long = sorted(line.count(" ") + 1 for line in pair)
    if short < limits.least or long > limits.most or long / short > limits.ratio:
        return False

    # the words of a line that is short enough as a whole need not be looked at
    return all(len(line) <= LONGEST_WORD or max(map(len, line.split(" "))) <= LONGEST_WORD for line in pair)
