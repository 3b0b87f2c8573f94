"""Words of each target language by M2M-100's protocol: fairseq's examples/m2m_100/tok.sh LANG, then BLEU of them.

Each tokeniser is a library's. Where that is not tok.sh's own: docs/reports.md, "M2M-100's protocol".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import regex
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from ...errors import UserError

Split = Callable[[str], str]  # a line -> its words between blanks
PLAIN_ROMANIAN = str.maketrans("ŞşŢţȘșȚțĂăÂâÎî", "SsTtSsTtAaAaIi")  # normalise-romanian.py, then remove-diacritics.py
NOT_PRINTED = regex.compile(r"\p{C}")


def _normalised(language: str) -> Split:
    """replace-unicode-punctuation.perl, normalize-punctuation.perl -l LANG, remove-non-printing-char.perl."""
    moses = MosesPunctNormalizer(language, perl_parity=True, pre_replace_unicode_punct=True)
    return lambda line: _printed(moses.normalize(line + "\n"))  # Perl's rules see the end of the line


def _printed(line: str) -> str:
    return NOT_PRINTED.sub(" ", line)


def _moses(language: str, between: Split = str) -> tuple[Split, str]:
    """tokenizer.perl -no-escape -l LANG of what `between` makes of a normalised line."""
    normalise, moses = _normalised(language), MosesTokenizer(language)
    split = partial(moses.tokenize, return_str=True, escape=False)
    return lambda line: split(between(normalise(line))), f"sacremoses-{version('sacremoses')}"


def _romanian(language: str) -> tuple[Split, str]:
    split, name = _moses(language, lambda line: line.translate(PLAIN_ROMANIAN))
    return split, f"{name}.ro"


def _chinese(language: str) -> tuple[Split, str]:
    from sacrebleu.tokenizers.tokenizer_zh import TokenizerZh

    normalise, split = _normalised(language), TokenizerZh()
    return lambda line: split(normalise(line)), split.signature()


def _japanese(language: str) -> tuple[Split, str]:
    from sacrebleu.tokenizers.tokenizer_ja_mecab import TokenizerJaMecab

    normalise, split = _normalised(language), TokenizerJaMecab()
    return lambda line: split("".join(normalise(line).split())), split.signature()


def _korean(language: str) -> tuple[Split, str]:
    from sacrebleu.tokenizers.tokenizer_ko_mecab import TokenizerKoMecab

    split = TokenizerKoMecab()
    return lambda line: split(_printed(line)), split.signature()


def _thai(language: str) -> tuple[Split, str]:
    from pythainlp import word_tokenize

    return lambda line: " ".join(word_tokenize(line.strip())), f"pythainlp-{version('pythainlp')}"


def _indic(language: str) -> tuple[Split, str]:
    from indicnlp.normalize.indic_normalize import IndicNormalizerFactory
    from indicnlp.tokenize.indic_tokenize import trivial_tokenize

    normalise = IndicNormalizerFactory().get_normalizer(language).normalize
    name = f"indic-nlp-{version('indic-nlp-library')}"
    return lambda line: " ".join(trivial_tokenize(normalise(line.strip()), language)), name


def _characters(language: str) -> tuple[Split, str]:
    from sacrebleu.tokenizers.tokenizer_char import TokenizerChar

    split = TokenizerChar()
    return split, split.signature()


TOKENISERS: dict[str, Callable[[str], tuple[Split, str]]] = {  # by target language; of all others Moses's
    "hi": _indic, "ja": _japanese, "ko": _korean, "my": _characters, "ne": _indic, "ro": _romanian, "si": _indic,
    "th": _thai, "zh": _chinese,
}  # fmt: skip


def tokeniser(language: str) -> tuple[Split, str]:
    """What splits lines in `language` ("zh", "zh_CN"), and its name with its version, for a signature.

    UserError, naming the extra to install, where its library is missing.
    """
    code = language.split("_")[0]
    try:
        return TOKENISERS.get(code, _moses)(code)
    except (ImportError, RuntimeError):  # the latter is sacreBLEU's
        raise UserError(f"--paper m2m: {language} needs a library; pip install 'deepnet_fairseq[m2m]'") from None
