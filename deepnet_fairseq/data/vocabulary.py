"""Vocabulary of a SentencePiece model as a fairseq dictionary, and samples of text to learn such a model from.

fairseq numbers pieces in another way than SentencePiece. In a sample of many languages, each has a share that a
temperature gives it.
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
    """Vocabulary that a fairseq model uses with a SentencePiece model: fairseq's four special symbols, then the pieces.

    It has all pieces of the SentencePiece model, in its order, and not only those of some text, so that text that is
    binarised later fits it. SentencePiece's own <s>, </s> and <unk> are left out.

    model: file of the SentencePiece model; a UserError is raised if it is missing or no such model
    digest: SHA-256 of the file, in hexadecimal
    processor: SentencePiece's object for the model
    subwords: the pieces, without SentencePiece's own special symbols
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
        special = np.array([self.processor.is_control(i) or self.processor.is_unknown(i) for i in ids])
        self.subwords = [self.processor.id_to_piece(i) for i in ids if not special[i]]

        # _fairseq_id: fairseq's number of a piece, by SentencePiece's number of it, [pieces]. The n-th subword, where n
        # is counted from 1, has fairseq's number len(FAIRSEQ_SPECIAL) + n - 1.
        n = np.cumsum(~special)
        self._fairseq_id = len(FAIRSEQ_SPECIAL) + n - 1
        self._fairseq_id[special] = FAIRSEQ_SPECIAL.index("<unk>")

    def __len__(self) -> int:
        """Return the number of entries of fairseq's dictionary, its four special symbols included."""
        return len(FAIRSEQ_SPECIAL) + len(self.subwords)

    def encode(self, sentences: list[str], threads: int = 1) -> list[np.ndarray]:
        """Cut sentences into pieces; return for each fairseq's numbers of its pieces and of </s>, [pieces + 1].

        threads: number of threads that SentencePiece uses
        """
        eos = FAIRSEQ_SPECIAL.index("</s>")
        encoded = self.processor.encode(sentences, out_type=int, num_threads=threads)
        return [np.append(self._fairseq_id[ids], eos) for ids in encoded]

    def dictionary(self, languages: int) -> list[str]:
        """Return the lines of fairseq's dict.LANG.txt.

        fairseq's multilingual task adds a tag for each language to the dictionary that it reads. Fillers are added
        here, so that the size with these tags is a multiple of PADDING_FACTOR.

        languages: number of languages
        """
        size_without_fillers = len(self) + languages
        missing = -size_without_fillers % PADDING_FACTOR
        fillers = [f"madeupword{i:04d}" for i in range(missing)]  # as in fairseq's Dictionary.pad_to_multiple_
        return [f"{entry} 1" for entry in self.subwords + fillers]  # fairseq needs a count, and does not use it


def sampling_probabilities(sizes: dict[str, int], temperature: float) -> dict[str, float]:
    """Return language l -> the probability p_l with which its sentences are drawn.

    p_l is proportional to (n_l / sum of all n) ** (1 / T) (Arivazhagan et al. 2019, arXiv 1907.05019).

    sizes: language l -> n_l, its number of sentences
    temperature: T, above 0; 1 draws languages in proportion to their sizes, a higher one makes their shares more equal
    """
    total = sum(sizes.values())
    weights = {lang: (size / total) ** (1 / temperature) for lang, size in sizes.items()}
    total_weight = sum(weights.values())
    return {lang: weight / total_weight for lang, weight in weights.items()}


def sample(lines: Iterable[str], count: int, wanted: int, rng: Random) -> Iterator[str]:
    """Yield a random sample of lines, in their order, after reading them once.

    lines: to draw from
    count: number of these lines
    wanted: number of lines to yield. If it is less than `count`, they are drawn without replacement. Otherwise each
        line is yielded wanted // count times, and wanted % count of them, drawn without replacement, once more.
    rng: source of the random numbers

    This is algorithm S of Knuth (The Art of Computer Programming, vol. 2, section 3.4.2): a line is drawn with the
    probability (number of lines still to draw) / (number of lines left), so that their number is exact at the end.
    """
    times_each, still_to_draw = divmod(wanted, count)
    for position, line in enumerate(lines):
        times = times_each
        lines_left = count - position  # this one included
        if rng.random() * lines_left < still_to_draw:
            times += 1
            still_to_draw -= 1
        for _ in range(times):
            yield line
