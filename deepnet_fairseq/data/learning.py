"""Learn a SentencePiece model from a sample of text that fits into memory, however large the text is.

The sample may be limited twice: to a number of lines, and to those of them that SentencePiece has the memory for.
"""

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

# Limits of the sample, unless --vocab-sample gives its number of lines
MOST_LINES = 1_000_000
MOST_MEMORY = 1_000_000_000  # bytes that the lines may take in SentencePiece's memory
# The memory of SentencePiece's training, measured with release 0.2.3 on 30,000 to 1,000,000 lines: a line takes 170
# bytes and twice its own length; a distinct word takes 65 to 80 bytes for each of its characters, once, however often
# it occurs. In scripts without blanks, whole sentences are words.
PER_LINE = 170  # bytes of memory
PER_BYTE = 2  # bytes of memory for each byte of a line
PER_CHARACTER = 80  # bytes of memory for each character of a distinct word
ONE_WORD_IN = 16  # estimated_memory looks at one distinct word in so many
BATCH = 10_000  # lines that are joined and looked at together, for speed
RESERVED = "\0\u2581\u2585"  # characters that SentencePiece gives a meaning of their own
RULES = "white_space.tsv"  # file of normalization rules, see _train


def sample_limits(total: int, asked: int | None) -> tuple[int, int | None]:
    """Return (number of lines that a vocabulary is learnt from, bytes of memory that they may take or None for any).

    total: number of lines that the text has
    asked: number of lines that are asked for, as by --vocab-sample, and may take any memory; None to take MOST_LINES
        and MOST_MEMORY as the limits

    Raises a UserError if less than one line is asked for.
    """
    if asked is None:
        return min(total, MOST_LINES), MOST_MEMORY
    if asked < 1:
        raise UserError(f"--vocab-sample {asked}", "must be 1 or more")
    return min(total, asked), None


def sentencepiece_model(
    sentences: Iterable[str],
    vocab: int,
    memory_limit: int | None = None,
    whole_text: tuple[int, Set[str]] = (0, frozenset()),
    folder: Path | None = None,
    **options,
) -> bytes:
    """Train a SentencePiece BPE model in a process of its own, and return the bytes of its file.

    The model leaves characters as they are (by SentencePiece's own rules 10² becomes 102), except white space, which
    becomes a blank, because white space separates the pieces in fairseq's files.

    sentences: all sentences of a text, or a sample of them
    vocab: number of pieces of the model, those for <s>, </s> and <unk> included
    memory_limit: bytes that the sentences may take in SentencePiece's memory, None for any number; if they would take
        more, a random part of them is used, and that is printed
    whole_text: (number of lines, set of characters) of the text that the sentences are drawn from. If not all of its
        lines are used, each of these characters becomes a piece all the same. By default no characters are added.
    folder: place for a temporary copy of the sentences; None for the system's folder of temporary files
    options: further arguments of SentencePieceTrainer.train

    Raises a UserError if the text does not allow so many pieces.
    """
    if vocab < 1:
        raise UserError(f"--vocab {vocab}", "must be 1 or more")
    options = {"model_type": "bpe", "vocab_size": vocab, "minloglevel": 2} | options  # 2: errors only
    model, drawn, used = in_child(_learn, sentences, memory_limit, whole_text, folder, options)
    if used < drawn:
        limit = tqdm.format_sizeof(memory_limit, "B")
        print(
            f"| {used:,} of these lines are used, for more would take over {limit} of memory; "
            "--vocab-sample N takes N lines, whatever they need"
        )
    return model


