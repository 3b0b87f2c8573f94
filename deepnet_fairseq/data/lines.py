"""Read and write text as a stream of lines, so that memory does not grow with it, and work on it in several processes.

Only \\n ends a line, as for other text tools. A text may have several columns with equally many lines; the columns of
parallel text are its languages. A row is a line, or a tuple with one line of each column, such as a sentence pair.

A letter with an accent is composed, é as one character (Unicode's NFC), or decomposed, e and an accent (NFD). Letters
apart are letters of Indic scripts, Tibetan and Hebrew that Unicode writes as several characters even in NFC; a text
that is not normalised may have them as one character all the same.

Work is divided among processes that are forked from this one. None outlives it.
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
from ..wording import counted

Pairs = list[tuple[str, str]]  # sentences, source and target
REMOVE = "remove the pair from both files"  # `empty` of `align`: the end of its error about a pair with an empty side
STDIN = Path("-")  # as a file's name: standard input
CHUNK = 2000  # rows that a process works on at a time
LONGEST = 1 << 24  # bytes that a line may have
INVISIBLE = frozenset(("Cc", "Cf", "Zl", "Zp", "Zs"))  # categories of Unicode: control, format, separators
# Characters of other categories that count as invisible too: two that SentencePiece drops, the braille blank, Korean
# fillers, and the variation selectors of emoji.
BLANK = frozenset("\ufffd\u2581\u2800\u115f\u1160\u3164\uffa0\ufe0e\ufe0f")
PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None)


def _letters_apart() -> dict[str, str]:
    """Return letter -> several characters, for each letter that NFC replaces by several characters.

    They are in Indic scripts (with a nukta), in Tibetan, and in Hebrew (with points).
    """
    apart = {}
    for code in (*range(0x900, 0x1000), *range(0xFB1D, 0xFB50)):  # blocks of Indic scripts and Tibetan, and of Hebrew
        letter = chr(code)
        composed = normalize("NFC", letter)
        if len(composed) > 1:
            apart[letter] = composed
    return apart


APART = _letters_apart()  # letter apart, as one character -> as several
NEVER_COMPOSED = [  # patterns of a letter apart written as one character, and written as several
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
    """Open a file, a pipe or STDIN to read its bytes; standard input stays open at the end.

    Raises a UserError if there is no such file.
    """
    check_readable(path)
    if path == STDIN:
        yield sys.stdin.buffer
        return
    with open(path, "rb") as file:
        yield file


@contextmanager
def rereadable(path: Path) -> Iterator[Path]:
    """Give a path that can be read more than once: `path` itself, or that of a temporary copy of a pipe or STDIN.

    The copy is removed at the end of the context. If a UserError in the context names the copy, `path` is put in the
    place of that name, because the user does not know the copy.
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
    """Yield the lines of a UTF-8 file, a pipe or standard input, without a byte order mark.

    keepends: whether lines keep their \\n

    Raises a UserError for a missing file, and for a line that is not UTF-8 or longer than LONGEST.
    """
    name = "standard input" if path == STDIN else str(path)
    with open_bytes(path) as file:
        yield from split_lines(file, name, keepends)


def split_lines(file: IO[bytes], name: str, keepends: bool = False) -> Iterator[str]:
    """Yield the lines of an open file in UTF-8, without a byte order mark.

    name: of the text, for errors
    keepends: whether lines keep their \\n

    Raises a UserError with the number of a line that is not UTF-8, or longer than LONGEST.
    """
    read_line = partial(file.readline, LONGEST + 1)  # no more, because a file without line ends could fill the memory
    for number, line in enumerate(iter(read_line, b""), 1):  # b"" at the end of the file
        if len(line) > LONGEST:
            raise UserError(f"{name}, line {number}", f"is longer than {LONGEST:,} bytes; give a sentence a line")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")  # -sig: without a byte order mark
        except UnicodeDecodeError:
            raise UserError(f"{name}, line {number}", "not UTF-8; convert it, say with iconv -t UTF-8") from None
        yield text if keepends else text.removesuffix("\n")


