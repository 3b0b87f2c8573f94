"""Tests of Moses' cleaning and tokenising, of learning BPE, and of the text within tags."""

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

IWSLT = Limits(1.5, 1, 175)  # ratio of lengths, and words of the shortest and the longest sentence

needs_perl = pytest.mark.skipif(shutil.which("perl") is None, reason="compares with Perl's own rules")


def perl(code: str, text: str) -> str:
    """Run Perl on `text` as $_; both are UTF-8."""
    done = subprocess.run(["perl", "-CS", "-0777", "-pe", code], input=text.encode(), capture_output=True, check=True)
    return done.stdout.decode()


def words(count: int) -> str:
    return " ".join(["w"] * count)


FIRST = ("first", "pair")
FIT = {
    "one word each": ("a", "b"),
    "1.5 times as long": (words(2), words(3)),
    "1.5 times as short": (words(6), words(4)),
    "the longest sentence": (words(175), words(175)),
    "the longest word": ("x" * 1000, "b"),
}
UNFIT = {
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
    long_enough = (words(2), words(3))

    assert list(clean([("a", "b"), long_enough], Limits(1.5, 2, 3))) == [long_enough]


def test_cleaning_leaves_single_blanks_and_no_bars():
    assert list(clean([("  a\u00a0 b\t", "c| d|e ")], IWSLT)) == [("a b", "c de")]


@needs_perl
def test_white_space_is_what_perl_takes_for_it():
    characters = "".join(f"<{chr(code)}>" for code in range(1, 0x3100) if not 0xD800 <= code < 0xE000)

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
def test_a_line_goes_through_the_chain_of_moses_scripts(lang, chain, line, tokenised):
    assert line_function(lang, chain)(line) == tokenised


LETTERS = "abC 12.\"'`,;:!?()%-–—„“”’‘«»\u00a0\u2003…\r\tº cm\u2028é\x07$&|<>[]  "


def random_lines(count: int) -> list[str]:
    """Draw lines of the characters that the rules treat."""
    random = Random(1)
    return ["".join(random.choices(LETTERS, k=random.randrange(60))) for _ in range(count)]


@pytest.mark.parametrize("lang", ["de", "en", "fr"])
def test_rules_that_are_compiled_once_give_the_lines_of_plain_sacremoses(lang):
    normalise = sacremoses.MosesPunctNormalizer(lang, perl_parity=True).normalize
    tokenise = sacremoses.MosesTokenizer(lang).tokenize
    compiled = line_function(lang, Chain(normalise=True, aggressive=True))

    for line in (*random_lines(500), "Dr. A. Smith vs. the U.S. no. 5 and No. x etc.", "bzw. Abb. 3 z.B. so."):
        printable = regex.sub(r"\p{C}", " ", normalise(f"{line}\n"))
        assert compiled(line) == tokenise(printable, aggressive_dash_splits=True, return_str=True, escape=True)


def learnt_merges(text: list[str]) -> str:
    """Return the codes that subword-nmt learns."""
    codes = io.StringIO()
    learning.learn_bpe(text, codes, 300)
    return codes.getvalue()


def test_merges_are_learnt_in_subword_nmt_s_order(monkeypatch):
    """Also among pairs of equal frequency, and with its pruning."""
    text = [" ".join(line.split()) for line in random_lines(400)]
    expected = learnt_merges(text)
    assert len(expected.splitlines()) > 150

    monkeypatch.setattr(learning, "max", most_frequent, raising=False)

    assert learnt_merges(text) == expected
