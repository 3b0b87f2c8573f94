"""sacreBLEU of what fairseq-generate printed."""

from __future__ import annotations

import re
from pathlib import Path

from sacrebleu.metrics import BLEU

from ..errors import UserError

HYPOTHESIS = re.compile(r"^D-(\d+)\t[^\t]*\t(.*)$", re.MULTILINE)


def hypotheses(generated: Path) -> list[str]:
    """The detokenised translations (lines D-n) in the order of the test set."""
    found = {int(n): text for n, text in HYPOTHESIS.findall(generated.read_text(encoding="utf-8"))}
    if sorted(found) != list(range(len(found))):
        raise UserError(f"{generated}: translations are missing; generate again")
    return [found[n] for n in range(len(found))]


def bleu(generated: Path, reference: Path) -> tuple[float, str]:
    """BLEU in 0..100 and sacreBLEU's signature."""
    translations = hypotheses(generated)
    references = reference.read_text(encoding="utf-8").rstrip("\n").split("\n")
    if len(translations) != len(references):
        raise UserError(f"{generated}: {len(translations)} translations for {len(references)} lines of {reference}")
    metric = BLEU(force=True)  # text that is tokenised already is what we compare
    return metric.corpus_score(translations, [references]).score, str(metric.get_signature())
