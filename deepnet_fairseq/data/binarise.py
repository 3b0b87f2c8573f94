"""Binarise text in pieces: write the same bytes as fairseq-preprocess.

fairseq's own FileBinarizer is not used: one of its N processes works only when the others are done, so that two are as
slow as one, and it calls a function for each piece.
"""

from __future__ import annotations

import os
from collections import Counter
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import UserError
from .indexed import IndexedWriter
from .lines import map_chunks, read_lines

if TYPE_CHECKING:
    from fairseq.data import Dictionary

PLAIN = "text"  # takes the place of the language in text for language models
MULTIPLE = 8  # fairseq-preprocess pads dictionaries to a multiple of this


def check_dest(dest: Path) -> None:
    """Raise a UserError for a folder whose name fairseq splits into several."""
    if os.pathsep in str(dest):
        raise UserError(f"{dest}: fairseq takes a name with {os.pathsep} for several folders; name another")


def binarise(
    langs: tuple[str, str] | None,
    texts: dict[str, Path],
    dest: Path,
    workers: int = 2,
    dictionary: Path | dict[str, Path] | None = None,
    counts: Counter | None = None,
    lines: dict[str, int] | None = None,
) -> dict:
    """Fill the folder `dest`, with the `dictionary` of all, or of each language, else one made of the training text.

    langs: source and target, or None for language models; texts: subset in fairseq's names ("train", "valid", "test",
    "test1", ...) -> P of the files P.LANG, or the file. counts: piece -> its count in the training text, and lines:
    subset -> lines, where they are known. Returns {"types": of the dictionary with its special symbols, "text":
    {subset: {lang, or PLAIN: {"sentences", "pieces", "unknown": per cent}}}}; an empty line counts as a sentence
    without pieces.
    """
    from fairseq.data import Dictionary

    endings = {lang: f".{lang}" for lang in langs} if langs else {PLAIN: ""}
    pair = f".{'-'.join(langs)}" if langs else ""
    by_lang: dict[str, Dictionary] = {}
    if isinstance(dictionary, dict):
        by_lang = {lang: Dictionary.load(str(path)) for lang, path in dictionary.items()}
        types = next(iter(by_lang.values()))
    elif dictionary:
        types = Dictionary.load(str(dictionary))
    else:
        types = Dictionary()
        if counts is None:
            counts = Counter()
            for ending in endings.values():
                counts.update(count_pieces(Path(f"{texts['train']}{ending}"), workers))
        for piece in sorted(counts):
            types.add_symbol(piece, counts[piece])
        types.finalize(padding_factor=MULTIPLE)
    text: dict[str, dict] = {subset: {} for subset in texts}
    for lang, ending in endings.items():
        own = by_lang.get(lang, types)
        own.save(str(dest / f"dict{ending}.txt"))
        for subset, prefix in texts.items():
            total = lines[subset] if lines else None
            made = dest / f"{subset}{pair}{ending}"
            text[subset][lang] = _write(Path(f"{prefix}{ending}"), own, made, workers, total)
    return {"types": len(types), "text": text}


def count_pieces(path: Path, workers: int) -> Counter:
    """Return piece -> its count in a text."""
    total: Counter = Counter()
    for counted in map_chunks(_count, read_lines(path), workers, f"types {path.name}"):
        total.update(counted)
    return total


def _count(lines: list[str]) -> Counter:
    return Counter(chain.from_iterable(map(str.split, lines)))


def _write(path: Path, types: Dictionary, prefix: Path, workers: int, total: int | None) -> dict:
    """Write PREFIX.bin and PREFIX.idx; return the counts that binarise reports of a text."""
    from fairseq.data import indexed_dataset

    numbers, unknown, end = types.indices, types.unk(), types.eos()
    dtype = indexed_dataset.best_fitting_int_dtype(len(types))

    def encode(lines: list[str]) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the pieces' numbers, the count of pieces in each line, and the count outside the dictionary."""
        flat: list[int] = []
        sizes = []
        lost = 0
        for line in lines:
            pieces = line.split()
            flat += map(numbers.get, pieces, repeat(unknown))  # without a call of Python's a piece: twice as fast
            flat.append(end)
            sizes.append(len(pieces) + 1)
            lost -= pieces.count(types.unk_word)  # a piece that reads <unk> is not counted as replaced
        lost += flat.count(unknown)
        return np.array(flat, dtype), np.array(sizes, np.int32), lost

    replaced = 0
    with IndexedWriter(Path(f"{prefix}.bin"), Path(f"{prefix}.idx"), dtype) as written:
        for ids, sizes, lost in map_chunks(encode, read_lines(path), workers, f"binarising {prefix.name}", total):
            written.add(ids, sizes)
            replaced += lost
    percent = 100 * replaced / written.pieces if written.pieces else 0.0  # one end of sentence a line included
    return {
        "sentences": written.sentences,
        "pieces": written.pieces - written.sentences,
        "unknown": float(f"{percent:.3}"),
    }