def is_blank(line: str) -> bool:
    """Return whether a line has no visible character, so that a tokenizer may drop it.

    Not visible are characters of the categories INVISIBLE, such as blanks, U+200B (zero width space) and BEL, and those
    in BLANK.
    """
    first = line[:1]
    if first.isalnum() and first not in BLANK:  # decides most cases, and faster; BLANK has characters that are alnum
        return False
    return all(char in BLANK or category(char) in INVISIBLE for char in line)


class Letters:
    """Counts of lines with composed letters and of lines with decomposed ones, for each column of a text.

    A tokenizer takes a composed letter and the same letter decomposed for different ones, so a text should have one
    form only. Letters apart are counted separately, because NFC does not compose them.

    names: of the columns, for warnings: each once for usual letters, then each once for letters apart
    counts: for each of the names [lines with composed letters, lines with decomposed letters]
    """

    def __init__(self, names: Sequence[str]):
        never_composed = [f"{name} (nukta and dots)" for name in names]
        self.names = (*names, *never_composed)
        self.counts = [[0, 0] for _ in self.names]

    def add(self, rows: Iterable[tuple[str, ...]]) -> None:
        """Count some rows of text, each with one line of each column."""
        columns = len(self.names) // 2
        for row in rows:
            for column, line in enumerate(row):
                if line.isascii():  # it has no letters of either kind
                    continue

                usual = self.counts[column]
                if not is_normalized("NFD", line):  # something can be decomposed, letters apart included
                    usual[0] += 1
                # NFC makes a line shorter only by composing letters; what it replaces one by one does not count
                if not is_normalized("NFC", line) and len(normalize("NFC", line)) < len(line):
                    usual[1] += 1

                apart = self.counts[columns + column]
                for form, pattern in enumerate(NEVER_COMPOSED):
                    if pattern.search(line):
                        apart[form] += 1

    def merge(self, other: Letters) -> None:
        """Add the counts of another text, or of another part of this one, with as many columns."""
        for counts, other_counts in zip(self.counts, other.counts, strict=True):
            counts[0] += other_counts[0]
            counts[1] += other_counts[1]

    def warn(self) -> None:
        """Print a warning for each column that has both composed and decomposed letters."""
        for name, (composed, decomposed) in zip(self.names, self.counts, strict=True):
            if composed and decomposed:
                print(
                    f"| WARNING: {name}: letters are composed in {counted(composed, 'line')} (é is one character) and "
                    f"decomposed in {decomposed:,} (e and its accent are two); to make them the same: uconv -x any-nfc"
                )


def one_line(text: str) -> str:
    """Return a text in which no tool finds a line end: without white space around it, and with blanks for line ends.

    Line ends are \\n and the other characters at which str.splitlines splits, as \\r, U+0085 and U+2028.
    """
    return " ".join(text.strip().splitlines())


def read_pairs(
    source: Path, target: Path, empty: str = "keep", clean: Callable[[str], str] = str
) -> Iterator[tuple[str, str]]:
    """Return an iterator of pairs: line i of the file `source` and line i of the file `target`.

    empty: what is done with a pair that has an empty side, as in align: "keep" it, "drop" it, or end of an error
    clean: function that changes each line, such as one_line; by default lines stay as they are

    The iterator raises a UserError for a missing file, bad UTF-8, unequal numbers of lines, or, as `empty` asks, for an
    empty side.
    """
    sources = map(clean, read_lines(source))
    targets = map(clean, read_lines(target))
    return align(sources, targets, names=(str(source), str(target)), empty=empty)


