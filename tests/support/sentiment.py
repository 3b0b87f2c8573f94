"""Binarised sentences of two classes that a bag of words decides, for pretraining and, labelled, for classification."""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from .helpers import USER_DIR

WORDS = {"0": [f"bad{number}" for number in range(6)], "1": [f"good{number}" for number in range(6)]}
TEXTS = {"train": 240, "valid": 40}
SIZES = (
    "--encoder-layers", "2", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32", "--encoder-attention-heads",
    "2",
)  # fmt: skip
RUN = (
    "--user-dir", USER_DIR, "--cpu", "--arch", "deepnet_masked_lm", *SIZES, "--optimizer", "adam", "--lr", "5e-3",
    "--lr-scheduler", "fixed", "--max-tokens", "256", "--num-workers", "0", "--no-epoch-checkpoints", "--log-format",
    "json", "--log-interval", "1",
)  # fmt: skip
HEAD = "sentence_classification_head"  # fairseq's default name of the head
CLASSES = ("--task", "sentence_prediction", "--criterion", "sentence_prediction", "--init-token", "0",
           "--separator-token", "2", "--max-positions", "32")  # fmt: skip


def draw(count: int, seed: int) -> list[tuple[list[str], str]]:
    """Draw (words, class): five to nine words of the sentence's class, and two of the other."""
    chance = random.Random(seed)
    kinds = chance.choices(("01", "10"), k=count)
    return [(chance.choices(WORDS[a], k=chance.randint(5, 9)) + chance.sample(WORDS[b], 2), a) for a, b in kinds]


def dictionary() -> Dictionary:
    """Return the dictionary of the words."""
    made = Dictionary()
    for word in sorted(word for words in WORDS.values() for word in words):
        made.add_symbol(word)
    return made


def write(prefix: Path, lines: list[list[str]], symbols: Dictionary) -> None:
    """Write PREFIX.bin, PREFIX.idx and a dict.txt in the same folder."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.uint16)
    for words in lines:
        builder.add_item(torch.IntTensor([*map(symbols.index, words), symbols.eos()]))
    builder.finalize(f"{prefix}.idx")
    symbols.save(str(prefix.parent / "dict.txt"))


def make(folder: Path) -> Path:
    """Write the same sentences for language models (FOLDER/text) and for sentence_prediction (FOLDER/classes)."""
    labels = Dictionary()
    for name in WORDS:
        labels.add_symbol(name)
    for seed, (split, size) in enumerate(TEXTS.items()):
        sentences, classes = zip(*draw(size, seed), strict=True)
        for place in (folder / "text" / split, folder / "classes" / "input0" / split):
            write(place, sentences, dictionary())
        write(folder / "classes" / "label" / split, [[name] for name in classes], labels)
    return folder


@pytest.fixture(scope="module", name="data")
def some_data(tmp_path_factory):
    """Provide the folder that `make` writes."""
    return make(tmp_path_factory.mktemp("sentiment"))
