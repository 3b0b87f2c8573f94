"""Tokenise and clean text as the Perl scripts of Moses do, by sacremoses and additions to it.

docs/corpora.md, "sacremoses and the Perl originals", lists the differences that remain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

# Content of [...] in a pattern: white space as Perl's \s, but the blank. Python's \s also matches \x1c to \x1f.
WHITE = "\t\n\v\f\r\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
UNEVEN = re.compile(f"[{WHITE}][ {WHITE}]*| [ {WHITE}]+")  # all white space except single blanks, which stay
LONGEST_WORD = 1000  # characters, as in clean-corpus-n.perl
PATTERN = frozenset(r".^$*+?{}[]\|()")  # characters with a special meaning in a regular expression


@dataclass(frozen=True)
class Chain:
    """Scripts of Moses that process a line of text, one after another.

    tokenizer.perl, which also escapes special characters, is always one of them.

    normalise: whether normalize-punctuation.perl and remove-non-printing-char.perl process the line before that
    aggressive: whether tokenizer.perl has its flag -a, with which it splits words at hyphens
    lowercase: whether lowercase.perl processes the line after that
    """

    normalise: bool = False
    aggressive: bool = False
    lowercase: bool = False

    def __str__(self) -> str:
        """Return what the scripts do, in words, in their order."""
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
    """Return a function that does what the scripts in `chain` do with a line.

    lang: code of the line's language, as "de"
    """
    import regex
    from sacremoses import MosesPunctNormalizer

    functions: list[Callable[[str], str]] = []
    if chain.normalise:
        # perl_parity: with the rules of the Perl script, from which sacremoses' own differ
        functions.append(normaliser(MosesPunctNormalizer(lang, perl_parity=True).substitutions))
        # remove-non-printing-char.perl: a blank for each character of Unicode's category C (control, format, ...)
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
    """Return a function that normalises the punctuation of a line as normalize-punctuation.perl does.

    It applies the rules of sacremoses faster than sacremoses' own normalize, and to a line with its end.

    rules: (pattern, replacement) of sacremoses' MosesPunctNormalizer, in the order in which they are applied
    """
    replacements: list[Callable[[str], str]] = []  # one function for each rule
    for pattern, new in rules:
        if PATTERN.isdisjoint(pattern):  # plain text, for which str.replace is faster
            replacements.append(lambda line, old=pattern, new=new: line.replace(old, new))
        elif pattern == " +":  # its replacement is a single blank, so that single blanks can be left alone
            replacements.append(partial(re.compile("  +").sub, new))
        else:
            replacements.append(partial(re.compile(pattern).sub, new))

    def normalise(line: str) -> str:
        line = f"{line}\n"  # Perl's rules see the end of the line too
        for replace in replacements:
            line = replace(line)
        return line.strip()

    return normalise


def tokeniser(lang: str):
    """Return sacremoses' MosesTokenizer for a language, as "de", but a faster one.

    sacremoses makes a set of all letters for each look-up, and looks abbreviations up in a list; here these sets are
    made once.
    """
    from sacremoses import MosesTokenizer

    class FasterTokenizer(MosesTokenizer):
        """MosesTokenizer that has the set of all letters, and the set of all lower-case letters."""

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

    Python's str.lower makes it ς at the end of a word of two or more letters.
    """
    if "Σ" in line:
        return "".join(map(str.lower, line))  # a character alone is not the end of a word
    return line.lower()


@dataclass(frozen=True)
class Limits:
    """Limits for the lengths of a sentence pair, by which clean-corpus-n.perl keeps or drops it.

    ratio: the longer side may have at most this many times the words of the shorter one
    least, most: how many words each side must have at least, and may have at most
    """

    ratio: float
    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least} to {self.most} words, at most {self.ratio:g} times as many on one side"


def clean(pairs: Iterable[tuple[str, str]], limits: Limits) -> Iterator[tuple[str, str]]:
    """Yield the sentence pairs that clean-corpus-n.perl keeps, as it changes them.

    It keeps those within the limits. It removes "|", which separates the factors of a word in Moses, and puts single
    blanks between words.
    """
    for pair in pairs:
        source, target = (UNEVEN.sub(" ", line.replace("|", "")).strip(" ") for line in pair)
        if _within((source, target), limits):
            yield source, target


def _within(pair: tuple[str, str], limits: Limits) -> bool:
    """Return whether a pair has text on both sides, is within the limits, and has no word above LONGEST_WORD.

    pair: source and target, each with single blanks between words
    """
    if not all(pair):
        return False

    short, long = sorted(line.count(" ") + 1 for line in pair)  # words of the shorter and of the longer side
    if short < limits.least or long > limits.most or long / short > limits.ratio:
        return False

    # only a line above LONGEST_WORD as a whole can have such a word
    long_lines = [line for line in pair if len(line) > LONGEST_WORD]
    return all(len(word) <= LONGEST_WORD for line in long_lines for word in line.split(" "))
