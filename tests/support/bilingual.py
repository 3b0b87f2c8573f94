"""Help for tests of the bilingual recipes."""

from __future__ import annotations

import shutil
from pathlib import Path


def lines(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    assert text.endswith("\n")
    return text[:-1].split("\n")


def copy_text(langs, prefixes, dest, workers, dictionary=None):
    """In place of fairseq-preprocess, where binarised data is not the question."""
    for split, given in prefixes.items():
        for number, prefix in enumerate(given):
            for lang in langs:
                shutil.copy(f"{prefix}.{lang}", dest / f"{split}{number or ''}.{lang}")
    (dest / f"dict.{langs[0]}.txt").write_text("word 1\n")
    subsets = [f"{split}{number or ''}" for split, given in prefixes.items() for number in range(len(given))]
    count = {"sentences": 1, "pieces": 1, "unknown": 0.0}
    return {"types": 8, "text": {subset: dict.fromkeys(langs, count) for subset in subsets}}
