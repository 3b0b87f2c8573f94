"""Read and write text as a stream of lines, so that memory does not grow with it, and work on it in several processes.

Only \\n ends a line, as for other text tools. A row is what stands in one line of a text: the line itself, or a tuple
of the lines with the same number in several files, such as a sentence pair.

No process outlives the one that started it.
"""

from __future__ import annotations

import ctypes
import errno
import multiprocessing
import os
import re
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, islice, zip_longest
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any
from unicodedata import category, is_normalized, normalize

from tqdm import tqdm

from ..errors import UserError
from ..files import whole

Pairs = list[tuple[str, str]]  # sentences, source and target
REMOVE = "remove the pair from both files"  # end of errors about pairs with an empty side
STDIN = Path("-")  # as a file's name: standard input
CHUNK = 2000  # rows that a process takes at a time
LONGEST = 1 << 24  # bytes that a line may have
INVISIBLE = frozenset(("Cc", "Cf", "Zl", "Zp", "Zs"))  # categories of Unicode: control, format, separators
# Characters of other categories that count as invisible too: two that SentencePiece drops, the braille blank, Korean
# fillers, and the variation selectors of emoji.
BLANK = frozenset("\ufffd\u2581\u2800\u115f\u1160\u3164\uffa0\ufe0e\ufe0f")
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None)


def _letters_apart() -> dict[str, str]:
    """Return letter -> the several characters as which even NFC writes it.

    There are such letters in Indic scripts (with a nukta) and in Hebrew (with points).
    """
    apart = {}
    for code in (*range(0x900, 0x1000), *range(0xFB1D, 0xFB50)):
        letter = chr(code)
        composed = normalize("NFC", letter)
        if len(composed) > 1:
            apart[letter] = composed
    return apart


APART = _letters_apart()  # a text that is not normalised may have such a letter as one character all the same
NEVER_COMPOSED = [  # patterns of a letter of APART written as one character, and written as several
    re.compile("|".join(APART)),
    re.compile("|".join(normalize("NFD", letter) for letter in APART)),
]


def check_readable(path: Path) -> None:
    """Raise a UserError unless `path` is a file, a pipe as <(...) or /dev/stdin, or STDIN."""
    if path == STDIN:
        if sys.stdin is None:
            raise UserError(path, "standard input is closed; give a file")
    elif path.is_dir():
        raise UserError(path, "is a folder; give a file")
    elif not path.exists():
        raise UserError(path, "no such file")


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, a pipe or STDIN to read its bytes; standard input stays open at the end. Errors: check_readable."""
    check_readable(path)
    if path == STDIN:
        yield sys.stdin.buffer
        return
    with open(path, "rb") as file:
        yield file


@contextmanager
def rereadable(path: Path) -> Iterator[Path]:
    """Give a path that can be read more than once: `path` itself, or a temporary copy of what a pipe or STDIN holds.

    The copy is removed at the end of the context. A UserError that names the copy leaves the context with the name
    `path` instead.
    """
    check_readable(path)
    if path != STDIN and path.is_file():
        yield path
        return

    with TemporaryDirectory(prefix="deepnet-") as folder:
        copy = Path(folder) / "text"
        with (
            open_bytes(path) as pipe,
            writing(copy, "point TMPDIR to a place with more space"),
            open(copy, "wb") as file,
        ):
            shutil.copyfileobj(pipe, file)

        try:
            yield copy
        except UserError as error:
            raise UserError(str(error).replace(str(copy), str(path))) from error


def read_lines(path: Path, keepends: bool = False) -> Iterator[str]:
    """Yield the lines of a file, a pipe or standard input, without their \\n unless keepends.

    Raises the errors of check_readable and split_lines.
    """
    name = "standard input" if path == STDIN else str(path)
    with open_bytes(path) as file:
        yield from split_lines(file, name, keepends)


def split_lines(file: IO[bytes], name: str, keepends: bool = False) -> Iterator[str]:
    """Yield the lines of a file in UTF-8, without a byte order mark and, unless keepends, without their \\n.

    name: of the text, for errors. Raises a UserError with the number of a line that is not UTF-8, or longer than
    LONGEST.
    """
    read_line = partial(file.readline, LONGEST + 1)  # a whole line, which may have no end, could fill the memory
    for number, line in enumerate(iter(read_line, b""), 1):
        if len(line) > LONGEST:
            raise UserError(f"{name}, line {number}", f"is longer than {LONGEST:,} bytes; give a sentence a line")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{name}, line {number}", "not UTF-8; convert it, say with iconv -t UTF-8") from None
        yield text if keepends else text.removesuffix("\n")


def is_blank(line: str) -> bool:
    """Return whether a line has no visible character, so that a tokenizer may drop it.

    Characters as U+200B (zero width space), BEL and U+FFFD are not visible.
    """
    first = line[:1]
    if first.isalnum() and first not in BLANK:  # this decides about most lines, in a quarter of the time
        return False
    return all(char in BLANK or category(char) in INVISIBLE for char in line)


class Letters:
    """Counts of lines with composed letters (é is one character) and with decomposed ones, for each column of text.

    Tokenizers treat the two as different letters. A column is one side of parallel text, or plain text.

    names: of the columns, then the same names for the letters in APART
    counts: [lines with composed letters, lines with decomposed ones], for each of the names: first, of the letters that
        NFC writes as one character, then of those in APART
    """

    def __init__(self, names: Sequence[str]):
        never_composed = [f"{name} (nukta and dots)" for name in names]
        self.names = (*names, *never_composed)
        self.counts = [[0, 0] for _ in self.names]

    def add(self, rows: Iterable[tuple[str, ...]]) -> None:
        """Count some rows of text, each with a line for each column."""
        columns = len(self.names) // 2
        for row in rows:
            for column, line in enumerate(row):
                if line.isascii():
                    continue

                forms = self.counts[column]
                if not is_normalized("NFD", line):
                    forms[0] += 1
                # NFC makes a line shorter only by composing letters; what it replaces one by one does not count
                if not is_normalized("NFC", line) and len(normalize("NFC", line)) < len(line):
                    forms[1] += 1

                forms = self.counts[columns + column]
                for form, pattern in enumerate(NEVER_COMPOSED):
                    if pattern.search(line):
                        forms[form] += 1

    def merge(self, other: Letters) -> None:
        """Add the counts of another part of the text, with as many columns."""
        for forms, other_forms in zip(self.counts, other.counts, strict=True):
            forms[0] += other_forms[0]
            forms[1] += other_forms[1]

    def warn(self) -> None:
        """Print a warning for each column that has letters of both forms."""
        for name, (composed, decomposed) in zip(self.names, self.counts, strict=True):
            if composed and decomposed:
                print(
                    f"| WARNING: {name}: {composed:,} lines have composed letters (é is one character), {decomposed:,} "
                    "decomposed ones (e and its accent are two); to make them the same: uconv -x any-nfc"
                )


def note_letters(names: Sequence[str], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a warning for each column of text that has both composed and decomposed letters; see Letters.

    names: of the columns; rows: a line of each column
    """
    letters = Letters(names)
    letters.add(rows)
    letters.warn()


