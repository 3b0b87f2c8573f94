"""Choose the target language's tokeniser for sacreBLEU: its own by default, or that of M2M-100's protocol.

The protocol is fairseq's examples/m2m_100/tok.sh LANG, then BLEU of the words. Each tokeniser is a library's;
docs/reports.md, "M2M-100's protocol", lists those that are not tok.sh's own.
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

DEFAULT = {"ja": "ja-mecab", "ko": "ko-mecab", "th": "th", "zh": "zh"}  # target language -> tokenizer; 13a for others
TWO_LETTERS = {  # ISO 639-1 codes of the three-letter codes whose language a tokeniser knows
    "asm": "as", "ben": "bn", "bur": "my", "cat": "ca", "ces": "cs", "chi": "zh", "cmn": "zh", "cze": "cs",
    "deu": "de", "dut": "nl", "ell": "el", "eng": "en", "est": "et", "fin": "fi", "fra": "fr", "fre": "fr",
    "ger": "de", "gle": "ga", "gre": "el", "guj": "gu", "hin": "hi", "hun": "hu", "ice": "is", "isl": "is",
    "ita": "it", "jpn": "ja", "kan": "kn", "kor": "ko", "lav": "lv", "lit": "lt", "lvs": "lv", "lzh": "zh",
    "mal": "ml", "mar": "mr", "mya": "my", "nep": "ne", "nld": "nl", "npi": "ne", "ori": "or", "ory": "or",
    "pan": "pa", "pol": "pl", "por": "pt", "ron": "ro", "rum": "ro", "rus": "ru", "sin": "si", "slk": "sk",
    "slo": "sk", "slv": "sl", "spa": "es", "swe": "sv", "tam": "ta", "tel": "te", "tha": "th", "wuu": "zh",
    "yue": "zh", "zho": "zh",
}  # fmt: skip
# scripts that 13a does not split into words
SCRIPTS = ("Han", "Hiragana", "Katakana", "Hangul", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan")


def _letters_of(*scripts: str) -> regex.Pattern:
    """Return the pattern of one letter of any of the scripts."""
    any_script = "".join(rf"\p{{{script}}}" for script in scripts)
    return regex.compile(rf"[[{any_script}]&&\p{{L}}]", regex.VERSION1)


UNSPLIT = _letters_of(*SCRIPTS)
JOINED_BY_MOSES = _letters_of("Han", "Hiragana", "Katakana")  # whose blanks a detokeniser drops
LETTER = regex.compile(r"\p{L}")
EXTRA = "pip install 'deepnet_fairseq[m2m]'"
Split = Callable[[str], str]  # a line -> its words between blanks
PLAIN_ROMANIAN = str.maketrans("ŞşŢţȘșȚțĂăÂâÎî", "SsTtSsTtAaAaIi")  # normalise-romanian.py, then remove-diacritics.py
NOT_PRINTED = regex.compile(r"\p{C}")


def _normalised(language: str) -> Split:
    """Return replace-unicode-punctuation.perl, normalize-punctuation.perl -l LANG, remove-non-printing-char.perl."""
    moses = MosesPunctNormalizer(language, perl_parity=True, pre_replace_unicode_punct=True)
    return lambda line: _printed(moses.normalize(line + "\n"))  # Perl's rules see the end of the line


def _printed(line: str) -> str:
    """Return remove-non-printing-char.perl's line: a blank for each character that is not printed."""
    return NOT_PRINTED.sub(" ", line)


def _moses(language: str, between: Split = str) -> tuple[Split, str]:
    """Return tokenizer.perl -no-escape -l LANG, applied after `between` to a normalised line, and its name."""
    normalise = _normalised(language)
    tokenise = partial(MosesTokenizer(language).tokenize, return_str=True, escape=False)

    def split(line: str) -> str:
        return tokenise(between(normalise(line)))

    return split, f"sacremoses-{version('sacremoses')}"


def _romanian(language: str) -> tuple[Split, str]:
    """Return Moses' tokeniser of a text without Romanian diacritics, and its name."""
    split, name = _moses(language, between=lambda line: line.translate(PLAIN_ROMANIAN))
    return split, f"{name}.ro"


def _japanese(language: str) -> Split:
    """Return what normalises a line and drops its blanks."""
    normalise = _normalised(language)
    return lambda line: "".join(normalise(line).split())


def _sacrebleu(name: str, prepared: Callable[[str], Split]) -> Callable[[str], tuple[Split, str]]:
    """Return what makes sacreBLEU's own tokeniser `name`, applied after prepared(language) to a line, and its name."""

    def tokeniser_of(language: str) -> tuple[Split, str]:
        prepare = prepared(language)
        tokenise = bleu_metric(tokenize=name).tokenizer

        def split(line: str) -> str:
            return tokenise(prepare(line))

        return split, tokenise.signature()

    return tokeniser_of


