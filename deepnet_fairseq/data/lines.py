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
# letters of Indic scripts and Hebrew that NFC decomposes too: as one character and as several
_APART = [chr(code) for code in (*range(0x900, 0x1000), *range(0xFB1D, 0xFB50)) if len(normalize("NFC", chr(code))) > 1]
NEVER_COMPOSED = [re.compile("|".join(letters)) for letters in (_APART, [normalize("NFD", one) for one in _APART])]
BLANK = frozenset("\ufffd\u2581\u2800\u115f\u1160\u3164\uffa0\ufe0e\ufe0f")  # SentencePiece drops the first two
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None)


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
    with open_bytes(path) as file:
        yield from split_lines(file, "standard input" if path == STDIN else str(path), keepends)


def split_lines(file: IO[bytes], name: str, keepends: bool = False) -> Iterator[str]:
    """Yield lines of UTF-8 without a byte order mark and, unless keepends, without their \\n.

    Raises a UserError with the line's number for other bytes, and for a line above LONGEST.
    """
    for number, line in enumerate(iter(lambda: file.readline(LONGEST + 1), b""), 1):
        if len(line) > LONGEST:
            raise UserError(f"{name}, line {number}: is longer than {LONGEST:,} bytes; give a sentence a line")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{name}, line {number}: not UTF-8; convert it, say with iconv -t UTF-8") from None
        yield text if keepends else text.removesuffix("\n")


def is_blank(line: str) -> bool:
    """Return whether a line has no visible character (U+200B, BEL, U+FFFD, ...), so that a tokenizer may drop it."""
    usual = line[:1].isalnum() and line[0] not in BLANK  # four times as fast for most lines
    return not usual and all(char in BLANK or category(char) in INVISIBLE for char in line)


class Letters:
    """Counts, for each column of text, of lines with composed letters (é is one character) and with decomposed ones.

    Tokenizers treat the two as different letters. names: of the columns.
    """

    def __init__(self, names: Sequence[str]):
        self.names = (*names, *(f"{name} (nukta and dots)" for name in names))
        self.counts = [[0, 0] for _ in self.names]

    def add(self, rows: Iterable[tuple[str, ...]]) -> None:
        """Count in some rows of text."""
        columns = len(self.names) // 2
        for row in rows:
            for column, line in enumerate(row):
                if line.isascii():
                    continue
                forms = self.counts[column]
                forms[0] += not is_normalized("NFD", line)
                forms[1] += not is_normalized("NFC", line) and len(normalize("NFC", line)) < len(line)
                for form, pattern in enumerate(NEVER_COMPOSED):
                    self.counts[columns + column][form] += bool(pattern.search(line))

    def merge(self, other: Letters) -> None:
        """Add the counts of another part of the text, with as many columns."""
        for forms, more in zip(self.counts, other.counts, strict=True):
            forms[0] += more[0]
            forms[1] += more[1]

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
    return align(map(clean, read_lines(source)), map(clean, read_lines(target)), (str(source), str(target)), empty)


def align(
    sources: Iterator[str], targets: Iterator[str], names: tuple[str, str], empty: str = "keep"
) -> Iterator[tuple[str, str]]:
    """Yield the lines of two texts in pairs; raise a UserError, with their names, if one has more lines.

    empty: treatment of a pair with an empty side: "keep" it (a published test set, whose sentences must not change),
    "drop" it (training text), or raise a UserError with these words as the way out, as REMOVE.
    """
    for number, pair in enumerate(zip_longest(sources, targets), 1):
        if None in pair:
            rest = zip(pair, (sources, targets), strict=True)
            counts = [number - (line is None) + sum(1 for _ in lines) for line, lines in rest]
            both = " and ".join(f"{name} has {count:,} lines" for name, count in zip(names, counts, strict=True))
            raise UserError(f"{both}; each line must translate its twin")
        if empty == "keep" or not any(map(is_blank, pair)):
            yield pair
        elif empty != "drop":
            raise UserError(f"{names[not is_blank(pair[0])]}, line {number}: empty; {empty}")


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
    """Turn a disk's refusal of a write in the context into a UserError; `then`: the way out.

    The disk may be full, over quota or read-only. Errors of requests and of broken archives have no errno and pass
    through.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        then = "shorten the name" if error.errno == errno.ENAMETOOLONG else then
        raise UserError(f"{path}: could not be written ({os.strerror(error.errno)}); {then}") from error


def map_rows(function: Callable, rows: Iterable, workers: int, label: str, total: int | None = None) -> Iterator:
    """Yield function(row) of every row, one line or several, in order; see map_chunks."""
    for done in map_chunks(lambda chunk: [*map(function, chunk)], rows, workers, label, total):
        yield from done


def map_chunks(function: Callable, rows: Iterable, workers: int, label: str, total: int | None = None) -> Iterator:
    """Yield the results of function(rows) on lists of some thousand rows, in order, with a progress bar on a terminal.

    Several `workers` are processes forked from this one; a few chunks of rows are in memory at a time. total: rows, if
    known, for the time left.
    """
    with tqdm(desc=label, total=total, unit=" lines", unit_scale=True, disable=None) as bar:
        for size, result in sized_chunks(function, rows, workers):
            yield result
            bar.update(size)


def sized_chunks(function: Callable, rows: Iterable, workers: int) -> Iterator[tuple[int, Any]]:
    """Yield the number of rows and function(rows), as map_chunks, without a progress bar."""
    rows = iter(rows)
    chunks = iter(lambda: list(islice(rows, CHUNK)), [])
    first = list(islice(chunks, 2))

    if workers > 1 and len(first) > 1:
        yield from _in_processes(function, chain(first, chunks), workers)
    else:  # processes would take longer to start than one chunk takes
        for chunk in chain(first, chunks):
            yield len(chunk), function(chunk)


def _in_processes(function: Callable, chunks: Iterable[list], workers: int) -> Iterator[tuple[int, Any]]:
    with ProcessPoolExecutor(workers, _fork, _begin, (function,)) as pool:
        waiting: deque = deque()
        try:
            for chunk in chunks:
                waiting.append((len(chunk), pool.submit(_work, chunk)))
                if len(waiting) > 2 * workers:
                    size, future = waiting.popleft()
                    yield size, future.result()
            for size, future in waiting:
                yield size, future.result()
        except BrokenProcessPool:
            raise UserError(_killed("some --workers")) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # of what is still waiting after an interrupt


def in_child(function: Callable, *args: Any) -> Any:
    """Return function(*args) of a process forked from this one, whose memory is free afterwards.

    An interrupt ends it at once, even within a long call of C++. Raises what the function raises.
    """
    here, there = _fork.Pipe(duplex=False)
    child = _fork.Process(target=_answer, args=(there, function, args), daemon=False)
    child.start()
    there.close()
    try:
        result, error = here.recv()
    except EOFError:
        raise UserError(_killed("a smaller --vocab-sample")) from None
    finally:
        child.kill()
        child.join()
    if error is not None:
        raise error
    return result


def _answer(there: Connection, function: Callable, args: tuple) -> None:
    _end_with_parent()
    try:
        answer = function(*args), None
    except Exception as error:
        answer = None, error
    there.send(answer)


def _killed(less: str) -> str:
    return f"a process was killed, probably because memory ran out; {less} would need less"


_fork = multiprocessing.get_context("fork")  # a spawned process would import torch and fairseq once more
_function: Callable  # of a worker


def _begin(function: Callable) -> None:
    global _function
    _end_with_parent()
    _function = function


def _end_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent answers an interrupt for all
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _work(chunk: list) -> Any:
    return _function(chunk)
