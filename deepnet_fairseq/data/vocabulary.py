"""Vocabulary of a SentencePiece model in fairseq's numbers, and samples of text to learn such a model from.

In a sample of many languages, each has a share that a temperature gives it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

import numpy as np
import sentencepiece

from ..errors import UserError

FAIRSEQ_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first four entries of every fairseq dictionary
PADDING_FACTOR = 8  # a model's vocabulary is a multiple of this, because tensor cores need matrices of such sizes


class Vocabulary:
    """Vocabulary of fairseq's four special symbols and, behind them, a SentencePiece model's pieces in their order.

    The dictionary has all pieces of the model, not only those of some text, so that text binarised later fits it.
    Raises a UserError if the file `model` is missing or no SentencePiece model.

    digest: SHA-256 of the file, in hexadecimal
    processor: SentencePiece's object for the model
    subwords: the model's pieces without its control symbols, as <s> and </s>, and <unk>
    """

    def __init__(self, model: Path):
        if not model.is_file():
            raise UserError(model, "no such file")
        self.digest = hashlib.sha256(model.read_bytes()).hexdigest()
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        except (RuntimeError, OSError) as error:
            raise UserError(model, f"no SentencePiece model ({error})") from error

        ids = range(len(self.processor))
        special = [self.processor.is_control(i) or self.processor.is_unknown(i) for i in ids]
        self.subwords = [self.processor.id_to_piece(i) for i in ids if not special[i]]

        # SentencePiece's number -> fairseq's: the first subword has the number len(FAIRSEQ_SPECIAL), and so on
        subwords_so_far = np.cumsum([not is_special for is_special in special])  # up to and with each piece
        self._fairseq_id = subwords_so_far + len(FAIRSEQ_SPECIAL) - 1
        self._fairseq_id[special] = FAIRSEQ_SPECIAL.index("<unk>")

    def __len__(self) -> int:
        """Return the number of entries of fairseq's dictionary, its four special symbols included."""
        return len(FAIRSEQ_SPECIAL) + len(self.subwords)

    def encode(self, sentences: list[str], threads: int = 1) -> list[np.ndarray]:
        """Return for each sentence fairseq's numbers of its pieces and of the end-of-sentence symbol, [pieces + 1].

        threads: of SentencePiece
        """
        eos = FAIRSEQ_SPECIAL.index("</s>")
        encoded = self.processor.encode(sentences, out_type=int, num_threads=threads)
        return [np.append(self._fairseq_id[ids], eos) for ids in encoded]

    def dictionary(self, languages: int) -> list[str]:
        """Return the lines of dict.LANG.txt, with fairseq's fillers so that the model's vocabulary is a multiple of 8.

        languages: how many there are; fairseq's multilingual task adds a tag for each to the dictionary
        """
        missing = -(len(self) + languages) % PADDING_FACTOR
        fillers = [f"madeupword{i:04d}" for i in range(missing)]  # as in fairseq's Dictionary.pad_to_multiple_
        return [f"{entry} 1" for entry in self.subwords + fillers]  # fairseq needs a count, and does not use it


def sampling_probabilities(sizes: dict[str, int], temperature: float) -> dict[str, float]:
    """Return language l -> its probability p_l, proportional to (n_l / sum of n) ** (1 / T) (Arivazhagan et al. 2019).

    sizes: language l -> n_l, its number of sentences; temperature: T, above 0, where 1 keeps the proportions.
    """
    total = sum(sizes.values())
    weights = {lang: (size / total) ** (1 / temperature) for lang, size in sizes.items()}
    total_weight = sum(weights.values())
    return {lang: weight / total_weight for lang, weight in weights.items()}


def sample(lines: Iterable[str], count: int, wanted: int, rng: Random) -> Iterator[str]:
    """Yield `wanted` lines that are drawn from `count` lines, in one pass and in their order.

    Each line is yielded wanted // count times. The wanted % count lines of a random sample without replacement are
    yielded once more, so that the total is exact; if wanted < count, there are no others. The sample is drawn by
    algorithm S of Knuth (The Art of Computer Programming, vol. 2, section 3.4.2).
    """
    copies, still_wanted = divmod(wanted, count)  # still_wanted: size of the rest of the random sample
    for position, line in enumerate(lines):
        times = copies
        lines_left = count - position  # this one included
        if rng.random() * lines_left < still_wanted:
            times += 1
            still_wanted -= 1
        for _ in range(times):
            yield line