def one_line(text: str) -> str:
    """Return `text` without white space around it, and with blanks for what other tools take for line ends."""
    return " ".join(text.strip().splitlines())


def read_pairs(
    source: Path, target: Path, empty: str = "keep", clean: Callable[[str], str] = str
) -> Iterator[tuple[str, str]]:
    """Yield the lines of two files in pairs, each changed by the function `clean`.

    empty: treatment of pairs with an empty side, as in align. Raises the errors of read_lines and align.
    """
    sources = map(clean, read_lines(source))
    targets = map(clean, read_lines(target))
    return align(sources, targets, names=(str(source), str(target)), empty=empty)


def align(
    sources: Iterator[str], targets: Iterator[str], names: tuple[str, str], empty: str = "keep"
) -> Iterator[tuple[str, str]]:
    """Yield the lines of two texts in pairs; raise a UserError if one has more lines.

    names: of the texts, for errors
    empty: treatment of a pair with an empty side: "keep" it (a published test set, whose sentences must not change),
        "drop" it (training text), or any other words: raise a UserError that ends with them, as REMOVE
    """
    for number, pair in enumerate(zip_longest(sources, targets), 1):
        if None in pair:
            # zip_longest gives None for the shorter text, which has ended; the rest of the longer one is counted
            if pair[0] is None:
                counts = (number - 1, number + sum(1 for _ in targets))
            else:
                counts = (number + sum(1 for _ in sources), number - 1)
            both = " and ".join(f"{name} has {count:,} lines" for name, count in zip(names, counts, strict=True))
            raise UserError(f"{both}; each line must translate its twin")

        if empty == "keep" or not any(map(is_blank, pair)):
            yield pair
        elif empty != "drop":
            name = names[0] if is_blank(pair[0]) else names[1]
            raise UserError(f"{name}, line {number}", f"empty; {empty}")


def as_many(rows: Iterable, expected: int, path: Path) -> Iterator:
    """Yield the rows of a text that was read before; raise a UserError at the end unless there are still `expected`.

    path: file of the text, for the error
    """
    count = 0
    for row in rows:
        count += 1
        yield row
    if count != expected:
        raise UserError(path, f"changed from {expected:,} lines to {count:,} while it was read; start again")


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines to the file `path`, whole or not at all; return their number. Its folder is made if it is missing."""
    return write_columns([path], ((line,) for line in lines))


def write_columns(paths: list[Path], rows: Iterable[tuple[str, ...]]) -> int:
    """Write line i of every row to the file paths[i], each file whole or not at all; return the number of rows."""
    count = 0
    with ExitStack() as stack:
        files = []
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = stack.enter_context(whole(path))
            stack.enter_context(writing(path))
            files.append(stack.enter_context(open(part, "w", encoding="utf-8", newline="\n")))

        for row in rows:
            count += 1
            for file, line in zip(files, row, strict=True):
                file.write(f"{line}\n")
    return count


@contextmanager
def writing(path: Path, then: str = "free some space, or name another place"):
    """Turn an OSError in the context into a UserError, which says that `path` could not be written.

    The disk may be full, over quota or read-only. Errors of requests and of broken archives are OSErrors without errno,
    and pass through.

    then: the way out that the UserError names
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        if error.errno == errno.ENAMETOOLONG:
            then = "shorten the name"
        raise UserError(path, f"could not be written ({os.strerror(error.errno)}); {then}") from error


