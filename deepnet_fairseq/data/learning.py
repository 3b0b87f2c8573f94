"""Learn a SentencePiece model from a sample of text that fits into memory, however large the text is."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Set
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, TemporaryFile, gettempdir
from zlib import crc32

import sentencepiece
from tqdm import tqdm

from ..errors import UserError
from .lines import in_child, writing
from .survey import characters
from .vocabulary import sample

SAMPLE = 1_000_000  # lines of text that a vocabulary is learnt from, at most
ROOM = 1_000_000_000  # bytes that they take in SentencePiece's memory, at most
# Measured with SentencePiece 0.2.3 on 30,000 to 1,000,000 lines: a line takes 170 bytes and twice its own, a character
# of a word 65 to 80, but once for all places of the word. In scripts without blanks, whole sentences are words.
LINE = 170  # bytes a line
TWICE = 2  # bytes a byte of a line
CHARACTER = 80  # bytes a character of a distinct word
SHARE = 16  # one distinct word of so many is remembered, to estimate the number of all
BATCH = 10_000  # lines looked at together
RESERVED = "\0\u2581\u2585"  # characters that SentencePiece gives a meaning of their own
RULES = "white_space.tsv"


def sample_size(total: int, asked: int | None) -> tuple[int, int | None]:
    """Return how many of `total` lines a vocabulary is learnt from, and the bytes that they may take in memory.

    asked: lines that --vocab-sample asks for, which may take any number of bytes (None); None for as many as fit.
    Raises a UserError for less than one line.
    """
    if asked is None:
        return min(total, SAMPLE), ROOM
    if asked < 1:
        raise UserError(f"--vocab-sample {asked}: must be 1 or more")
    return min(total, asked), None


def sentencepiece_model(
    sentences: Iterable[str],
    vocab: int,
    room: int | None = None,
    whole_text: tuple[int, Set[str]] = (0, frozenset()),
    folder: Path | None = None,
    **options,
) -> bytes:
    """Train a SentencePiece BPE model in a process of its own; UserError if the text does not allow `vocab`.

    The model leaves characters as they are (by SentencePiece's own rules 10² becomes 102), except white space, which
    becomes a blank, because white space separates the pieces in fairseq's files.

    sentences: all of the text's, or a sample of them
    vocab: pieces of the model, those for control symbols included
    room: bytes that the sentences may take in SentencePiece's memory; if they would take more, a random part of them is
        used, and a line says so
    whole_text: number of lines, and set of characters, of the text that the sentences are drawn from; every character
        becomes a piece, even if the sample lacks it
    folder: place for a copy of the sentences, which is removed; by default that of temporary files
    options: SentencePiece's
    """
    if vocab < 1:
        raise UserError(f"--vocab {vocab}: must be 1 or more")
    options = {"model_type": "bpe", "vocab_size": vocab, "minloglevel": 2} | options
    model, drawn, used = in_child(_learn, sentences, room, whole_text, folder, options)
    if used < drawn:
        print(
            f"| {used:,} of these lines are used, for more would take over {tqdm.format_sizeof(room, 'B')} of memory; "
            "--vocab-sample N takes N lines, whatever they need"
        )
    return model


def _learn(
    sentences: Iterable[str],
    room: int | None,
    whole_text: tuple[int, Set[str]],
    folder: Path | None,
    options: dict,
) -> tuple[bytes, int, int]:
    """Train a model for sentencepiece_model, whose arguments these are.

    Returns the model, the number of sentences, and how many of them were used.
    """
    folder = folder or Path(gettempdir())
    with writing(folder), TemporaryFile("w+", encoding="utf-8", newline="\n", dir=folder) as copy:
        drawn = 0
        for line in sentences:
            copy.write(f"{line}\n")
            drawn += 1

        def read(count: int) -> Iterator[str]:
            """Yield `count` of the sentences, the same at each call."""
            copy.seek(0)
            lines = (line.removesuffix("\n") for line in iter(copy.readline, ""))
            return lines if count == drawn else sample(lines, count=drawn, wanted=count, rng=Random("vocabulary"))

        used = drawn
        while room is not None and used > 1:
            needed = memory(read(used))
            if needed <= room:
                break
            used = max(1, used * room // needed)

        lines, occurring = whole_text
        if used < lines:
            lacking = _without_pieces(occurring, read(used))
            if lacking:
                options = options | {"required_chars": lacking}
        return _train(read(used), options), drawn, used


def memory(lines: Iterable[str]) -> int:
    """Estimate the bytes that SentencePiece's training takes for lines of text.

    Words count once, wherever they occur. To bound the memory of this estimate, only those whose hash is a multiple of
    SHARE are remembered, and their length is multiplied by SHARE.
    """
    line_bytes = 0
    characters_of_words = 0  # in the remembered words
    hashes: set[int] = set()  # of the remembered words
    for batch in _batches(lines):
        line_bytes += sum(LINE + TWICE * len(line.encode()) for line in batch)
        for word in set("\n".join(batch).split()):
            word_hash = crc32(word.encode())
            if word_hash % SHARE == 0 and word_hash not in hashes:
                hashes.add(word_hash)
                characters_of_words += len(word)
    return line_bytes + CHARACTER * SHARE * characters_of_words


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines in lists of BATCH."""
    lines = iter(lines)
    while batch := list(islice(lines, BATCH)):
        yield batch


def _without_pieces(occurring: Set[str], lines: Iterable[str]) -> str:
    """Return, in one sorted string, the characters that occur in the whole text, but not in the sample `lines`.

    White space and characters that SentencePiece reserves never are pieces, so they are left out.
    """
    seen: set[str] = set()
    for batch in _batches(lines):
        seen |= characters("".join(batch))
    lacking = [char for char in occurring - seen if not char.isspace() and char not in RESERVED]
    return "".join(sorted(lacking))


def _train(sentences: Iterator[str], options: dict) -> bytes:
    """Return the model that SentencePiece learns; raise a UserError for a vocabulary of a size that it refuses."""
    model = io.BytesIO()
    with TemporaryDirectory() as folder:
        # SentencePiece writes the name of the rules into the model. It shall not vary, so it is relative to the working
        # folder, which changes for this process alone.
        os.chdir(folder)
        white_space = [code for code in range(0x3001) if chr(code).isspace() and code != ord(" ")]
        Path(RULES).write_text("".join(f"{code:X}\t20\n" for code in white_space))  # each becomes U+0020
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences, model_writer=model, normalization_rule_tsv=RULES, **options
            )
        except RuntimeError as error:
            raise _mistake(options["vocab_size"], str(error)) from error
    return model.getvalue()


def _mistake(vocab: int, said: str) -> UserError:
    """Return the UserError for what SentencePiece said of a vocabulary of `vocab` pieces."""
    largest = re.search(r"<= (\d+)", said)
    if largest:
        return UserError(f"--vocab {vocab}: this text supports at most {largest.group(1)} pieces")
    smallest = re.search(r"smaller than required_chars\. \d+ vs (\d+)", said)
    if smallest:
        return UserError(f"--vocab {vocab}: below this text's {smallest.group(1)} characters; raise it")
    return UserError(f"--vocab {vocab}: SentencePiece cannot train on this text ({said})")
