"""Plain text in documents, and the two files of a small GPT-2 BPE."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fairseq.data import Dictionary
from fairseq.data.encoders.gpt2_bpe_utils import bytes_to_unicode

from deepnet_fairseq import cli
from deepnet_fairseq.data.language import make_corpus

# Merges of the small BPE, first ones first; Ġ, U+0120, stands for a blank.
MERGES = ("t h", "th e", "Ġ the", "u n", "d o", "un do", "Ġ un", "Ġ s", "c a", "ca t", "Ġ cat")
DOCUMENT = 5  # sentences in a document
SIZES = {"train": 300, "valid": 20, "test": 10}  # sentences of each text
VOCAB = 150  # pieces of SentencePiece


def documents(sentences: int, seed: int = 1) -> list[list[str]]:
    """Return so many sentences of the generated language qaa, in documents of DOCUMENT sentences each."""
    pairs = make_corpus({"train": sentences, "valid": 1, "test": 1}, seed, nouns=20, verbs=10)["train"]
    sources = [source for source, _ in pairs]
    return [sources[first : first + DOCUMENT] for first in range(0, sentences, DOCUMENT)]


def write_documents(path, texts: list[list[str]]):
    """Write documents to a file, one sentence a line and an empty line after each document; return its path."""
    lines = []
    for text in texts:
        lines += [*text, ""]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_gpt2(folder):
    """Write the two files of a GPT-2 BPE whose pieces are the 256 bytes and MERGES.

    Return the paths of encoder.json, the number of each piece, and of vocab.bpe, the merges.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encoder = folder / "encoder.json"
    merges = folder / "vocab.bpe"

    pieces = list(bytes_to_unicode().values())
    pieces += [merge.replace(" ", "") for merge in MERGES]
    encoder.write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    merges.write_text("\n".join(["#version: 0.2", *MERGES, ""]), encoding="utf-8")
    return encoder, merges


@pytest.fixture(scope="module", name="texts")
def make_texts(tmp_path_factory):
    """Provide the paths of three files of documents: training, validation and test text, in this order."""
    folder = tmp_path_factory.mktemp("text")
    paths = []
    for seed, (split, size) in enumerate(SIZES.items()):
        paths.append(write_documents(folder / split, documents(size, seed)))

    with open(folder / "test", "a", encoding="utf-8") as file:
        file.write("Łódź 🙃\u2028ends\n")  # characters that the training text lacks
    return paths


def dictionary_of(binarised: Path) -> Dictionary:
    """Read the dictionary in a folder of binarised text."""
    return Dictionary.load(str(binarised / "dict.txt"))


def prepare(texts, dest, *flags):
    """Run `deepnet prepare lm` in this process; return `dest`, the folder with the binarised text.

    texts: as the fixture gives them; flags: further ones, such as the vocabulary
    """
    cli.main(["prepare", "lm", *map(str, texts), str(dest), "--workers", "1", *map(str, flags)])
    return dest
