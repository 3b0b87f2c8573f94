"""Stream text line by line, never held in memory; only \\n ends a line, as for other text tools.

Work on lines may be done in several processes, none of which outlives this one.
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
REMOVE = "remove the pair from both files"
STDIN = Path("-")  # as a file's name: standard input
CHUNK = 2000  # rows that a process takes at a time
LONGEST = 1 << 24  # bytes of a line
INVISIBLE = frozenset(("Cc", "Cf", "Zl", "Zp", "Zs"))  # categories of Unicode: control, format, separators
BLANK = frozenset("\ufffd\u2581\u2800\u115f\u1160\u3164\uffa0\ufe0e\ufe0f")  # SentencePiece drops the first two
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None)


def _letters_apart() -> dict[str, str]:
    """Return the letters of Indic scripts and Hebrew that even NFC writes as several characters -> these."""
    apart = {}
    for code in (*range(0x900, 0x1000), *range(0xFB1D, 0xFB50)):
        letter = chr(code)
        composed = normalize("NFC", letter)
        if len(composed) > 1:
            apart[letter] = composed
    return apart


APART = _letters_apart()  # a text may have these letters as one character all the same
NEVER_COMPOSED = [  # patterns of such a letter written as one character, and as several
    re.compile("|".join(APART)),
    re.compile("|".join(normalize("NFD", letter) for letter in APART)),
]


def check_readable(path: Path) -> None:
    """Raise a UserError unless `path` can be read as text: a file, a pipe as <(...) or /dev/stdin, or STDIN."""
    if path == STDIN:
        if sys.stdin is None:
            raise UserError(f"{path}: standard input is closed; give a file")
    elif path.is_dir():
        raise UserError(f"{path}: is a folder; give a file")
    elif not path.exists():
        raise UserError(f"{path}: no such file")


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open what check_readable allows, to read bytes; standard input stays open at the end."""
    check_readable(path)
    if path == STDIN:
        yield sys.stdin.buffer
        return
    with open(path, "rb") as file:
        yield file


@contextmanager
def rereadable(path: Path) -> Iterator[Path]:
    """Give a path that can be read more than once: `path` itself, or of a pipe a copy, which is removed at the end.

    A UserError that names the copy in the context names `path` instead.
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
    """Yield the lines of a file, a pipe or standard input; see check_readable and split_lines."""
    name = "standard input" if path == STDIN else str(path)
    with open_bytes(path) as file:
        yield from split_lines(file, name, keepends)


def split_lines(file: IO[bytes], name: str, keepends: bool = False) -> Iterator[str]:
    """Yield lines of UTF-8 without a byte order mark and, unless keepends, without their \\n.

    name: of the text, for errors. Raises a UserError with the line's number for other bytes, and for a line above
    LONGEST.
    """
    read_line = partial(file.readline, LONGEST + 1)  # a line without end would fill the memory
    for number, line in enumerate(iter(read_line, b""), 1):
        if len(line) > LONGEST:
            raise UserError(f"{name}, line {number}: is longer than {LONGEST:,} bytes; give a sentence a line")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{name}, line {number}: not UTF-8; convert it, say with iconv -t UTF-8") from None
        yield text if keepends else text.removesuffix("\n")


def is_blank(line: str) -> bool:
    """Return whether a line has no visible character (U+200B, BEL, U+FFFD, ...), so that a tokenizer may drop it."""
    first = line[:1]
    if first.isalnum() and first not in BLANK:  # most lines are told by this alone, four times as fast
        return False
    return all(char in BLANK or category(char) in INVISIBLE for char in line)


class Letters:
    """Counts, for each column of text, of lines with composed letters (é is one character) and with decomposed ones.

    Tokenizers treat the two as different letters. names: of the columns. Each column has two counts, [composed,
    decomposed]: in the first half of `counts` of the letters that NFC composes, in the second of those in APART.
    """

    def __init__(self, names: Sequence[str]):
        never_composed = [f"{name} (nukta and dots)" for name in names]
        self.names = (*names, *never_composed)
        self.counts = [[0, 0] for _ in self.names]

    def add(self, rows: Iterable[tuple[str, ...]]) -> None:
        """Count in some rows of text."""
        columns = len(self.names) // 2
        for row in rows:
            for column, line in enumerate(row):
                if line.isascii():
                    continue

                forms = self.counts[column]
                if not is_normalized("NFD", line):
                    forms[0] += 1
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
        """Print a line for each column that has letters of both forms."""
        for name, (composed, decomposed) in zip(self.names, self.counts, strict=True):
            if composed and decomposed:
                print(
                    f"| WARNING: {name}: {composed:,} lines have composed letters (é is one character), {decomposed:,} "
                    "decomposed ones (e and its accent are two); to make them the same: uconv -x any-nfc"
                )


def note_letters(names: Sequence[str], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a line for each column of text that mixes composed and decomposed letters; see Letters."""
    letters = Letters(names)
    letters.add(rows)
    letters.warn()