def _thai(language: str) -> tuple[Split, str]:
    """Return PyThaiNLP's words, and its name; raise an ImportError without that library."""
    from pythainlp import word_tokenize

    def split(line: str) -> str:
        return " ".join(word_tokenize(line.strip()))

    return split, f"pythainlp-{version('pythainlp')}"


def _indic(language: str) -> tuple[Split, str]:
    """Return the Indic NLP library's words of a normalised line, and its name; raise an ImportError without it."""
    from indicnlp.normalize.indic_normalize import IndicNormalizerFactory
    from indicnlp.tokenize.indic_tokenize import trivial_tokenize

    normalise = IndicNormalizerFactory().get_normalizer(language).normalize

    def split(line: str) -> str:
        return " ".join(trivial_tokenize(normalise(line.strip()), language))

    return split, f"indic-nlp-{version('indic-nlp-library')}"


TOKENISERS: dict[str, Callable[[str], tuple[Split, str]]] = {  # target language -> tokeniser; Moses's for all others
    "hi": _indic,
    "ne": _indic,
    "ro": _romanian,
    "si": _indic,
    "th": _thai,
    "ja": _sacrebleu("ja-mecab", prepared=_japanese),
    "ko": _sacrebleu("ko-mecab", prepared=lambda _: _printed),
    "my": _sacrebleu("char", prepared=lambda _: str),
    "zh": _sacrebleu("zh", prepared=_normalised),
}


def base_language(code: str) -> str:
    """Return the language of a code with a script or country, by two letters where tokenisers know it: zho_Hans, zh."""
    base = regex.split("[_-]", code)[0].lower()
    return TWO_LETTERS.get(base, base)


def tokeniser(language: str) -> tuple[Split, str]:
    """Return M2M-100's split of lines in `language` ("zh", "zho_Hans"), and its name with its version.

    Raises a UserError, naming the extra to install, if its library is missing.
    """
    base = base_language(language)
    try:
        return TOKENISERS.get(base, _moses)(base)
    except (ImportError, RuntimeError):  # the latter is sacreBLEU's
        raise UserError(f"--paper m2m: {language} needs a library; {EXTRA}") from None


class Words(BaseTokenizer):
    """Tokeniser that sacreBLEU lacks, with the interface of its own."""

    def __init__(self, split: Split, name: str):
        """Take what splits a line, and its name for the signature."""
        self.split = split
        self.name = name

    def __call__(self, line: str) -> str:
        """Return the words of a line between blanks."""
        return self.split(line)

    def signature(self) -> str:
        """Return its name in the signature."""
        return self.name


def bleu_metric(lowercase: bool = False, tokenize: str | Words = "13a") -> BLEU:
    """Return sacreBLEU's metric with a tokenizer of its own, "th" for PyThaiNLP's words, or one made here."""
    if tokenize == "th":
        split, name = _thai("th")
        tokenize = Words(split, name)

    # force: without a warning that the text is tokenised
    if not isinstance(tokenize, Words):
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)
    metric = BLEU(tokenize="none", lowercase=lowercase, force=True)
    metric.tokenizer = tokenize
    metric.tokenizer_signature = tokenize.signature()
    return metric


def bleu_of_language(target: str | None, lowercase: bool, tokenize: str | None) -> BLEU:
    """Return sacreBLEU's metric with the tokenizer `tokenize`, or else with the one of the target language.

    Raises a UserError if the library of that language is missing; nothing is downloaded.
    """
    name = tokenize or DEFAULT.get(base_language(target or ""), "13a")
    try:
        return bleu_metric(lowercase, name)
    except (ImportError, RuntimeError):  # the latter is sacreBLEU's
        raise UserError(
            f"tokenizer {name}: BLEU of {target or 'this language'} needs a library; {EXTRA}, or choose another with "
            "--tokenize, as char"
        ) from None


def written_without_blanks(lines: list[str]) -> bool:
    """Tell whether most letters are of SCRIPTS, whose words sacreBLEU's usual tokenizer does not split."""
    return mostly(UNSPLIT, lines)


def mostly(letters_of_script: regex.Pattern, lines: list[str]) -> bool:
    """Tell whether most letters of the lines are of a script."""
    letters = sum(len(LETTER.findall(line)) for line in lines)
    of_script = sum(len(letters_of_script.findall(line)) for line in lines)
    return 2 * of_script > letters
