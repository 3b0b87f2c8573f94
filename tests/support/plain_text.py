"""Plain text in documents, and the two files of a small GPT-2 BPE."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from deepnet_fairseq import cli
from deepnet_fairseq.data.language import make_corpus

MERGES = ("t h", "th e", "Ġ the", "u n", "d o", "un do", "Ġ un", "Ġ s", "c a", "ca t", "Ġ cat")  # U+0120 is a blank
DOCUMENT = 5  # sentences in a document
SIZES = {"train": 300, "valid": 20, "test": 10}
VOCAB = 150


def documents(sentences: int, seed: int = 1) -> list[list[str]]:
    """Return sentences of the embedded corpus in documents of DOCUMENT sentences."""
    pairs = make_corpus({"train": sentences, "valid": 1, "test": 1}, seed, nouns=20, verbs=10)["train"]
    sources = [source for source, _ in pairs]
    return [sources[first : first + DOCUMENT] for first in range(0, sentences, DOCUMENT)]


def write_documents(path, texts: list[list[str]]):
    """Write documents with one sentence a line and an empty line after each document."""
    lines = []
    for text in texts:
        lines += [*text, ""]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_gpt2(folder):
    """Write encoder.json, with the 256 bytes and the pieces of MERGES, and vocab.bpe; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*bytes_to_unicode().values(), *(merge.replace(" ", "") for merge in MERGES)]
    (folder / "encoder.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (folder / "vocab.bpe").write_text("\n".join(["#version: 0.2", *MERGES, ""]), encoding="utf-8")
    return folder / "encoder.json", folder / "vocab.bpe"


@pytest.fixture(scope="module", name="texts")
def a_texts(tmp_path_factory):
    """Provide files of training, validation and test text."""
    folder = tmp_path_factory.mktemp("text")
    paths = []
    for seed, (split, size) in enumerate(SIZES.items()):
        paths.append(write_documents(folder / split, documents(size, seed)))
    with open(paths[2], "a", encoding="utf-8") as file:
        file.write("Łódź 🙃\u2028ends\n")  # characters that the training text lacks
    return paths


def dictionary_of(binarised: Path) -> Dictionary:
    """Read the dictionary of a folder of binarised text."""
    return Dictionary.load(str(binarised / "dict.txt"))


def prepare(texts, dest, *flags):
    """Run `deepnet prepare lm` in this process; return `dest`."""
    cli.main(["prepare", "lm", *map(str, texts), str(dest), "--workers", "1", *map(str, flags)])
    return dest
