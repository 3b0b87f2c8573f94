"""Binarised sentences of two classes, for pretraining and, with labels, for classification.

The words of a sentence decide its class, whatever their order: most are of the class's own words.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy
import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from .helpers import USER_DIR

# Class -> its words.
WORDS = {"0": [f"bad{number}" for number in range(6)], "1": [f"good{number}" for number in range(6)]}
TEXTS = {"train": 240, "valid": 40}  # sentences
SIZES = (
    "--encoder-layers", "2", "--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "32", "--encoder-attention-heads",
    "2",
)  # fmt: skip
# Flags of fairseq-train for a masked language model, without those of the task.
RUN = (
    "--user-dir", USER_DIR, "--cpu", "--arch", "deepnet_masked_lm", *SIZES, "--optimizer", "adam", "--lr", "5e-3",
    "--lr-scheduler", "fixed", "--max-tokens", "256", "--num-workers", "0", "--no-epoch-checkpoints", "--log-format",
    "json", "--log-interval", "1",
)  # fmt: skip
HEAD = "sentence_classification_head"  # fairseq's default name of the head
# Flags of fairseq-train for a classification of sentences between <s> and </s>.
CLASSES = ("--task", "sentence_prediction", "--criterion", "sentence_prediction", "--init-token", "0",
           "--separator-token", "2", "--max-positions", "32")  # fmt: skip


def draw(count: int, seed: int) -> list[tuple[list[str], str]]:
    """Draw so many sentences, each (words, class): five to nine words of the class, then two of the other."""
    chance = random.Random(seed)
    drawn = []
    for own, other in chance.choices(("01", "10"), k=count):  # (class, the other class)
        length = chance.randint(5, 9)
        words = chance.choices(WORDS[own], k=length) + chance.sample(WORDS[other], 2)
        drawn.append((words, own))
    return drawn


def dictionary() -> Dictionary:
    """Return the dictionary of the words of both classes."""
    symbols = Dictionary()
    for word in sorted(WORDS["0"] + WORDS["1"]):
        symbols.add_symbol(word)
    return symbols


def write_binarised(prefix: Path, lines: list[list[str]], symbols: Dictionary) -> None:
    """Write lines of words as binarised data, PREFIX.bin and PREFIX.idx, with dict.txt in the same folder.

    symbols: the dictionary, which has all the words
    """
    prefix.parent.mkdir(parents=True, exist_ok=True)
    builder = MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.uint16)
    for words in lines:
        builder.add_item(torch.IntTensor([*map(symbols.index, words), symbols.eos()]))
    builder.finalize(f"{prefix}.idx")
    symbols.save(str(prefix.parent / "dict.txt"))


def make(folder: Path) -> Path:
    """Write the same sentences for language models, FOLDER/text, and for sentence_prediction, FOLDER/classes.

    Return `folder`.
    """
    labels = Dictionary()
    for name in WORDS:
        labels.add_symbol(name)
    for seed, (split, size) in enumerate(TEXTS.items()):
        sentences, classes = zip(*draw(size, seed), strict=True)
        for place in (folder / "text" / split, folder / "classes" / "input0" / split):
            write_binarised(place, sentences, dictionary())
        write_binarised(folder / "classes" / "label" / split, [[name] for name in classes], labels)
    return folder


@pytest.fixture(scope="module", name="data")
def make_sentiment_data(tmp_path_factory):
    """Provide a folder with data of sentences for language models in text/, and with their classes in classes/."""
    return make(tmp_path_factory.mktemp("sentiment"))
