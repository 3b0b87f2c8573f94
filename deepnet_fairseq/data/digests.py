"""Digests of a vocabulary: of a dictionary's symbols in their order, and of the files by which text is cut into them.

Two vocabularies are the same if their digests are: counts of symbols, names of files and dates do not matter. The files
that cut text are a SentencePiece model, BPE merges, or those that text.json names; cutting_files finds them in the
folder of the binarised data, or in one above it.

A SentencePiece model is a message of protobuf (ModelProto in sentencepiece_model.proto): a series of fields, each with
a number and a value, which may be a message itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..files import read_json_object, split_paths

KEY = "deepnet_vocabulary"  # key in a checkpoint's task_state, under which the digests of its vocabulary are
NAMES = ("source", "target", "pieces")  # of digests: two dictionaries, and the file that cut the text
Digests = dict[str, str | None]  # one of NAMES -> digest, None if it is not known
CUTTING = ("spm.model", "codes")  # names of files that cut text: a SentencePiece model, merges of subword-nmt
SETTINGS = "text.json"  # file beside the data of language models, which names the files that cut text; see lm_text.py
# Numbers of fields in ModelProto
PIECES = 1  # occurs once for each piece
TRAINER = 2
NORMALIZER = 3
CUTS = {  # number of a field of ModelProto -> numbers of the fields in its value that change how the model cuts
    TRAINER: {3, 24, 35},  # model_type, treat_whitespace_as_suffix, byte_fallback
    NORMALIZER: {2, 3, 4, 5},  # precompiled_charsmap and three switches; 6 is the name of a temporary file
}


def recorded(task_state: Any) -> Digests | None:
    """Return the digests in a checkpoint's task_state, None if it has none or none of them is known.

    Under KEY are the digests themselves, or, in a file that was loaded by fairseq and saved again, an origin
    (plugin/checkpoints/vocabulary.py), which has them under "digests".
    """
    entry = task_state.get(KEY) if isinstance(task_state, Mapping) else None
    if isinstance(entry, Mapping):
        entry = entry.get("digests", entry)
    if not isinstance(entry, Mapping):
        return None
    found = {name: entry.get(name) for name in NAMES}
    return found if any(found.values()) else None


def of_symbols(symbols: Iterable[str]) -> str:
    """Return the digest, in hexadecimal, of a dictionary's symbols in the order of their numbers."""
    # "surrogatepass": halves of a surrogate pair, which UTF-8 does not encode, raise no error
    return hashlib.sha256("\n".join(symbols).encode("utf-8", "surrogatepass")).hexdigest()


def of_cutting(paths: Iterable[Path]) -> str | None:
    """Return the digest, in hexadecimal, of the files that cut text, as cutting_files returns them.

    Returns None if there are none, or if one cannot be read.
    """
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
    """Return the parts of a file that decide how text is cut.

    For a SentencePiece model these are its pieces and the settings in CUTS. Names and settings of its training are left
    out: one of them may name a temporary file, so that a second training on the same text makes other bytes. For any
    other file it is the whole content.

    content: of the file
    """
    pieces = []
    rules = []
    try:
        for number, value in _fields(content):
            if number == PIECES:
                pieces.append(value)
            elif number in CUTS:
                rules += [setting for setting_number, setting in _fields(value) if setting_number in CUTS[number]]
    except (ValueError, IndexError):  # no message of protobuf, so no SentencePiece model
        return [content]
    return pieces + rules if pieces else [content]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number of the field, bytes that encode its value) for each field of a message of protobuf.

    A field begins with a tag, a varint: the lowest 3 bits are its wire type, which tells how long the value is, and the
    others its number (protobuf.dev/programming-guides/encoding). Raises a ValueError or IndexError for bytes that are
    no message.
    """
    place = 0  # index of the next byte to read
    while place < len(message):
        tag, place = _varint(message, place)
        number = tag >> 3
        kind = tag & 7  # the wire type
        begin = place  # of the value
        if kind == 0:  # a varint
            _, place = _varint(message, place)
        elif kind == 1:  # 64 bits
            place += 8
        elif kind == 2:  # a length, as a varint, and as many bytes: texts and messages
            size, begin = _varint(message, place)
            place = begin + size
        elif kind == 5:  # 32 bits
            place += 4
        else:
            raise ValueError(f"no field of protobuf: kind {kind}")
        if number == 0 or place > len(message):  # no field has the number 0, and none ends behind the message
            raise ValueError("no message of protobuf")
        yield number, message[begin:place]


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return (the number that a varint encodes, index of the byte behind it).

    A varint is a number in base 128: a byte for each digit, the lowest digit first, where all bytes but the last have
    their highest bit set.

    message: bytes of protobuf
    place: index of the varint's first byte
    """
    value = 0
    shift = 0
    while message[place] >= 128:  # not the last byte
        value |= (message[place] & 127) << shift
        place += 1
        shift += 7
    return value | message[place] << shift, place + 1


def folders_of(data: str) -> list[Path]:
    """Return the folders that may hold the files that cut the text of binarised data.

    For data that a recipe made, in CORPUS/bin or CORPUS/bin/shard00, these are CORPUS, where recipe.json is, the folder
    above that of the data, which may be the same, and the folder of the data. For other data it is their folder alone.

    data: the folder, or fairseq's list of folders, of which the first counts
    """
    first = Path(split_paths(data)[0])
    parents = list(first.absolute().parents)
    for corpus in parents[:2]:
        if (corpus / "recipe.json").is_file():
            return [corpus, first.absolute().parent, first]
    return [first]


def cutting_files(data: str) -> list[Path]:
    """Return the files that cut the text of binarised data, [] if there are none or if text.json is broken.

    They are looked for in the folder of the data, then, for data that a recipe made, in the one above it, and then in
    the recipe's (see folders_of); the first folder that has any counts.

    data: the folder, or fairseq's list of folders, of which the first counts
    """
    for folder in reversed(folders_of(data)):
        if (folder / SETTINGS).is_file():
            try:
                settings = read_json_object(folder / SETTINGS, "")
            except UserError:  # the file is broken; only commands that need it raise this error
                return []
            # some of its values are names of files, as "spm.model", and others are not, as "sentencepiece"
            named = [folder / name for name in settings.values() if isinstance(name, str)]
            return [path for path in named if path.is_file()]

        for name in CUTTING:
            if (folder / name).is_file():
                return [folder / name]
    return []
