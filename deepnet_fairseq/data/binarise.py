"""Binarise text in pieces: write the same bytes as fairseq-preprocess.

fairseq's own FileBinarizer is slower: of its N processes one works only when the others are done, so that two take as
long as one, and it calls a function for each piece.
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
    """Fill the folder `dest` with the dictionaries and the binarised texts.

    langs: source and target, or None for language models
    texts: subset, by fairseq's name ("train", "valid", "test", "test1", ...) -> prefix P of the files P.LANG, or, for
        language models, the file
    workers: processes
    dictionary: file with the dictionary of all languages, or language -> file; by default all languages share one that
        is made of the training text
    counts: piece -> its count in the training text, if known
    lines: subset -> its number of lines, if known, for the time left

    Returns {"types": entries of the (first) dictionary with its special symbols, "text": {subset: {lang, or PLAIN:
    {"sentences", "pieces", "unknown": per cent of the pieces}}}}; an empty line counts as a sentence without pieces.
    """
    from fairseq.data import Dictionary

    if langs:
        endings = {lang: f".{lang}" for lang in langs}  # of the names of its files
        pair = f".{'-'.join(langs)}"
    else:
        endings = {PLAIN: ""}
        pair = ""

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
            text[subset][lang] = _write(
                Path(f"{prefix}{ending}"),
                own,
                prefix=dest / f"{subset}{pair}{ending}",
                workers=workers,
                total=lines[subset] if lines else None,
            )
    return {"types": len(types), "text": text}


def count_pieces(path: Path, workers: int) -> Counter:
    """Return piece -> its count in a text."""
    total: Counter = Counter()
    for counted in map_chunks(_count, read_lines(path), workers, label=f"types {path.name}"):
        total.update(counted)
    return total


def _count(lines: list[str]) -> Counter:
    """Count the pieces of some lines."""
    return Counter(chain.from_iterable(map(str.split, lines)))


def _write(path: Path, dictionary: Dictionary, prefix: Path, workers: int, total: int | None) -> dict:
    """Write the text `path` as PREFIX.bin and PREFIX.idx; return the counts that `binarise` reports of a text.

    total: lines of the text, if known.
    """
    from fairseq.data import indexed_dataset

    indices = dictionary.indices  # piece -> number
    unknown = dictionary.unk()
    end = dictionary.eos()
    dtype = indexed_dataset.best_fitting_int_dtype(len(dictionary))

    def encode(lines: list[str]) -> tuple[np.ndarray, np.ndarray, int]:
        """Return all pieces' numbers, each line's count of pieces (its end included), and how many became <unk>."""
        ids: list[int] = []
        sizes = []
        literal = 0  # pieces that read <unk> already
        for line in lines:
            pieces = line.split()
            ids += map(indices.get, pieces, repeat(unknown))  # calls no Python function for each piece: twice as fast
            ids.append(end)
            sizes.append(len(pieces) + 1)
            literal += pieces.count(dictionary.unk_word)
        return np.array(ids, dtype), np.array(sizes, np.int32), ids.count(unknown) - literal

    replaced = 0
    with IndexedWriter(Path(f"{prefix}.bin"), Path(f"{prefix}.idx"), dtype) as written:
        label = f"binarising {prefix.name}"
        for ids, sizes, chunk_replaced in map_chunks(encode, read_lines(path), workers, label=label, total=total):
            written.add(ids, sizes)
            replaced += chunk_replaced

    percent = 100 * replaced / written.pieces if written.pieces else 0.0  # one end of sentence a line included
    return {
        "sentences": written.sentences,
        "pieces": written.pieces - written.sentences,
        "unknown": float(f"{percent:.3}"),
    }
