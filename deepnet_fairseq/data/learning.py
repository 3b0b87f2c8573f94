"""Learn a SentencePiece model from a sample of text that fits into memory, however large the text is."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator, Set
from functools import partial
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
LINE, TWICE, CHARACTER = 170, 2, 80
SHARE = 16  # one distinct word of so many is remembered, to estimate the number of all
BATCH = 10_000  # lines looked at together
RESERVED = "\0\u2581\u2585"  # characters that SentencePiece gives a meaning of their own
RULES = "white_space.tsv"


def sample_size(total: int, asked: int | None) -> tuple[int, int | None]:
    """Return how many of `total` lines a vocabulary is learnt from, and the bytes that they may take; None: any number.

    asked: by --vocab-sample, or None. Raises a UserError for less than one line.
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
    room: bytes that they may take in SentencePiece's memory; of more, an even part is used
    whole_text: lines and characters of the text that they are drawn from; every character becomes a piece
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
    """Return the model, the number of sentences, and how many of them were used."""
    folder = folder or Path(gettempdir())
    with writing(folder), TemporaryFile("w+", encoding="utf-8", newline="\n", dir=folder) as copy:
        drawn = 0
        for line in sentences:
            copy.write(f"{line}\n")
            drawn += 1

        def read(count: int) -> Iterator[str]:
            copy.seek(0)
            lines = (line.removesuffix("\n") for line in iter(copy.readline, ""))
            return lines if count == drawn else sample(lines, drawn, count, Random("vocabulary"))

        used = drawn
        while room is not None and used > 1 and (needed := memory(read(used))) > room:
            used = max(1, used * room // needed)
        lines, occurring = whole_text
        if used < lines and (lacking := _without_pieces(occurring, read(used))):
            options = options | {"required_chars": lacking}
        return _train(read(used), options), drawn, used


def memory(lines: Iterable[str]) -> int:
    """Estimate the bytes that SentencePiece's training takes for lines of text."""
    needed, length = 0, 0
    words: set[int] = set()
    for some in _batches(lines):
        needed += sum(LINE + TWICE * len(line.encode()) for line in some)
        for word in set("\n".join(some).split()):
            number = crc32(word.encode())
            if number % SHARE == 0 and number not in words:
                words.add(number)
                length += len(word)
    return needed + CHARACTER * SHARE * length


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    lines = iter(lines)
    return iter(lambda: list(islice(lines, BATCH)), [])


def _without_pieces(occurring: Set[str], lines: Iterable[str]) -> str:
    """Return the characters of the whole text that a sample lacks, without those that never are pieces."""
    seen: set[str] = set()
    for some in _batches(lines):
        seen |= characters("".join(some))
    return "".join(sorted(char for char in occurring - seen if not char.isspace() and char not in RESERVED))


def _train(sentences: Iterator[str], options: dict) -> bytes:
    model = io.BytesIO()
    with TemporaryDirectory() as rules:
        os.chdir(rules)  # of this process alone; SentencePiece writes the name into the model, which shall not vary
        blank = (f"{code:X}\t20\n" for code in range(0x3001) if chr(code).isspace() and code != ord(" "))
        Path(RULES).write_text("".join(blank))
        train = partial(sentencepiece.SentencePieceTrainer.train, sentence_iterator=sentences, model_writer=model)
        try:
            train(normalization_rule_tsv=RULES, **options)
        except RuntimeError as error:
            raise _mistake(options["vocab_size"], str(error)) from error
    return model.getvalue()


def _mistake(vocab: int, said: str) -> UserError:
    if limit := re.search(r"<= (\d+)", said):
        return UserError(f"--vocab {vocab}: this text supports at most {limit.group(1)} pieces")
    if limit := re.search(r"smaller than required_chars\. \d+ vs (\d+)", said):
        return UserError(f"--vocab {vocab}: below this text's {limit.group(1)} characters; raise it")
    return UserError(f"--vocab {vocab}: SentencePiece cannot train on this text ({said})")