def align(
    sources: Iterator[str], targets: Iterator[str], names: tuple[str, str], empty: str = "keep"
) -> Iterator[tuple[str, str]]:
    """Yield the lines of two texts in pairs; raise a UserError if one has more lines.

    names: of the two texts, for errors
    empty: what is done with a pair that has an empty side (see is_blank). "keep": it is yielded, as in test sets, whose
        sentences must not change. "drop": it is left out, as of training text. Any other words: a UserError is raised
        whose message ends with them, as REMOVE.
    """
    for number, pair in enumerate(zip_longest(sources, targets), 1):
        if None in pair:
            # The shorter text has ended before, and zip_longest gives None for it. The longer one has this line and the
            # rest, which is counted for the message.
            if pair[0] is None:
                counts = (number - 1, number + sum(1 for _ in targets))
            else:
                counts = (number + sum(1 for _ in sources), number - 1)
            both = " and ".join(
                f"{name} has {counted(count, 'line')}" for name, count in zip(names, counts, strict=True)
            )
            raise UserError(f"{both}; each line must translate its twin")

        if empty == "keep" or not any(map(is_blank, pair)):
            yield pair
        elif empty != "drop":
            name = names[0] if is_blank(pair[0]) else names[1]
            raise UserError(f"{name}, line {number}", f"empty; {empty}")


def as_many(rows: Iterable, expected: int, path: Path) -> Iterator:
    """Yield the rows of a text; raise a UserError at the end if there were not `expected` of them.

    The text was read and counted before, and somebody may have changed its file since.

    path: of the file, for the error
    """
    count = 0
    for row in rows:
        count += 1
        yield row
    if count != expected:
        raise UserError(path, f"changed from {counted(expected, 'line')} to {count:,} while it was read; start again")


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines to a file, which appears whole or not at all; return their number. Missing folders are made."""
    return write_columns([path], ((line,) for line in lines))


def write_columns(paths: list[Path], rows: Iterable[tuple[str, ...]]) -> int:
    """Write each column of a text to a file of its own; return the number of rows.

    Each file appears whole or not at all. Missing folders are made.

    paths: of the files, one for each column
    rows: each with one line of each column
    """
    count = 0
    with ExitStack() as stack:
        files = []
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = stack.enter_context(whole(path))  # a temporary path, which becomes `path` at the end
            stack.enter_context(writing(path))  # raises a UserError if the disk is full
            files.append(stack.enter_context(open(part, "w", encoding="utf-8", newline="\n")))

        for row in rows:
            count += 1
            for file, line in zip(files, row, strict=True):
                file.write(f"{line}\n")
    return count


@contextmanager
def writing(path: Path, then: str = "free some space, or name another place") -> Iterator[None]:
    """Turn an OSError in the context into a UserError, which says that `path` could not be written.

    This is for disks that are full, over quota or read-only. Errors of the library requests and of broken archives are
    OSErrors too, but have no errno; they are raised as they are.

    then: end of the message, which tells the user what to do then
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
    """Yield function(row) of every row, in order, computed by several processes; show a progress bar on a terminal.

    workers: number of processes
    label: of the bar
    total: number of rows, from which the bar estimates the time left; None if unknown
    """

    def map_chunk(chunk: list) -> list:
        return list(map(function, chunk))

    for results in map_chunks(map_chunk, rows, workers, label=label, total=total):
        yield from results


def map_chunks(function: Callable, rows: Iterable, workers: int, label: str, total: int | None = None) -> Iterator:
    """Divide the rows into lists of CHUNK, and yield function(list) of each, in order, computed by several processes.

    A progress bar is shown on a terminal. A few lists are in memory at a time.

    workers: number of processes; this process does the work if it is 1, or if there is one list only
    label: of the bar
    total: number of rows, from which the bar estimates the time left; None if unknown
    """
    with tqdm(desc=label, total=total, unit=" lines", unit_scale=True, disable=None) as bar:
        for size, result in sized_chunks(function, rows, workers):
            yield result
            bar.update(size)