def map_rows(function: Callable, rows: Iterable, workers: int, label: str, total: int | None = None) -> Iterator:
    """Yield function(row) of every row, in order; workers, label, total: as for map_chunks."""

    def map_chunk(chunk: list) -> list:
        return list(map(function, chunk))

    for results in map_chunks(map_chunk, rows, workers, label=label, total=total):
        yield from results


def map_chunks(function: Callable, rows: Iterable, workers: int, label: str, total: int | None = None) -> Iterator:
    """Cut the rows into lists of CHUNK, and yield function(list) of each, in order; show a progress bar on a terminal.

    workers: processes, forked from this one if more than 1; a few lists of rows are in memory at a time
    label: of the bar
    total: number of rows, from which the bar estimates the time left, None if unknown
    """
    with tqdm(desc=label, total=total, unit=" lines", unit_scale=True, disable=None) as bar:
        for size, result in sized_chunks(function, rows, workers):
            yield result
            bar.update(size)


def sized_chunks(function: Callable, rows: Iterable, workers: int) -> Iterator[tuple[int, Any]]:
    """Yield (number of rows, function(list)) for lists of CHUNK rows, as map_chunks, but without a progress bar."""
    chunks = _chunks(rows)
    first_two = list(islice(chunks, 2))
    all_chunks = chain(first_two, chunks)

    if workers > 1 and len(first_two) > 1:
        yield from _in_processes(function, all_chunks, workers)
    else:  # processes would take longer to start than one chunk takes
        for chunk in all_chunks:
            yield len(chunk), function(chunk)


def _chunks(rows: Iterable) -> Iterator[list]:
    """Yield the rows in lists of CHUNK, the last of which may be shorter."""
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


def _in_processes(function: Callable, chunks: Iterable[list], workers: int) -> Iterator[tuple[int, Any]]:
    """Yield (length of the chunk, function(chunk)) of each chunk, in order, computed by processes forked from this one.

    No more than 2 * workers + 1 chunks and their results are in memory, however long the text. Raises a UserError if a
    process is killed.
    """
    with ProcessPoolExecutor(workers, mp_context=_fork, initializer=_begin_worker, initargs=(function,)) as pool:
        pending: deque = deque()  # (rows of the chunk, future of its result), the oldest first
        try:
            for chunk in chunks:
                pending.append((len(chunk), pool.submit(_work, chunk)))
                if len(pending) > 2 * workers:
                    size, future = pending.popleft()
                    yield size, future.result()
            for size, future in pending:
                yield size, future.result()
        except BrokenProcessPool:
            raise UserError(_killed_message("some --workers")) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an error or interrupt chunks may still be waiting


def in_child(function: Callable, *args: Any) -> Any:
    """Call function(*args) in a process forked from this one, whose memory is free afterwards, and return the result.

    An interrupt ends the process at once, even within a long call of C++. Raises what the function raises, and a
    UserError if the process is killed.
    """
    receiver, sender = _fork.Pipe(duplex=False)
    child = _fork.Process(target=_send_result, args=(sender, function, args), daemon=False)
    child.start()
    sender.close()  # then the child has the only open end to write to, and if it dies, recv() raises an EOFError

    try:
        result, error = receiver.recv()
    except EOFError:
        raise UserError(_killed_message("a smaller --vocab-sample")) from None
    finally:
        child.kill()
        child.join()

    if error is not None:
        raise error
    return result


def _send_result(sender: Connection, function: Callable, args: tuple) -> None:
    """Call function(*args) in the process of in_child; send (result, None), or (None, the exception that it raises)."""
    _end_with_parent()
    try:
        answer = (function(*args), None)
    except Exception as error:
        answer = (None, error)
    sender.send(answer)


def _killed_message(remedy: str) -> str:
    """Return the message of the UserError for a process that was killed; remedy: what would need less memory."""
    return f"a process was killed, probably because memory ran out; {remedy} would need less"


_fork = multiprocessing.get_context("fork")  # a spawned process would import torch and fairseq once more
# The function of _in_processes, in each of its workers. They have it from the fork, so that it need not be pickled, and
# may be a local function.
_worker_function: Callable


def _begin_worker(function: Callable) -> None:
    """Prepare a worker of _in_processes, which runs this first."""
    global _worker_function
    _end_with_parent()
    _worker_function = function


def _end_with_parent() -> None:
    """Have Linux kill this process when the one that forked it ends, and ignore interrupts, which that one handles."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handler, as of new_folder, came with the fork


def _work(chunk: list) -> Any:
    """Return the result of the function of _in_processes, in a worker."""
    return _worker_function(chunk)
