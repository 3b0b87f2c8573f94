"""Sizes of benchmarks made for tests."""

from __future__ import annotations

import itertools
from pathlib import Path

from deepnet_fairseq.bench.settings import Settings, Shape

SHAPE = Shape(2, 1, "tiny")


def short_sentences(folder: Path) -> str:
    """A file of lengths: every pair of 2 to 9 tokens."""
    path = folder / "lengths.txt"
    path.write_text("".join(f"{s} {t}\n" for s, t in itertools.product(range(2, 10), repeat=2)))
    return str(path)


def short_settings(lengths: str) -> Settings:
    return Settings(max_tokens=64, vocabulary=120, lengths=lengths, repeats=2, warmup=1, sentences=(3,), beams=(1, 2))