def one_line(text: str) -> str:
    """Strip `text`, and replace characters that other tools take for the end of a line by blanks."""
    return " ".join(text.strip().splitlines())


def read_pairs(
    source: Path, target: Path, empty: str = "keep", clean: Callable[[str], str] = str
) -> Iterator[tuple[str, str]]:
    """Yield the lines of two files in pairs, each through `clean`; see align. UserError as from read_lines."""
    sources = map(clean, read_lines(source))
    targets = map(clean, read_lines(target))
    return align(sources, targets, names=(str(source), str(target)), empty=empty)


def align(
    sources: Iterator[str], targets: Iterator[str], names: tuple[str, str], empty: str = "keep"
) -> Iterator[tuple[str, str]]:
    """Yield the lines of two texts in pairs; raise a UserError, with their names, if one has more lines.

    empty: treatment of a pair with an empty side: "keep" it (a published test set, whose sentences must not change),
    "drop" it (training text), or raise a UserError with these words as the way out, as REMOVE.
    """
    for number, pair in enumerate(zip_longest(sources, targets), 1):
        if None in pair:
            # None stands for a line of the shorter text, which has ended; the rest of the longer one is counted
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
            raise UserError(f"{name}, line {number}: empty; {empty}")


def as_many(rows: Iterable, expected: int, path: Path) -> Iterator:
    """Yield the rows of a text that was read before; UserError, naming its file, if there are not as many any more."""
    count = 0
    for row in rows:
        count += 1
        yield row
    if count != expected:
        raise UserError(f"{path}: changed from {expected:,} lines to {count:,} while it was read; start again")


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write `path` whole, and its folder if there is none; return the number of lines."""
    return write_columns([path], ((line,) for line in lines))


def write_columns(paths: list[Path], rows: Iterable[tuple[str, ...]]) -> int:
    """Write column i of every row to paths[i], each whole; return the number of rows."""
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
    """Turn a disk's refusal to write `path` in the context into a UserError.

    The disk may be full, over quota or read-only. Errors of requests and of broken archives have no errno and pass
    through. then: the way out that the error names.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        if error.errno == errno.ENAMETOOLONG:
            then = "shorten the name"
        raise UserError(f"{path}: could not be written ({os.strerror(error.errno)}); {then}") from error


def map_rows(function: Callable, rows: Iterable, workers: int, label: str, total: int | None = None) -> Iterator:
    """Yield function(row) of every row, one line or several, in order; see map_chunks."""

    def map_chunk(chunk: list) -> list:
        return list(map(function, chunk))

    for results in map_chunks(map_chunk, rows, workers, label=label, total=total):
        yield from results


def map_chunks(function: Callable, rows: Iterable, workers: int, label: str, total: int | None = None) -> Iterator:
    """Yield the results of function(rows) on lists of some thousand rows, in order, with a progress bar on a terminal.

    Several `workers` are processes forked from this one; a few chunks of rows are in memory at a time. label: of the
    bar; total: rows, if known, for the time left.
    """
    with tqdm(desc=label, total=total, unit=" lines", unit_scale=True, disable=None) as bar:
        for size, result in sized_chunks(function, rows, workers):
            yield result
            bar.update(size)


def sized_chunks(function: Callable, rows: Iterable, workers: int) -> Iterator[tuple[int, Any]]:
    """Yield the number of rows and function(rows), as map_chunks, without a progress bar."""
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
    """Yield the length and function(chunk) of each chunk, in order, computed by processes forked from this one.

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
            pool.shutdown(wait=False, cancel_futures=True)  # of what is still waiting after an interrupt


def in_child(function: Callable, *args: Any) -> Any:
    """Return function(*args) of a process forked from this one, whose memory is free afterwards.

    An interrupt ends it at once, even within a long call of C++. Raises what the function raises.
    """
    receiver, sender = _fork.Pipe(duplex=False)
    child = _fork.Process(target=_send_result, args=(sender, function, args), daemon=False)
    child.start()
    sender.close()  # the child has the only copy then, so that its death ends recv()

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
    """Send (result, None) of function(*args), or (None, the exception that it raises), from a process of in_child."""
    _end_with_parent()
    try:
        answer = (function(*args), None)
    except Exception as error:
        answer = (None, error)
    sender.send(answer)


def _killed_message(remedy: str) -> str:
    """Return the message of an error; remedy: a flag with which the work needs less memory."""
    return f"a process was killed, probably because memory ran out; {remedy} would need less"


_fork = multiprocessing.get_context("fork")  # a spawned process would import torch and fairseq once more
_worker_function: Callable  # in each worker of _in_processes, which has it by the fork: it need not be pickled


def _begin_worker(function: Callable) -> None:
    global _worker_function
    _end_with_parent()
    _worker_function = function


def _end_with_parent() -> None:
    """Have Linux kill this process when the one that forked it ends, and leave an interrupt to that one."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers an interrupt for all
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _work(chunk: list) -> Any:
    return _worker_function(chunk)
