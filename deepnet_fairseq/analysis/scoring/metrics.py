"""sacreBLEU's metrics: which tokenizer and which kind of BLEU, whether what it needs is there, and intervals."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path

from sacrebleu.metrics import BLEU
from sacrebleu.metrics.base import Metric
from sacrebleu.tokenizers import tokenizer_spm
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS

from ...errors import UserError

RESAMPLES = 1000
KINDS = ("tokenised", "sacrebleu", "spbleu")
BY_LANGUAGE = "language"  # as a tokenizer's name: the one that suits the target language
SPBLEU = ("flores101", "flores200")
PACKAGES = {"ja-mecab": "MeCab", "ko-mecab": "mecab_ko"}
SUITED = (
    dict.fromkeys(("zh", "zho", "cmn"), "zh")
    | dict.fromkeys(("ja", "jpn"), "ja-mecab")
    | dict.fromkeys(("ko", "kor"), "ko-mecab")
    | dict.fromkeys(("th", "tha", "lo", "lao", "my", "mya", "km", "khm"), "char")  # no blanks between words
)


def tokenizer_for(name: str, target: str) -> str:
    """The tokenizer `name`, or with "language" the one for the language code `target`; characters where that lacks."""
    if name != BY_LANGUAGE:
        return name
    suited = SUITED.get(target.split("_")[0].lower(), "13a")
    return suited if _installed(suited) else "char"


def bleu_metric(tokenize: str, lowercase: bool = False) -> BLEU:
    """sacreBLEU with this tokenizer; UserError that says what to install or download where it lacks something."""
    if tokenize not in BLEU.TOKENIZERS:
        raise UserError(f"tokenizer {tokenize}: sacreBLEU has none of this name; it has {', '.join(BLEU.TOKENIZERS)}")
    if not _installed(tokenize):
        raise UserError(f"tokenizer {tokenize}: needs `pip install sacrebleu[{tokenize[:2]}]`; or take char")
    if tokenize in SPM_MODELS:
        _check_model(tokenize)
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)  # text that looks tokenised is what we have


@lru_cache
def _check_model(tokenize: str) -> None:
    """Lets sacreBLEU fetch the SentencePiece model that it lacks; its own mistakes come with a traceback, or none."""
    url = SPM_MODELS[tokenize]["url"]
    path = Path(tokenizer_spm.SACREBLEU_DIR) / "models" / Path(url).name
    try:
        BLEU(tokenize=tokenize)
    except (OSError, RuntimeError, HTTPException, SystemExit) as error:
        if path.is_file() and not path.stat().st_size:
            path.unlink()  # a download that broke off leaves this, and would not be tried again
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"tokenizer {tokenize}: no SentencePiece model ({reason}); download {url} and put it at {path}"
        ) from None


def _installed(tokenize: str) -> bool:
    return tokenize not in PACKAGES or importlib.util.find_spec(PACKAGES[tokenize]) is not None


def kinds_of_bleu(words: str | None, tokenize: str | None = None) -> dict[str | None, str]:
    """Test set -> which of KINDS its paper reports, under None that of all others.

    words: a kind for all test sets, or "sacrebleu,flores=spbleu": one, and others by name; None: as `tokenize` asks.
    UserError for words that are no kind.
    """
    kinds = {None: "spbleu" if tokenize in SPBLEU else "tokenised" if tokenize == "none" else "sacrebleu"}
    for word in words.split(",") if words else ():
        subset, _, kind = word.rpartition("=")
        if kind not in KINDS:
            raise UserError(f"--paper {words}: {kind or word} is none of {', '.join(KINDS)}")
        kinds[subset or None] = kind
    return kinds


def measure(metric: Metric, translations: list[str], references: list[str]) -> dict:
    """sacreBLEU's score, 0..100, of the whole text, with its signature; mean and ci are of 1000 bootstrap samples.

    ci: half the width of the 95% interval.
    """
    found = metric.corpus_score(translations, [references], n_bootstrap=RESAMPLES)
    return {
        "score": float(found.score),
        "mean": float(found._mean),  # sacreBLEU has no other name for the two
        "ci": float(found._ci),
        "signature": str(metric.get_signature()),
    }
