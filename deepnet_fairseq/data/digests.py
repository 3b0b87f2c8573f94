"""Digests of a vocabulary: of a dictionary's symbols in their order, and of the files by which text is cut into them.

Two vocabularies are the same if their digests are: counts of symbols, names of files and dates do not matter.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import UserError
from ..files import read_json_object

KEY = "deepnet_vocabulary"  # key in a checkpoint's task_state, under which the digests of its vocabulary are
CUTTING = ("spm.model", "codes")  # names of files beside binarised data: a SentencePiece model, merges of subword-nmt
SETTINGS = "text.json"  # file beside the data of language models, which names the files that cut text; see lm_text.py
# Numbers of fields in SentencePiece's ModelProto (sentencepiece_model.proto)
PIECES = 1
TRAINER = 2
NORMALIZER = 3
CUTS = {  # field of ModelProto -> numbers of the fields in it that change how the model cuts
    TRAINER: {3, 24, 35},  # model_type, treat_whitespace_as_suffix, byte_fallback
    NORMALIZER: {2, 3, 4, 5},  # precompiled_charsmap and three switches; 6 is the name of a temporary file
}


def of_symbols(symbols: Iterable[str]) -> str:
    """Return the digest, in hexadecimal, of a dictionary's symbols in the order of their numbers."""
    return hashlib.sha256("\n".join(symbols).encode("utf-8", "surrogatepass")).hexdigest()


def of_cutting(paths: Iterable[Path]) -> str | None:
    """Return the digest, in hexadecimal, of the files that cut text; None if there are none, or one cannot be read."""
    digest = hashlib.sha256()
    found = False
    for path in paths:
        try:
            content = path.read_bytes()
        except OSError:
            return None
        found = True
        for part in _parts_that_cut(content):
            digest.update(len(part).to_bytes(8, "little"))  # so that ["ab", "c"] and ["a", "bc"] differ
            digest.update(part)
    return digest.hexdigest() if found else None


def _parts_that_cut(content: bytes) -> list[bytes]:
    """Return the parts of a file that decide how text is cut; the whole content if it is no SentencePiece model.

    Of a SentencePiece model the names and settings of its training are left out. One of them may name a temporary file,
    so that a second training on the same text makes another file.
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
        tag, place = _varint(message, place)
        number = tag >> 3
        kind = tag & 7  # protobuf's wire type
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
    """Return the varint of protobuf at a place of a message, and the place behind it.

    A varint is a number in base 128, a digit a byte, the lowest digit first.
    """
    value = 0
    shift = 0
    while message[place] >= 128:  # all bytes but the last have the highest bit set
        value |= (message[place] & 127) << shift
        place += 1
        shift += 7
    return value | message[place] << shift, place + 1


def folders_of(data: str) -> list[Path]:
    """Return the folders that may hold the files that cut the text of binarised data; that of the data itself is last.

    data: fairseq's list of folders, joined by os.pathsep; only the first is looked at

    If a recipe made the data, in CORPUS/bin or CORPUS/bin/shard00, the list begins with CORPUS, where recipe.json is,
    and the folder above the data, which may be the same.
    """
    first = Path(data.split(os.pathsep)[0])
    parents = list(first.absolute().parents)
    for corpus in parents[:2]:
        if (corpus / "recipe.json").is_file():
            return [corpus, first.absolute().parent, first]
    return [first]


def cutting_files(data: str) -> list[Path]:
    """Return the files that cut the text of binarised data, [] if there are none.

    Of the folders that folders_of names the first one with any counts: the data's own, and where a recipe made the data
    the one above it, then the recipe's. data: fairseq's list of folders, joined by os.pathsep; the first is looked at.
    """
    for folder in reversed(folders_of(data)):
        if (folder / SETTINGS).is_file():
            try:
                settings = read_json_object(folder / SETTINGS, "")
            except UserError:  # it is broken; commands that need it raise this error
                return []
            named = [folder / name for name in settings.values() if isinstance(name, str)]
            return [path for path in named if path.is_file()]

        for name in CUTTING:
            if (folder / name).is_file():
                return [folder / name]
    return []
