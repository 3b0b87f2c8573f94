"""Tests of Moses' cleaning and tokenising, and of learning BPE.

The peers are Perl, sacremoses (a port of Moses' scripts to Python) and subword-nmt.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from random import Random

import pytest
import regex
import sacremoses
from subword_nmt import learn_bpe as learning

from deepnet_fairseq.data.bilingual import most_frequent
from deepnet_fairseq.data.moses import WHITE, Chain, Limits, clean, line_function, lowercase

# IWSLT-14's limits of cleaning (clean-corpus-n.perl -ratio 1.5 1 175): ratio of lengths in words, shortest, longest
IWSLT = Limits(1.5, 1, 175)

needs_perl = pytest.mark.skipif(shutil.which("perl") is None, reason="compares with Perl's own rules")


def perl(code: str, text: str) -> str:
    """Return what Perl makes of `text`, which is $_ in its code; both are UTF-8."""
    done = subprocess.run(["perl", "-CS", "-0777", "-pe", code], input=text.encode(), capture_output=True, check=True)
    return done.stdout.decode()


def words(count: int) -> str:
    """Return a sentence of so many words."""
    return " ".join(["w"] * count)


FIRST = ("first", "pair")  # stands before the pair that is tested, and is kept
FIT = {
    "one word each": ("a", "b"),
    "1.5 times as long": (words(2), words(3)),
    "1.5 times as short": (words(6), words(4)),
    "the longest sentence": (words(175), words(175)),
    "the longest word": ("x" * 1000, "b"),
}
UNFIT = {  # where there is a limit, the pair is outside of it
    "no source": ("", "a"),
    "no target": ("a", ""),
    "a blank side": (" \t\u00a0\u2003 ", "a"),
    "more than 1.5 times as long": (words(15), words(23)),
    "more than 1.5 times as short": (words(4), words(2)),
    "too long a sentence": (words(176), words(175)),
    "too long a word": ("a", "x" * 1001),
    "bars alone": ("|", "a"),
}


@pytest.mark.parametrize("kind", FIT)
def test_a_pair_that_is_fit_for_training_is_kept(kind):
    assert list(clean([FIRST, FIT[kind]], IWSLT)) == [FIRST, FIT[kind]]


@pytest.mark.parametrize("kind", UNFIT)
def test_a_pair_that_is_not_fit_for_training_is_dropped(kind):
    assert list(clean([FIRST, UNFIT[kind]], IWSLT)) == [FIRST]


def test_a_pair_below_the_shortest_length_is_dropped():
    two_to_three_words = Limits(1.5, 2, 3)
    long_enough = (words(2), words(3))
    too_short = (words(1), words(1))

    assert list(clean([too_short, long_enough], two_to_three_words)) == [long_enough]


def test_cleaning_leaves_single_blanks_and_no_bars():
    """A bar separates the factors of a word in Moses."""
    assert list(clean([("  a\u00a0 b\t", "c| d|e ")], IWSLT)) == [("a b", "c de")]


@needs_perl
def test_white_space_is_what_perl_takes_for_it():
    characters = "".join(f"<{chr(code)}>" for code in range(1, 0x3100))  # all white space of Unicode is below

    assert re.sub(f"[ {WHITE}]+", "_", characters) == perl(r"s/\s+/_/g", characters)


@needs_perl
@pytest.mark.parametrize("text", ["ÄÖÜ ẞ É", "ΟΔΟΣ ΣΑΣ", "İSTANBUL ISPARTA", "ДОБРЫЙ", "ǅ ǈ K Å", "ﬁ STRASSE ŉ"])
def test_lower_case_is_perl_s(text):
    assert lowercase(text) == perl("$_ = lc", text)


@pytest.mark.parametrize(
    ("lang", "chain", "line", "tokenised"),
    [
        (
            "de",
            Chain(),
            "Das ist's: [A|B] & <C>, 1,5 z.B.",
            "Das ist &apos; s : &#91; A &#124; B &#93; &amp; &lt; C &gt; , 1,5 z.B.",
        ),
        ("en", Chain(aggressive=True), "well-known 1-2 -x", "well @-@ known 1 @-@ 2 -x"),
        ("de", Chain(lowercase=True), "ÄRGER & Co.", "ärger &amp; co."),
        ("en", Chain(lowercase=True), "R&AMP;D", "r &amp; amp ; d"),
    ],
)
def test_a_line_is_tokenised_escaped_and_lower_cased_as_the_chain_says(lang, chain, line, tokenised):
    """The tokeniser always escapes characters that Moses gives a meaning; "aggressive" splits words at hyphens."""
    assert line_function(lang, chain)(line) == tokenised


CHARACTERS = "abC 12.\"'`,;:!?()%-–—„“”’‘«»\u00a0\u2003…\r\tº cm\u2028é\x07$&|<>[]  "


def random_lines(count: int) -> list[str]:
    """Draw lines of up to 59 CHARACTERS, which are those that the rules treat."""
    random = Random(1)
    lines = []
    for _ in range(count):
        length = random.randrange(60)
        lines.append("".join(random.choices(CHARACTERS, k=length)))
    return lines


ABBREVIATIONS = ["Dr. A. Smith vs. the U.S. no. 5 and No. x etc.", "bzw. Abb. 3 z.B. so."]


@pytest.mark.parametrize("lang", ["de", "en", "fr"])
def test_lines_are_normalised_and_tokenised_as_sacremoses_does(lang):
    """The package compiles sacremoses' rules once, for speed."""
    normalise = sacremoses.MosesPunctNormalizer(lang, perl_parity=True).normalize
    tokenise = sacremoses.MosesTokenizer(lang).tokenize
    process = line_function(lang, Chain(normalise=True, aggressive=True))

    for line in random_lines(500) + ABBREVIATIONS:
        printable = regex.sub(r"\p{C}", " ", normalise(f"{line}\n"))  # remove-non-printing-char.perl
        expected = tokenise(printable, aggressive_dash_splits=True, return_str=True, escape=True)
        assert process(line) == expected


def learnt_merges(text: list[str]) -> str:
    """Return the merges of a BPE that subword-nmt learns from the lines of a text, at most 300, one a line."""
    codes = io.StringIO()
    learning.learn_bpe(text, codes, 300)
    return codes.getvalue()


def test_a_faster_maximum_does_not_change_the_merges_of_subword_nmt(monkeypatch):
    """subword-nmt asks for the most frequent pair at each merge; among equally frequent ones it takes the greatest."""
    text = [" ".join(line.split()) for line in random_lines(400)]
    merges = learnt_merges(text)
    assert len(merges.splitlines()) > 150

    monkeypatch.setattr(learning, "max", most_frequent, raising=False)  # goes before Python's own

    assert learnt_merges(text) == merges
