"""Choose how BLEU splits text of the target language into words: as sacreBLEU does, or by M2M-100's protocol.

M2M-100's protocol splits with fairseq's examples/m2m_100/tok.sh LANG, a pipeline of Moses' Perl scripts and of other
tools, and then takes BLEU of the words. Here libraries do the same; docs/reports.md, "M2M-100's protocol", lists where
they are not those of tok.sh. Languages are named by codes of two letters, where there are such.

A tokeniser is a function from a line to the line with blanks between its words. Its name, with the version of its
library, is a part of the signature that sacreBLEU prints with a score. 13a is sacreBLEU's usual tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import regex
from sacrebleu.metrics import BLEU
from sacrebleu.tokenizers.tokenizer_base import BaseTokenizer
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from ...errors import UserError

# Target language -> name of a tokenizer for bleu_metric; sacreBLEU's 13a for all others.
DEFAULT = {"ja": "ja-mecab", "ko": "ko-mecab", "th": "th", "zh": "zh"}
TWO_LETTERS = {  # code of three letters -> of two (ISO 639-1), for the languages that some tokeniser treats
    "asm": "as", "ben": "bn", "bur": "my", "cat": "ca", "ces": "cs", "chi": "zh", "cmn": "zh", "cze": "cs",
    "deu": "de", "dut": "nl", "ell": "el", "eng": "en", "est": "et", "fin": "fi", "fra": "fr", "fre": "fr",
    "ger": "de", "gle": "ga", "gre": "el", "guj": "gu", "hin": "hi", "hun": "hu", "ice": "is", "isl": "is",
    "ita": "it", "jpn": "ja", "kan": "kn", "kor": "ko", "lav": "lv", "lit": "lt", "lvs": "lv", "lzh": "zh",
    "mal": "ml", "mar": "mr", "mya": "my", "nep": "ne", "nld": "nl", "npi": "ne", "ori": "or", "ory": "or",
    "pan": "pa", "pol": "pl", "por": "pt", "ron": "ro", "rum": "ro", "rus": "ru", "sin": "si", "slk": "sk",
    "slo": "sk", "slv": "sl", "spa": "es", "swe": "sv", "tam": "ta", "tel": "te", "tha": "th", "wuu": "zh",
    "yue": "zh", "zho": "zh",
}  # fmt: skip
# scripts that are written without blanks, so that 13a does not split them into words
SCRIPTS = ("Han", "Hiragana", "Katakana", "Hangul", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")


def _letters_of(*scripts: str) -> regex.Pattern:
    """Return a pattern that matches one letter of any of the scripts; scripts: their names in Unicode."""
    any_script = "".join(rf"\p{{{script}}}" for script in scripts)  # \p{Han}\p{Thai}
    return regex.compile(rf"[[{any_script}]&&\p{{L}}]", regex.VERSION1)  # what is both of a script and a letter


UNSPLIT = _letters_of(*SCRIPTS)
JOINED_BY_MOSES = _letters_of("Han", "Hiragana", "Katakana")  # between which Moses' detokeniser drops blanks
LETTER = regex.compile(r"\p{L}")
EXTRA = "pip install 'deepnet_fairseq[m2m]'"
LineFunction = Callable[[str], str]  # from a line to another form of it: tokenised, normalised or prepared
# what tok.sh's normalise-romanian.py and remove-diacritics.py do, one after the other
PLAIN_ROMANIAN = str.maketrans("ŞşŢţȘșȚțĂăÂâÎî", "SsTtSsTtAaAaIi")
NOT_PRINTED = regex.compile(r"\p{C}")  # control characters, and others without a shape


def _normalised(language: str) -> LineFunction:
    """Return the function that normalises the punctuation of a line, as three scripts of Moses do.

    They are replace-unicode-punctuation.perl, normalize-punctuation.perl -l LANG and remove-non-printing-char.perl.
    """
    moses = MosesPunctNormalizer(language, perl_parity=True, pre_replace_unicode_punct=True)

    def normalise(line: str) -> str:
        return _without_unprintable(moses.normalize(line + "\n"))  # the scripts' rules see the line's end as well

    return normalise


def _without_unprintable(line: str) -> str:
    """Replace each character that is not printed by a blank, as remove-non-printing-char.perl does."""
    return NOT_PRINTED.sub(" ", line)


def _moses(language: str, prepare: LineFunction = str) -> tuple[LineFunction, str]:
    """Return (tokeniser, its name) of Moses: tokenizer.perl -no-escape -l LANG after the scripts of _normalised.

    prepare: applied to each line between the two; by default it changes nothing (str of a str).
    """
    normalise = _normalised(language)
    tokenise = partial(MosesTokenizer(language).tokenize, return_str=True, escape=False)

    def split(line: str) -> str:
        return tokenise(prepare(normalise(line)))

    return split, f"sacremoses-{version('sacremoses')}"


def _romanian(language: str) -> tuple[LineFunction, str]:
    """Return (tokeniser, its name) of Romanian: Moses', of lines without diacritics."""
    split, name = _moses(language, prepare=lambda line: line.translate(PLAIN_ROMANIAN))
    return split, f"{name}.ro"


def _japanese(language: str) -> LineFunction:
    """Return the function that normalises a line and drops its blanks, before MeCab splits it."""
    normalise = _normalised(language)
    return lambda line: "".join(normalise(line).split())


