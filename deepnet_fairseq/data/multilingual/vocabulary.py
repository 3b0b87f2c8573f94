"""One SentencePiece vocabulary for all languages, as fairseq's dictionary counts it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import sentencepiece

from ...errors import UserError

FAIRSEQ_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # the first four entries of every fairseq dictionary
MULTIPLE = 8  # tensor cores want matrix sizes in such steps


class Vocabulary:
    """SentencePiece's pieces in their order behind fairseq's four special symbols.

    The dictionary is that of the model, not of the words some text happens to hold: text binarised later fits it.
    UserError if the file is no SentencePiece model.
    """

    def __init__(self, model: Path):
        self.digest = hashlib.sha256(model.read_bytes()).hexdigest()
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
        except (RuntimeError, OSError) as error:
            raise UserError(f"{model}: no SentencePiece model ({error})") from error
        ids = range(len(self.processor))
        special = [self.processor.is_control(i) or self.processor.is_unknown(i) for i in ids]
        self.pieces = [self.processor.id_to_piece(i) for i in ids if not special[i]]
        self._fairseq_id = np.cumsum([not s for s in special]) + len(FAIRSEQ_SPECIAL) - 1
        self._fairseq_id[special] = FAIRSEQ_SPECIAL.index("<unk>")

    def __len__(self) -> int:
        """Entries of fairseq's dictionary, its four special symbols among them."""
        return len(FAIRSEQ_SPECIAL) + len(self.pieces)

    def encode(self, sentences: list[str], threads: int = 1) -> list[np.ndarray]:
        """fairseq's numbers of the pieces of each sentence, the end-of-sentence symbol last."""
        eos = FAIRSEQ_SPECIAL.index("</s>")
        encoded = self.processor.encode(sentences, out_type=int, num_threads=threads)
        return [np.append(self._fairseq_id[ids], eos) if ids else np.array([eos]) for ids in encoded]

    def dictionary(self, languages: int) -> str:
        """Text of dict.LANG.txt; with fillers, so that it is a multiple of 8 once fairseq adds a tag per language."""
        fillers = -(len(self) + languages) % MULTIPLE
        entries = self.pieces + [f"madeupword{i:04d}" for i in range(fillers)]
        return "".join(f"{entry} 1\n" for entry in entries)
