"""Binarised text of the generated languages qaa and qab, as trainings in tests read it."""

from __future__ import annotations

from pathlib import Path

from deepnet_fairseq.data.language import make_corpus, write_corpus
from deepnet_fairseq.data.parallel_text import prepare_text

SPLITS = ("train", "valid", "test")


def make_data(folder: Path, sizes: dict[str, int]) -> Path:
    """Write a small corpus as text, FOLDER/text/SPLIT.qaa and .qab, and binarised for fairseq; return FOLDER/bin.

    Both languages share the 150 pieces of FOLDER/bin/spm.model. sizes: sentence pairs of "train", "valid" and "test"
    """
    write_corpus(make_corpus(sizes, nouns=20, verbs=10), folder / "text")
    prefixes = {split: str(folder / "text" / split) for split in sizes}
    prepare_text(("qaa", "qab"), prefixes, folder / "bin", vocab=150)
    return folder / "bin"
