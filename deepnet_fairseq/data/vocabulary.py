"""SentencePiece vocabulary of all languages, and samples of their text, drawn by temperature, to train it on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import sentencepiece

from ..errors import UserError

FAIRSEQ_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first four entries of every fairseq dictionary
MULTIPLE = 8  # tensor cores need matrix sizes that are multiples of this


class Vocabulary:
    """Vocabulary of SentencePiece's pieces in their order behind fairseq's four special symbols.

    The dictionary has all pieces of the model, not only those of some text, so that text binarised later fits it.
    Raises a UserError if the file is missing or no SentencePiece model.
    """

    def __init__(self, model: Path):
        if not model.is_file():
            raise UserError(f"{model}: no such file")
        self.digest = hashlib.sha256(model.read_bytes()).hexdigest()
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        except (RuntimeError, OSError) as error:
            raise UserError(f"{model}: no SentencePiece model ({error})") from error
        ids = range(len(self.processor))
        special = [self.processor.is_control(i) or self.processor.is_unknown(i) for i in ids]
        self.subwords = [self.processor.id_to_piece(i) for i in ids if not special[i]]
        self._fairseq_id = np.cumsum([not s for s in special]) + len(FAIRSEQ_SPECIAL) - 1
        self._fairseq_id[special] = FAIRSEQ_SPECIAL.index("<unk>")

    def __len__(self) -> int:
        """Return the number of entries of fairseq's dictionary, its four special symbols included."""
        return len(FAIRSEQ_SPECIAL) + len(self.subwords)

    def encode(self, sentences: list[str], threads: int = 1) -> list[np.ndarray]:
        """Return fairseq's numbers of each sentence's pieces, with the end-of-sentence symbol last."""
        eos = FAIRSEQ_SPECIAL.index("</s>")
        encoded = self.processor.encode(sentences, out_type=int, num_threads=threads)
        return [np.append(self._fairseq_id[ids], eos) if ids else np.array([eos]) for ids in encoded]

    def dictionary(self, languages: int) -> list[str]:
        """Return the lines of dict.LANG.txt, filled up to a multiple of 8 including fairseq's tag for each language."""
        fillers = -(len(self) + languages) % MULTIPLE
        return [f"{entry} 1" for entry in (*self.subwords, *(f"madeupword{i:04d}" for i in range(fillers)))]


def sampling_probabilities(sizes: dict[str, int], temperature: float) -> dict[str, float]:
    """Compute p_l proportional to (n_l / sum of n) ** (1 / T) (Arivazhagan et al. 2019); T = 1 keeps the proportions.

    sizes: language -> sentences; the shares sum to 1. The temperature T is above 0.
    """
    total = sum(sizes.values())
    weights = {name: (size / total) ** (1 / temperature) for name, size in sizes.items()}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}


def sample(lines: Iterable[str], count: int, wanted: int, rng: Random) -> Iterator[str]:
    """Sample `wanted` of the `count` lines, in one pass and in their order.

    Each line comes wanted // count times; those that come once more are a random sample without replacement (Knuth,
    The Art of Computer Programming, vol. 2, algorithm S), so that the number of lines is exact.
    """
    copies, left = divmod(wanted, count)
    for position, line in enumerate(lines):
        once_more = rng.random() * (count - position) < left
        left -= once_more
        for _ in range(copies + once_more):
            yield line
