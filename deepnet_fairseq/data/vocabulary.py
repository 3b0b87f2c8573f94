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
    """Vocabulary of fairseq's four special symbols and, behind them, a SentencePiece model's pieces in their order.

    The dictionary has all pieces of the model, not only those of some text, so that text binarised later fits it.
    Raises a UserError if the file `model` is missing or no SentencePiece model.

    digest: SHA-256 of the file
    processor: SentencePiece's object for the model
    subwords: the model's pieces without its control symbols and its unknown one
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

        # SentencePiece's number -> fairseq's: the n-th piece that is not special comes n-th behind fairseq's symbols
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
        """Return the lines of dict.LANG.txt, filled up so that the model's vocabulary is a multiple of 8.

        languages: how many there are; fairseq adds a tag for each to the dictionary
        """
        missing = -(len(self) + languages) % MULTIPLE
        fillers = [f"madeupword{i:04d}" for i in range(missing)]
        return [f"{entry} 1" for entry in self.subwords + fillers]


def sampling_probabilities(sizes: dict[str, int], temperature: float) -> dict[str, float]:
    """Return language -> p_l, proportional to (n_l / sum of n) ** (1 / T) (Arivazhagan et al. 2019); they sum to 1.

    sizes: language -> n_l, its sentences; temperature: T, above 0, where 1 keeps the proportions.
    """
    total = sum(sizes.values())
    weights = {lang: (size / total) ** (1 / temperature) for lang, size in sizes.items()}
    total_weight = sum(weights.values())
    return {lang: weight / total_weight for lang, weight in weights.items()}


def sample(lines: Iterable[str], count: int, wanted: int, rng: Random) -> Iterator[str]:
    """Sample `wanted` of the `count` lines, in one pass and in their order.

    Each line comes wanted // count times; those that come once more are a random sample without replacement (Knuth,
    The Art of Computer Programming, vol. 2, algorithm S), so that the number of lines is exact.
    """
    copies, once_more = divmod(wanted, count)  # once_more: lines still to be drawn for one more copy
    for position, line in enumerate(lines):
        times = copies
        if rng.random() * (count - position) < once_more:
            times += 1
            once_more -= 1
        for _ in range(times):
            yield line