def _sacrebleu(name: str, preparer_of: Callable[[str], LineFunction]) -> Callable[[str], tuple[LineFunction, str]]:
    """Return an entry of TOKENISERS for a tokenizer of sacreBLEU: a function language -> (tokeniser, its name).

    name: sacreBLEU's name of the tokenizer. preparer_of: function from the language to the function that prepares each
    line for the tokenizer.
    """

    def tokeniser_of(language: str) -> tuple[LineFunction, str]:
        """Return (tokeniser, its name); the name is sacreBLEU's, with the version of the library."""
        prepare = preparer_of(language)
        tokenise = bleu_metric(tokenize=name).tokenizer

        def split(line: str) -> str:
            return tokenise(prepare(line))

        return split, tokenise.signature()

    return tokeniser_of


def _thai(language: str) -> tuple[LineFunction, str]:
    """Return (tokeniser, its name) of PyThaiNLP; raise an ImportError without that library. language: "th"."""
    from pythainlp import word_tokenize

    def split(line: str) -> str:
        return " ".join(word_tokenize(line.strip()))

    return split, f"pythainlp-{version('pythainlp')}"


def _indic(language: str) -> tuple[LineFunction, str]:
    """Return (tokeniser, its name) of the Indic NLP library, with its normalisation before it.

    Raises an ImportError without that library.
    """
    from indicnlp.normalize.indic_normalize import IndicNormalizerFactory
    from indicnlp.tokenize.indic_tokenize import trivial_tokenize

    normalise = IndicNormalizerFactory().get_normalizer(language).normalize

    def split(line: str) -> str:
        return " ".join(trivial_tokenize(normalise(line.strip()), language))

    return split, f"indic-nlp-{version('indic-nlp-library')}"


# Target language -> function from the language to (tokeniser, its name); _moses for all others.
TOKENISERS: dict[str, Callable[[str], tuple[LineFunction, str]]] = {
    "hi": _indic,
    "ne": _indic,
    "ro": _romanian,
    "si": _indic,
    "th": _thai,
    "ja": _sacrebleu("ja-mecab", preparer_of=_japanese),
    "ko": _sacrebleu("ko-mecab", preparer_of=lambda _: _without_unprintable),
    "my": _sacrebleu("char", preparer_of=lambda _: str),
    "zh": _sacrebleu("zh", preparer_of=_normalised),
}


def base_language(code: str) -> str:
    """Return a code without its script or country, and in two letters if TWO_LETTERS has it: "zh" for "zho_Hans"."""
    base = regex.split("[_-]", code)[0].lower()
    return TWO_LETTERS.get(base, base)


def tokeniser(language: str) -> tuple[LineFunction, str]:
    """Return (tokeniser, its name) of M2M-100's protocol for a language, as "zh" or "zho_Hans".

    Raises a UserError, naming the extra to install, if its library is missing.
    """
    base = base_language(language)
    try:
        return TOKENISERS.get(base, _moses)(base)
    except (ImportError, RuntimeError):  # sacreBLEU raises a RuntimeError for a missing library
        raise UserError("--paper m2m", f"{language} needs a library; {EXTRA}") from None


class Words(BaseTokenizer):
    """A tokeniser that sacreBLEU lacks, with the interface of sacreBLEU's tokenizers."""

    def __init__(self, split: LineFunction, name: str):
        """Wrap the tokeniser `split`, which is called `name` in signatures."""
        self.split = split
        self.name = name

    def __call__(self, line: str) -> str:
        """Return the line with blanks between its words."""
        return self.split(line)

    def signature(self) -> str:
        """Return the tokeniser's name, which sacreBLEU prints in the signature of a score."""
        return self.name


def bleu_metric(lowercase: bool = False, tokenize: str | Words = "13a") -> BLEU:
    """Return sacreBLEU's BLEU.

    lowercase: compare in lower case. tokenize: the name of a tokenizer of sacreBLEU, "th" for PyThaiNLP's, or a Words.
    Raises an ImportError or a RuntimeError if the tokenizer's library is missing.
    """
    if tokenize == "th":  # sacreBLEU has none for Thai
        split, name = _thai("th")
        tokenize = Words(split, name)

    # force=True: no warning that the text looks tokenised already
    if not isinstance(tokenize, Words):
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    metric = BLEU(tokenize="none", lowercase=lowercase, force=True)
    metric.tokenizer = tokenize
    metric.tokenizer_signature = tokenize.signature()
    return metric


def bleu_of_language(target: str | None, lowercase: bool, tokenize: str | None) -> BLEU:
    """Return sacreBLEU's BLEU with the tokenizer `tokenize`, or with the one of the target language if that is None.

    target: the language, None if it is unknown; the tokenizer is 13a for None and for languages that are not in
    DEFAULT. lowercase: compare in lower case. Raises a UserError if the tokenizer's library is missing; nothing is
    downloaded.
    """
    name = tokenize or DEFAULT.get(base_language(target or ""), "13a")
    try:
        return bleu_metric(lowercase, name)
    except (ImportError, RuntimeError):  # sacreBLEU raises a RuntimeError for a missing library
        raise UserError(
            f"tokenizer {name}",
            f"BLEU of {target or 'this language'} needs a library; {EXTRA}, or choose another with --tokenize, as char",
        ) from None


def written_without_blanks(lines: list[str]) -> bool:
    """Tell whether most letters of the lines are of SCRIPTS, which sacreBLEU's 13a does not split into words."""
    return mostly(UNSPLIT, lines)


def mostly(letters_of_script: regex.Pattern, lines: list[str]) -> bool:
    """Tell whether more than half of the letters in the lines match `letters_of_script`, a pattern of _letters_of."""
    letters = sum(len(LETTER.findall(line)) for line in lines)
    of_script = sum(len(letters_of_script.findall(line)) for line in lines)
    return 2 * of_script > letters
