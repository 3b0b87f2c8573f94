"""Which kind of BLEU a paper reports, by test set."""

from __future__ import annotations

from ...errors import UserError
from .tokenizers import SPBLEU

KINDS = ("tokenised", "sacrebleu", "spbleu")


class PaperKinds:
    """words: a kind for all test sets, or "sacrebleu,flores=spbleu": one, and others by name; None: as `tokenize` asks.

    UserError for words that are no kind.
    """

    def __init__(self, words: str | None, tokenize: str | None = None):
        self.default = "spbleu" if tokenize in SPBLEU else "tokenised" if tokenize == "none" else "sacrebleu"
        self.named: dict[str, str] = {}
        for word in words.split(",") if words else ():
            subset, _, kind = word.rpartition("=")
            if kind not in KINDS:
                raise UserError(f"--paper {words}: {kind or word} is none of {', '.join(KINDS)}")
            if subset:
                self.named[subset] = kind
            else:
                self.default = kind

    def of(self, subset: str) -> str:
        """The kind of the paper's BLEU on a test set."""
        return self.named.get(subset, self.default)
