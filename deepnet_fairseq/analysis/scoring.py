"""sacreBLEU of what fairseq-generate printed."""

from __future__ import annotations

import re
from pathlib import Path

from sacrebleu.metrics import BLEU

from ..errors import UserError

HYPOTHESIS = re.compile(r"^D-(\d+)\t[^\t]*\t(.*)$", re.MULTILINE)
REFERENCE = re.compile(r"^T-(\d+)\t(.*)$", re.MULTILINE)


def hypotheses(generated: Path) -> list[str]:
    """The detokenised translations (lines D-n) in the order of the test set."""
    return _in_order(HYPOTHESIS, generated, "translations")


def _in_order(pattern: re.Pattern, generated: Path, what: str) -> list[str]:
    found = {int(n): text for n, text in pattern.findall(generated.read_text(encoding="utf-8"))}
    if sorted(found) != list(range(len(found))):
        raise UserError(f"{generated}: {what} are missing; generate again")
    return [found[n] for n in range(len(found))]


def score_generated(generated: Path, tokenize: str = "13a") -> tuple[float, str]:
    """BLEU in 0..100 and sacreBLEU's signature, against the references that fairseq-generate printed (lines T-n)."""
    references = _in_order(REFERENCE, generated, "references")
    return _score(generated, references, "references; generate again", tokenize)


def bleu(generated: Path, reference: Path) -> tuple[float, str]:
    """BLEU in 0..100 and sacreBLEU's signature, against the lines of a file."""
    references = reference.read_text(encoding="utf-8").rstrip("\n").split("\n")
    return _score(generated, references, f"lines of {reference}", "13a")


def _score(generated: Path, references: list[str], named: str, tokenize: str) -> tuple[float, str]:
    translations = hypotheses(generated)
    if not translations or len(translations) != len(references):
        raise UserError(f"{generated}: {len(translations)} translations for {len(references)} {named}")
    metric = BLEU(tokenize=tokenize, force=True)  # text that is tokenised already is what we compare
    return metric.corpus_score(translations, [references]).score, str(metric.get_signature())
