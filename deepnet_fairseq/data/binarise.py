"""Binarise text that is already cut into pieces: write the same files as fairseq-preprocess, byte by byte.

In the text, pieces are separated by blanks. Binarised, a piece is its number in a dictionary, <unk>'s if it is not in
it, and each line ends with the end-of-sentence symbol.

fairseq's own FileBinarizer is slower: of its N processes one works only when the others are done, so that two take as
long as one, and it calls a Python function for each piece.
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

PLAIN = "text"  # stands for the language in what `binarise` returns, for language models, whose text has none
PADDING_FACTOR = 8  # fairseq-preprocess makes the size of a dictionary a multiple of this (--padding-factor)


def refuse_pathsep(dest: Path) -> None:
    """Raise a UserError if the name of a folder has a ":" (os.pathsep), at which fairseq splits it into several."""
    if os.pathsep in str(dest):
        raise UserError(dest, f"fairseq takes a name with {os.pathsep} for several folders; name another")


def binarise(
    langs: tuple[str, str] | None,
    texts: dict[str, Path],
    dest: Path,
    workers: int = 2,
    dictionary: Path | dict[str, Path] | None = None,
    counts: Counter | None = None,
    lines: dict[str, int] | None = None,
) -> dict:
    """Write the dictionaries and the binarised texts into the existing folder `dest`.

    langs: source and target, or None for language models
    texts: subset, by fairseq's name ("train", "valid", "test", "test1", ...) -> prefix P of the files P.LANG, or, for
        language models, the file
    workers: number of processes
    dictionary: file with one dictionary for all languages, or language -> file; None to make one for all languages of
        the training text
    counts: piece -> its count in the training text, of which the new dictionary is made; None to count them here. Not
        used if `dictionary` is given.
    lines: subset -> its number of lines, from which progress bars estimate the time left; None if unknown

    Returns {"types": number, "text": {subset: {language, or PLAIN: counts}}}. "types" is the size of the dictionary,
    special symbols and padding included; of several dictionaries it is the first one's. The counts are:
    "sentences": number of lines, empty ones included
    "pieces": number of pieces, without end-of-sentence symbols
    "unknown": how many per cent of the pieces and end-of-sentence symbols together became <unk>
    """
    from fairseq.data import Dictionary

    # binarised files are called SUBSET.SRC-TGT.LANG.bin, or SUBSET.bin for language models
    if langs:
        endings = {lang: f".{lang}" for lang in langs}
        pair = f".{'-'.join(langs)}"
    else:
        endings = {PLAIN: ""}
        pair = ""

    by_lang: dict[str, Dictionary] = {}  # empty if all languages have the dictionary `shared`
    if isinstance(dictionary, dict):
        by_lang = {lang: Dictionary.load(str(path)) for lang, path in dictionary.items()}
        shared = next(iter(by_lang.values()))
    elif dictionary:
        shared = Dictionary.load(str(dictionary))
    else:
        shared = Dictionary()
        if counts is None:
            counts = Counter()
            for ending in endings.values():
                counts.update(count_pieces(Path(f"{texts['train']}{ending}"), workers))
        for piece, count in counts.items():
            shared.add_symbol(piece, count)
        shared.finalize(padding_factor=PADDING_FACTOR)  # sorts by count, the greatest first, then by text

    text_counts: dict[str, dict] = {subset: {} for subset in texts}
    for lang, ending in endings.items():
        lang_dictionary = by_lang.get(lang, shared)
        lang_dictionary.save(str(dest / f"dict{ending}.txt"))
        for subset, prefix in texts.items():
            text_counts[subset][lang] = _write_binarised(
                Path(f"{prefix}{ending}"),
                lang_dictionary,
                prefix=dest / f"{subset}{pair}{ending}",
                workers=workers,
                total=lines[subset] if lines else None,
            )
    return {"types": len(shared), "text": text_counts}


def count_pieces(path: Path, workers: int) -> Counter:
    """Return piece -> its count in the file `path`, a text in pieces; workers: number of processes."""
    total: Counter = Counter()
    for counted in map_chunks(_count_chunk, read_lines(path), workers, label=f"types {path.name}"):
        total.update(counted)
    return total


def _count_chunk(lines: list[str]) -> Counter:
    """Return piece -> its count in some lines of a text in pieces."""
    return Counter(chain.from_iterable(map(str.split, lines)))


def _write_binarised(path: Path, dictionary: Dictionary, prefix: Path, workers: int, total: int | None) -> dict:
    """Binarise a text file into PREFIX.bin and PREFIX.idx.

    path: the text file, in pieces
    dictionary: of its language
    prefix: PREFIX
    workers: number of processes
    total: number of lines, for the progress bar; None if unknown

    Returns {"sentences", "pieces", "unknown"}, the counts that `binarise` describes.
    """
    from fairseq.data import indexed_dataset

    number_of = dictionary.indices  # piece -> its number in the dictionary
    unknown = dictionary.unk()
    end = dictionary.eos()
    dtype = indexed_dataset.best_fitting_int_dtype(len(dictionary))

    def encode(lines: list[str]) -> tuple[np.ndarray, np.ndarray, int]:
        """Return (numbers of all pieces, [pieces]; length of each line, [lines]; how many pieces became <unk>).

        The end-of-sentence symbol of each line counts as a piece.
        """
        ids: list[int] = []
        sizes = []
        literal = 0  # pieces that are "<unk>" in the text already: they have its number, but did not become <unk> here
        for line in lines:
            pieces = line.split()
            # map with a built-in function takes half the time of a loop
            ids += map(number_of.get, pieces, repeat(unknown))
            ids.append(end)
            sizes.append(len(pieces) + 1)
            literal += pieces.count(dictionary.unk_word)
        return np.array(ids, dtype), np.array(sizes, np.int32), ids.count(unknown) - literal

    replaced = 0  # pieces that became <unk>
    with IndexedWriter(Path(f"{prefix}.bin"), Path(f"{prefix}.idx"), dtype) as writer:
        label = f"binarising {prefix.name}"
        for ids, sizes, chunk_replaced in map_chunks(encode, read_lines(path), workers, label=label, total=total):
            writer.add(ids, sizes)
            replaced += chunk_replaced

    # writer.pieces counts the end of each sentence too, as fairseq-preprocess does
    percent = 100 * replaced / writer.pieces if writer.pieces else 0.0
    return {
        "sentences": writer.sentences,
        "pieces": writer.pieces - writer.sentences,
        "unknown": float(f"{percent:.3}"),  # three significant digits
    }
