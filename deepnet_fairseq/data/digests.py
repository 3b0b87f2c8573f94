"""Digests of a vocabulary: of a dictionary's symbols in their order, and of what cuts text into them.

Two vocabularies are the same if their digests are: counts of symbols, names of files and dates do not matter.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import UserError
from ..files import read_object

KEY = "deepnet_vocabulary"  # in a checkpoint's task_state: the digests of its vocabulary
CUTTING = ("spm.model", "codes")  # names beside binarised data: a SentencePiece model, codes of subword-nmt
SETTINGS = "text.json"  # beside data of language models: fairseq's settings, with names of files from the folder
# numbers of fields in SentencePiece's ModelProto (sentencepiece_model.proto)
PIECES = 1
TRAINER = 2
NORMALIZER = 3
CUTS = {  # field -> the fields inside it that change how the model cuts
    TRAINER: {3, 24, 35},  # model_type, treat_whitespace_as_suffix, byte_fallback
    NORMALIZER: {2, 3, 4, 5},  # precompiled_charsmap and three switches; 6 is the name of a temporary file
}


def of_symbols(symbols: Iterable[str]) -> str:
    """Return the digest of a dictionary's symbols, whose order gives them their numbers."""
    return hashlib.sha256("\n".join(symbols).encode("utf-8", "surrogatepass")).hexdigest()


def of_cutting(paths: Iterable[Path]) -> str | None:
    """Return the digest of the files that cut text; None if there are none, or one cannot be read."""
    digest = hashlib.sha256()
    found = False
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError:
            return None
        found = True
        for part in _parts(content):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest() if found else None


def _parts(content: bytes) -> list[bytes]:
    """Return the parts of a file that decide how text is cut; of another file than a SentencePiece model, all of it.

    Of a SentencePiece model the names and settings of its training are left out. One of them names a temporary file, so
    that the same text makes another file each time.
    """
    pieces = []
    rules = []
    try:
        for number, value in _fields(content):
            if number == PIECES:
                pieces.append(value)
            elif number in CUTS:
                rules += [inner for inner_number, inner in _fields(value) if inner_number in CUTS[number]]
    except (ValueError, IndexError):  # another kind of file
        return [content]
    return pieces + rules if pieces else [content]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of a message of protobuf: the field's number, and the bytes that encode its value.

    Raises a ValueError or IndexError for bytes that are no message. See protobuf.dev/programming-guides/encoding.
    """
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number = key >> 3
        kind = key & 7
        begin = place
        if kind == 0:  # a varint
            _, place = _varint(message, place)
        elif kind == 1:  # 64 bits
            place += 8
        elif kind == 2:  # a length and as many bytes
            size, begin = _varint(message, place)
            place = begin + size
        elif kind == 5:  # 32 bits
            place += 4
        else:
            raise ValueError(f"no field of protobuf: kind {kind}")
        if number == 0 or place > len(message):
            raise ValueError("no message of protobuf")
        yield number, message[begin:place]


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return a number in base 128, lowest digit first, and the place behind it."""
    value = 0
    shift = 0
    while message[place] >= 128:  # all bytes but the last have the highest bit set
        value |= (message[place] & 127) << shift
        place += 1
        shift += 7
    return value | message[place] << shift, place + 1


def folders_of(data: str) -> list[Path]:
    """Return the folders that may hold what cut the text of binarised data, the folder of the data itself last.

    These are the first folder of `data` (fairseq's list, joined by os.pathsep), and, if a recipe made it, before it the
    folder of the recipe's corpus and the folder above the data, which may be one.
    """
    first = Path(data.split(os.pathsep)[0])
    parents = list(first.absolute().parents)
    for corpus in parents[:2]:
        if (corpus / "recipe.json").is_file():
            return [corpus, first.absolute().parent, first]
    return [first]


def cutting_files(data: str) -> list[Path]:
    """Return the files that lie with binarised data and cut their text; none if nobody left them there."""
    for folder in reversed(folders_of(data)):
        if (folder / SETTINGS).is_file():
            try:
                settings = read_object(folder / SETTINGS, "")
            except UserError:  # the commands that need it say so
                return []
            named = [folder / name for name in settings.values() if isinstance(name, str)]
            return [path for path in named if path.is_file()]

        for name in CUTTING:
            if (folder / name).is_file():
                return [folder / name]
    return []
