"""Runs the pages' commands in a real clone, with nothing in the place of its programs, and writes what came of them.

    git clone . /tmp/clone && python -m tests.readme --list
    python -m tests.readme /tmp/clone --small 3,5-6 --out fresh_clone.md

Each row is a command as printed, its exit status and its time. What would take days is chosen by its block's number
and runs with the small programs of the tests (tests/readme/smaller.py), which the table says; --limit stops what takes
longer.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from contextlib import nullcontext
from pathlib import Path

from .clone import ROOT, small_programs, write_text
from .page import PAGES, Block, blocks, commands
from .shell import Done, Shell, reader_environment

HEADER = "| block | command | run as | status | time |\n|---|---|---|---|---|\n"


def numbers(text: str) -> set[int]:
    """ "1,3-5": 1, 3, 4, 5."""
    parts = [part.partition("-") for part in text.split(",") if part]
    return {number for first, _, last in parts for number in range(int(first), int(last or first) + 1)}


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.readme", description=__doc__.partition("\n")[0])
    parser.add_argument("clone", nargs="?", type=Path, help="folder of a clone in which nothing was run yet")
    parser.add_argument("--page", default=PAGES[0], choices=PAGES)
    parser.add_argument("--list", action="store_true", help="the blocks and their numbers, and no more")
    parser.add_argument("--blocks", type=numbers, metavar="1,3-5", help="only these")
    parser.add_argument("--small", type=numbers, metavar="1,3-5", default=set(), help="these with the small programs")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="stop a command after so long")
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="real text instead of generated: train.de and so on")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="the table; it grows with each command")
    given = parser.parse_args(words)
    if not given.list and (given.clone is None or not (given.clone / given.page).exists()):
        parser.error(f"CLONE: give a folder with {given.page}")
    return given


def row(block: Block, run_as: str, done: Done) -> str:
    """A line of the table: the command in one line, without what is said behind it."""
    said = re.sub(r" +# .*|\\$", "", done.command, flags=re.MULTILINE)
    shown = " ".join(line.strip() for line in said.splitlines())
    cell = "`" + shown.replace("|", "\\|") + "`"
    status = "stopped" if done.status is None else str(done.status)
    return f"| {block.number} {block.heading} | {cell} | {run_as} | {status} | {spent(done.seconds)} |\n"


def spent(seconds: float) -> str:
    """A time as people say it: 0.4 s, 83 s, 12 min."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 300 else f"{seconds / 60:.0f} min"


def record(given: argparse.Namespace, chosen: list[Block]) -> int:
    """Runs the blocks; how many commands did not end with 0."""
    clone, failed = given.clone.resolve(), 0
    if given.corpus:
        (clone / "corpus").symlink_to(given.corpus.resolve())
    elif not (clone / "corpus").exists():
        write_text(clone / "corpus")
    shell = Shell(clone, reader_environment())
    write(given.out, f"Python {platform.python_version()}, {platform.machine()}\n\n{HEADER}")
    for block in chosen:
        if block.not_run:
            write(given.out, f"| {block.number} {block.heading} | | not run: {block.not_run} | | |\n")
            continue
        small = block.number in given.small
        with small_programs(clone) if small else nullcontext():
            for command in commands(block.text):
                done = shell.run(command, given.limit)
                write(given.out, row(block, "made small" if small else "printed", done))
                if done.status != 0:
                    failed += 1
                    print(done.output[-3000:], file=sys.stderr)
    return failed


def write(out: Path | None, text: str) -> None:
    print(text, end="", flush=True)
    if out:
        with out.open("a", encoding="utf-8") as file:
            file.write(text)


def main() -> int:
    given = arguments(sys.argv[1:])
    chosen = blocks(ROOT if given.list else given.clone, given.page)
    if given.list:
        for block in chosen:
            print(f"{block.number}. {block.heading}\n{block.text}")
        return 0
    if given.out:
        given.out.unlink(missing_ok=True)
    chosen = [block for block in chosen if given.blocks is None or block.number in given.blocks]
    return min(1, record(given, chosen))


if __name__ == "__main__":
    sys.exit(main())
