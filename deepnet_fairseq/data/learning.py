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
# The memory of SentencePiece's training, measured with release 0.2.3 on 30,000 to 1,000,000 lines: a line takes 170
# bytes and twice its own length; a distinct word takes 65 to 80 bytes for each of its characters, once, however often
# it occurs. In scripts without blanks, whole sentences are words.
LINE = 170  # bytes for each line
TWICE = 2  # bytes for each byte of a line
CHARACTER = 80  # bytes for each character of a distinct word
SHARE = 16  # `memory` looks at one distinct word in 16, and multiplies what it finds by 16
BATCH = 10_000  # lines that are joined and looked at together, for speed
RESERVED = "\0\u2581\u2585"  # characters that SentencePiece gives a meaning of their own
RULES = "white_space.tsv"  # file of normalization rules, see _train


def sample_size(total: int, asked: int | None) -> tuple[int, int | None]:
    """Return how many of `total` lines a vocabulary is learnt from, and the bytes that they may take in memory.

    asked: lines that --vocab-sample asks for. They may take any number of bytes, so None is returned for the bytes.
        Without --vocab-sample, None, lines and bytes are limited by SAMPLE and ROOM.

    Raises a UserError for less than one line.
    """
    if asked is None:
        return min(total, SAMPLE), ROOM
    if asked < 1:
        raise UserError(f"--vocab-sample {asked}", "must be 1 or more")
    return min(total, asked), None


def sentencepiece_model(
    sentences: Iterable[str],
    vocab: int,
    room: int | None = None,
    whole_text: tuple[int, Set[str]] = (0, frozenset()),
    folder: Path | None = None,
    **options,
) -> bytes:
    """Train a SentencePiece BPE model in a process of its own, and return the bytes of its file.

    The model leaves characters as they are (by SentencePiece's own rules 10² becomes 102), except white space, which
    becomes a blank, because white space separates the pieces in fairseq's files.

    sentences: all sentences of a text, or a sample of them
    vocab: pieces of the model, those for control symbols included
    room: bytes that the sentences may take in SentencePiece's memory, None for any number; if they would take more, a
        random part of them is used, and that is printed
    whole_text: number of lines, and set of characters, of the text that the sentences are drawn from; if not all lines
        are used, a character that the used ones lack becomes a piece all the same
    folder: place for a temporary copy of the sentences, by default that of temporary files
    options: further arguments of SentencePieceTrainer.train

    Raises a UserError if the text does not allow so many pieces.
    """
    if vocab < 1:
        raise UserError(f"--vocab {vocab}", "must be 1 or more")
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
    """Choose how many sentences are used, and train a model on them, in the process of sentencepiece_model.

    sentences, room, whole_text, folder: as in sentencepiece_model; options: all arguments of SentencePieceTrainer.train

    Returns the bytes of the model, the number of all sentences, and how many of them were used.
    """
    folder = folder or Path(gettempdir())
    with writing(folder), TemporaryFile("w+", encoding="utf-8", newline="\n", dir=folder) as copy:
        drawn = 0
        for line in sentences:
            copy.write(f"{line}\n")
            drawn += 1

        def read_copy(count: int) -> Iterator[str]:
            """Yield `count` of the sentences, the same ones at each call."""
            copy.seek(0)
            lines = (line.removesuffix("\n") for line in iter(copy.readline, ""))
            if count == drawn:
                return lines
            return sample(lines, count=drawn, wanted=count, rng=Random("vocabulary"))

        # Fewer sentences have more distinct words per sentence, so one reduction in proportion may not be enough.
        used = drawn
        while room is not None and used > 1:
            needed = memory(read_copy(used))
            if needed <= room:
                break
            used = max(1, used * room // needed)

        lines_of_text, characters_of_text = whole_text
        if used < lines_of_text:
            unseen = _unseen_characters(characters_of_text, read_copy(used))
            if unseen:
                options = options | {"required_chars": unseen}
        return _train(read_copy(used), options), drawn, used


def memory(lines: Iterable[str]) -> int:
    """Estimate the bytes of memory that SentencePiece's training takes for lines of text.

    Each distinct word counts once. To bound the memory of this estimate itself, only words whose hash is a multiple of
    SHARE are looked at, and the number of their characters is multiplied by SHARE.
    """
    line_bytes = 0
    characters_of_words = 0  # of the distinct words that are looked at
    hashes: set[int] = set()  # of these words
    for batch in _batches(lines):
        line_bytes += sum(LINE + TWICE * len(line.encode()) for line in batch)
        for word in set("\n".join(batch).split()):
            word_hash = crc32(word.encode())
            if word_hash % SHARE == 0 and word_hash not in hashes:
                hashes.add(word_hash)
                characters_of_words += len(word)
    return line_bytes + CHARACTER * SHARE * characters_of_words


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines in lists of BATCH, the last of which may be shorter."""
    lines = iter(lines)
    while batch := list(islice(lines, BATCH)):
        yield batch


def _unseen_characters(characters_of_text: Set[str], lines: Iterable[str]) -> str:
    """Return the characters of a whole text that `lines`, a sample of it, lack, in one sorted string.

    White space and characters that SentencePiece reserves can be no pieces, so they are left out.
    """
    seen: set[str] = set()
    for batch in _batches(lines):
        seen |= characters("".join(batch))
    unseen = [char for char in characters_of_text - seen if not char.isspace() and char not in RESERVED]
    return "".join(sorted(unseen))


def _train(sentences: Iterator[str], options: dict) -> bytes:
    """Return the bytes of the model that SentencePiece learns; raise a UserError for a vocabulary size that it refuses.

    Changes the working folder of the process; options: arguments of SentencePieceTrainer.train.
    """
    model = io.BytesIO()
    with TemporaryDirectory() as folder:
        # SentencePiece writes the path of the rules into the model, whose bytes shall not depend on the name of a
        # temporary folder. So the path is relative, and this process, forked for the training, works in that folder.
        os.chdir(folder)
        white_space = [code for code in range(0x3001) if chr(code).isspace() and code != ord(" ")]
        Path(RULES).write_text("".join(f"{code:X}\t20\n" for code in white_space))  # each becomes U+0020, a blank
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences, model_writer=model, normalization_rule_tsv=RULES, **options
            )
        except RuntimeError as error:
            raise _refused_size(options["vocab_size"], str(error)) from error
    return model.getvalue()


def _refused_size(vocab: int, message: str) -> UserError:
    """Return the UserError for SentencePiece's error message about a vocabulary of `vocab` pieces."""
    largest = re.search(r"<= (\d+)", message)
    if largest:
        return UserError(f"--vocab {vocab}", f"this text supports at most {largest.group(1)} pieces")
    smallest = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if smallest:
        return UserError(f"--vocab {vocab}", f"below this text's {smallest.group(1)} characters; raise it")
    return UserError(f"--vocab {vocab}", f"SentencePiece cannot train on this text ({message})")
