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
# fields of SentencePiece's ModelProto (sentencepiece_model.proto), and those inside that change how it cuts
PIECES, TRAINER, NORMALIZER = 1, 2, 3
CUTS = {
    TRAINER: {3, 24, 35},  # model_type, treat_whitespace_as_suffix, byte_fallback
    NORMALIZER: {2, 3, 4, 5},  # precompiled_charsmap and three switches; 6 is the name of a temporary file
}


def of_symbols(symbols: Iterable[str]) -> str:
    """Return the digest of a dictionary's symbols, whose order gives them their numbers."""
    return hashlib.sha256("\n".join(symbols).encode("utf-8", "surrogatepass")).hexdigest()


def of_cutting(paths: Iterable[Path]) -> str | None:
    """Return the digest of the files that cut text; None if there are none, or one cannot be read."""
    digest, found = hashlib.sha256(), False
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
    """Return what cuts text in a file: of a SentencePiece model not the names and settings of its training.

    Such a model holds the name of a temporary file, so that the same text makes another file each time.
    """
    pieces, rules = [], []
    try:
        for number, value in _fields(content):
            if number == PIECES:
                pieces.append(value)
            elif number in CUTS:
                rules += [inner for place, inner in _fields(value) if place in CUTS[number]]
    except (ValueError, IndexError):  # another kind of file
        return [content]
    return pieces + rules if pieces else [content]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of a message of protobuf: number and content, of a number its encoding.

    ValueError or IndexError for bytes that are no message.
    """
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, kind, begin = key >> 3, key & 7, place
        if kind == 0:
            _, place = _varint(message, place)
        elif kind == 1:
            place += 8
        elif kind == 2:
            size, begin = _varint(message, place)
            place = begin + size
        elif kind == 5:
            place += 4
        else:
            raise ValueError(f"no field of protobuf: kind {kind}")
        if number == 0 or place > len(message):
            raise ValueError("no message of protobuf")
        yield number, message[begin:place]


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return a number in base 128, lowest digit first, and the place behind it."""
    value = shift = 0
    while message[place] >= 128:
        value |= (message[place] & 127) << shift
        place, shift = place + 1, shift + 7
    return value | message[place] << shift, place + 1


def folders_of(data: str) -> list[Path]:
    """Return the first folder of binarised data, behind those above it where a recipe has made its corpus."""
    first = Path(data.split(os.pathsep)[0])
    above = next((folder for folder in list(first.absolute().parents)[:2] if (folder / "recipe.json").is_file()), None)
    return [first] if above is None else [above, first.absolute().parent, first]


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
