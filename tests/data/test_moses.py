"""Tests of Moses' cleaning and tokenising, of learning BPE, and of the text within tags."""

import io
import shutil
import subprocess
from random import Random

import pytest
import regex
import sacremoses
from subword_nmt import learn_bpe as learning

from deepnet_fairseq.data.bilingual import most_frequent
from deepnet_fairseq.data.moses import SPACE, Chain, Limits, clean, line_function, lowercase

IWSLT = Limits(1.5, 1, 175)


def perl(code: str, text: str) -> str:
    """Run Perl on `text` as $_; both are UTF-8."""
    done = subprocess.run(["perl", "-CS", "-0777", "-pe", code], input=text.encode(), capture_output=True, check=True)
    return done.stdout.decode()


def words(count: int, word: str = "w") -> str:
    return " ".join([word] * count)


FIRST = ("first", "pair")
KEPT = (  # one word each; a length ratio of exactly 1.5 either way; the longest sentence; the longest word
    ("a", "b"), (words(2), words(3)), (words(6), words(4)), (words(175), words(175)), ("x" * 1000, "b"),
)  # fmt: skip
DROPPED = (  # an empty or blank side; a length ratio above 1.5; too long a sentence; too long a word; bars only
    ("", "a"), ("a", ""), (" \t\u00a0\u2003 ", "a"), (words(15), words(23)), (words(4), words(2)),
    (words(176), words(175)), ("a", "x" * 1001), ("|", "a"),
)  # fmt: skip


def test_pairs_fit_for_training():
    assert list(clean([FIRST, *KEPT], IWSLT)) == [FIRST, *KEPT]
    assert list(clean([FIRST, *DROPPED], IWSLT)) == [FIRST]
    assert list(clean([("a", "b"), (words(2), words(3))], Limits(1.5, 2, 3))) == [(words(2), words(3))]
    assert list(clean([("  a\u00a0 b\t", "c| d|e ")], IWSLT)) == [("a b", "c de")]  # single blanks, and no bars


@pytest.mark.skipif(shutil.which("perl") is None, reason="compares with Perl's own rules")
def test_white_space_and_lower_case_are_perls():
    text = "".join(f"<{chr(code)}>" for code in range(1, 0x3100) if not 0xD800 <= code < 0xE000)
    assert SPACE.sub("_", text) == perl(r"s/\s+/_/g", text)
    for text in ("ÄÖÜ ẞ É", "ΟΔΟΣ ΣΑΣ", "İSTANBUL ISPARTA", "ДОБРЫЙ", "ǅ ǈ K Å", "ﬁ STRASSE ŉ"):
        assert lowercase(text) == perl("$_ = lc", text)


def test_chains():
    assert line_function("de", Chain())("Das ist's: [A|B] & <C>, 1,5 z.B.") == (
        "Das ist &apos; s : &#91; A &#124; B &#93; &amp; &lt; C &gt; , 1,5 z.B."
    )
    assert line_function("en", Chain(aggressive=True))("well-known 1-2 -x") == "well @-@ known 1 @-@ 2 -x"
    assert line_function("de", Chain(lowercase=True))("ÄRGER & Co.") == "ärger &amp; co."
    assert line_function("en", Chain(lowercase=True))("R&AMP;D") == "r &amp; amp ; d"


LETTERS = "abC 12.\"'`,;:!?()%-–—„“”’‘«»\u00a0\u2003…\r\tº cm\u2028é\x07$&|<>[]  "


def noise(count: int) -> list[str]:
    """Draw lines of the characters that the rules treat."""
    random = Random(1)
    return ["".join(random.choices(LETTERS, k=random.randrange(60))) for _ in range(count)]


@pytest.mark.parametrize("lang", ["de", "en", "fr"])
def test_what_is_compiled_once_changes_nothing(lang):
    """The compiled rules give the same as plain sacremoses, line by line."""
    normalise = sacremoses.MosesPunctNormalizer(lang, perl_parity=True).normalize
    tokenise = sacremoses.MosesTokenizer(lang).tokenize
    quick = line_function(lang, Chain(normalise=True, aggressive=True))
    for line in (*noise(500), "Dr. A. Smith vs. the U.S. no. 5 and No. x etc.", "bzw. Abb. 3 z.B. so."):
        plain = regex.sub(r"\p{C}", " ", normalise(f"{line}\n"))
        assert quick(line) == tokenise(plain, aggressive_dash_splits=True, return_str=True, escape=True)


def test_merges_are_learnt_in_the_same_order(monkeypatch):
    """Merges are learnt in subword-nmt's order, also among pairs of equal frequency and with its pruning."""
    text, merges = [" ".join(line.split()) for line in noise(400)], []
    for change in ({}, {"max": most_frequent}):
        with monkeypatch.context() as patch:
            for name, value in change.items():
                patch.setattr(learning, name, value, raising=False)
            merges.append(io.StringIO())
            learning.learn_bpe(text, merges[-1], 300)
    assert merges[0].getvalue() == merges[1].getvalue() and len(merges[0].getvalue().splitlines()) > 150