def sized_chunks(function: Callable, rows: Iterable, workers: int) -> Iterator[tuple[int, Any]]:
    """Divide the rows into lists of CHUNK; yield (length of the list, function(list)) for each, in order.

    This is map_chunks without its progress bar, for callers that have one of their own.

    workers: number of processes; this process does the work if it is 1, or if there is one list only
    """
    chunks = _chunks(rows)
    first_two = list(islice(chunks, 2))
    all_chunks = chain(first_two, chunks)

    if workers > 1 and len(first_two) > 1:
        yield from _in_processes(function, all_chunks, workers)
    else:  # for one chunk, processes would take longer to start than the work takes
        for chunk in all_chunks:
            yield len(chunk), function(chunk)


def _chunks(rows: Iterable) -> Iterator[list]:
    """Yield the rows in lists of CHUNK, the last of which may be shorter."""
    rows = iter(rows)
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


def _in_processes(function: Callable, chunks: Iterable[list], workers: int) -> Iterator[tuple[int, Any]]:
    """Yield (length of the chunk, function(chunk)) of each chunk, in order, computed by processes forked from this one.

    chunks: lists of rows; no more than 2 * workers + 1 of them, and of their results, are in memory
    workers: number of processes

    Raises what the function raises, and a UserError if a process is killed.
    """
    with ProcessPoolExecutor(workers, mp_context=_fork, initializer=_begin_worker, initargs=(function,)) as pool:
        pending: deque = deque()  # (rows of the chunk, future of its result), the oldest first
        try:
            for chunk in chunks:
                pending.append((len(chunk), pool.submit(_work, chunk)))
                if len(pending) > 2 * workers:  # every process has one chunk, and one that waits
                    size, future = pending.popleft()
                    yield size, future.result()
            for size, future in pending:  # the last ones
                yield size, future.result()
        except BrokenProcessPool:
            raise UserError(_killed_message("some --workers")) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # after an error or interrupt no further chunk is begun


def in_child(function: Callable, *args: Any) -> Any:
    """Call function(*args) in a process forked from this one, and return the result.

    The memory that it takes is free afterwards. An interrupt (Ctrl-C) ends the process at once, even within a long call
    of C++. Raises what the function raises, and a UserError if the process is killed: it names --vocab-sample, because
    the only caller learns a vocabulary.
    """
    receiver, sender = _fork.Pipe(duplex=False)
    child = _fork.Process(target=_send_result, args=(sender, function, args), daemon=False)
    child.start()
    sender.close()  # then only the child can write to the pipe, and recv() raises an EOFError if the child dies

    try:
        result, error = receiver.recv()
    except EOFError:
        raise UserError(_killed_message("a smaller --vocab-sample")) from None
    finally:  # after an interrupt too
        child.kill()
        child.join()

    if error is not None:
        raise error
    return result


def _send_result(sender: Connection, function: Callable, args: tuple) -> None:
    """Call function(*args) in the process of in_child; send (result, None), or (None, the exception that it raised)."""
    _end_with_parent()
    try:
        answer = (function(*args), None)
    except Exception as error:
        answer = (None, error)
    sender.send(answer)


def _killed_message(remedy: str) -> str:
    """Return the message of the UserError for a process that was killed, probably for its use of memory.

    remedy: what would need less memory, as "some --workers"
    """
    return f"a process was killed, probably because memory ran out; {remedy} would need less"


_fork = multiprocessing.get_context("fork")  # a spawned process would import torch and fairseq once more
# The function that a process of _in_processes applies to chunks. The process gets it from _begin_worker, by the fork.
# So it need not be pickled, and may be a local function.
_worker_function: Callable


def _begin_worker(function: Callable) -> None:
    """Keep the function that _work applies; each process of _in_processes calls this first."""
    global _worker_function
    _end_with_parent()
    _worker_function = function


def _end_with_parent() -> None:
    """Have Linux kill this process when the one that forked it ends; leave interrupts (Ctrl-C) to that one."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The parent may have set a handler, as folder.new_folder does, which came with the fork. This process just ends.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _work(chunk: list) -> Any:
    """Return the result of the function for a chunk, in a process of _in_processes."""
    return _worker_function(chunk)