def _learn(
    sentences: Iterable[str],
    memory_limit: int | None,
    whole_text: tuple[int, Set[str]],
    folder: Path | None,
    options: dict,
) -> tuple[bytes, int, int]:
    """Choose how many sentences fit into memory, and train a model on so many, in the process of sentencepiece_model.

    sentences, memory_limit, whole_text, folder: as in sentencepiece_model
    options: all arguments of SentencePieceTrainer.train but the sentences

    Returns (bytes of the model, number of all sentences, how many of them were used).
    """
    folder = folder or Path(gettempdir())
    with writing(folder), TemporaryFile("w+", encoding="utf-8", newline="\n", dir=folder) as copy:
        drawn = 0  # number of sentences; they are copied to a file because they have to be read several times
        for line in sentences:
            copy.write(f"{line}\n")
            drawn += 1

        def read_copy(count: int) -> Iterator[str]:
            """Return an iterator of `count` of the sentences, the same ones at each call."""
            copy.seek(0)
            lines = (line.removesuffix("\n") for line in iter(copy.readline, ""))
            if count == drawn:
                return lines
            return sample(lines, count=drawn, wanted=count, rng=Random("vocabulary"))

        # Reduce the number in proportion until they fit. Once may not be enough, because fewer sentences have more
        # distinct words per sentence.
        used = drawn
        while memory_limit is not None and used > 1:
            needed = estimated_memory(read_copy(used))
            if needed <= memory_limit:
                break
            used = max(1, used * memory_limit // needed)

        # Characters of the whole text that these sentences lack become pieces too.
        lines_of_text, characters_of_text = whole_text
        if used < lines_of_text:
            unseen = _unseen_characters(characters_of_text, read_copy(used))
            if unseen:
                options = options | {"required_chars": unseen}
        return _train(read_copy(used), options), drawn, used


def estimated_memory(lines: Iterable[str]) -> int:
    """Estimate the bytes of memory that SentencePiece's training takes for lines of text.

    The estimate is PER_LINE for each line, PER_BYTE for each of its bytes, and PER_CHARACTER for each character of each
    distinct word. The distinct words could fill the memory themselves, so only those whose hash is a multiple of
    ONE_WORD_IN are looked at, and the number of their characters is multiplied by it.
    """
    line_memory = 0  # bytes
    characters_of_words = 0  # of the distinct words that are looked at
    hashes: set[int] = set()  # of these words, to know those that came before
    for batch in _batches(lines):
        line_memory += sum(PER_LINE + PER_BYTE * len(line.encode()) for line in batch)
        for word in set("\n".join(batch).split()):
            word_hash = crc32(word.encode())
            if word_hash % ONE_WORD_IN == 0 and word_hash not in hashes:
                hashes.add(word_hash)
                characters_of_words += len(word)
    return line_memory + PER_CHARACTER * ONE_WORD_IN * characters_of_words


def _batches(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the lines in lists of BATCH, the last of which may be shorter."""
    lines = iter(lines)
    while batch := list(islice(lines, BATCH)):
        yield batch


def _unseen_characters(characters_of_text: Set[str], lines: Iterable[str]) -> str:
    """Return the characters of a text that a sample of its lines lacks, as one sorted string.

    White space and characters that SentencePiece reserves are left out, because they cannot be pieces.

    characters_of_text: of the whole text
    lines: of the sample
    """
    seen: set[str] = set()
    for batch in _batches(lines):
        seen |= characters("".join(batch))
    unseen = [char for char in characters_of_text - seen if not char.isspace() and char not in RESERVED]
    return "".join(sorted(unseen))


def _train(sentences: Iterator[str], options: dict) -> bytes:
    """Return the bytes of the model that SentencePiece learns; raise a UserError if it refuses to learn one.

    The working folder of the process is another one afterwards, which has been deleted.

    options: arguments of SentencePieceTrainer.train, but the sentences
    """
    model = io.BytesIO()
    with TemporaryDirectory() as folder:
        # SentencePiece writes the path of the file of rules into the model. The bytes of the model shall not depend on
        # the name of a temporary folder, so the path is relative to it, the working folder of this process, which was
        # forked for the training.
        os.chdir(folder)
        # the last white space of Unicode is U+3000
        white_space = [code for code in range(0x3001) if chr(code).isspace() and code != ord(" ")]
        # a rule is a line CODE<tab>CODE in hexadecimal: each of these characters becomes U+0020, a blank
        Path(RULES).write_text("".join(f"{code:X}\t20\n" for code in white_space))
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=sentences, model_writer=model, normalization_rule_tsv=RULES, **options
            )
        except RuntimeError as error:
            raise _refused_size(options["vocab_size"], str(error)) from error
    return model.getvalue()


def _refused_size(vocab: int, message: str) -> UserError:
    """Return the UserError that puts SentencePiece's error message about a vocabulary of `vocab` pieces in our words.

    message: of SentencePiece; it may name the largest or smallest number of pieces that the text allows
    """
    largest = re.search(r"<= (\d+)", message)
    if largest:
        return UserError(f"--vocab {vocab}", f"this text supports at most {largest.group(1)} pieces")
    smallest = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if smallest:
        return UserError(f"--vocab {vocab}", f"below this text's {smallest.group(1)} characters; raise it")
    return UserError(f"--vocab {vocab}", f"SentencePiece cannot train on this text ({message})")
