"""Tests that run the commands of README.md and the manual's walk-throughs, block by block in one shell of a clone.

A block finds what earlier blocks leave: data, checkpoints, the active environment. Commands that would take a GPU or
days run with the smaller numbers of SMALLER, and are otherwise unchanged.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from deepnet_fairseq.data.language import make_corpus, write_corpus

from ..support.helpers import ROOT

MANUAL = ("adding_a_method", "experiments", "tutorial", "reproduce_table1")
PAGES = ("README.md", *(f"docs/{page}.md" for page in MANUAL))
BLOCK = re.compile(r"(?:<!-- not run: *(?P<why>.*?) *-->\n+)?^```bash\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
TWO_LAYERS = r"\1_tiny --encoder-layers 2 --decoder-layers 2 --cpu --num-workers 0"
SMALLER = [  # pattern in a block -> what replaces it
    (r"^scripts/quickstart.sh$", "scripts/quickstart.sh --depth 2 --updates 25"),
    (r"(?<=quickstart.sh) (--methods deepnorm,admin,dlcl) --updates 200", r" \1 --depth 2 --updates 25"),
    (r"^scripts/test.sh$", "scripts/test.sh tests/pages/test_links.py"),
    (r"--vocab 10000$", "--vocab 150"),
    (r"(?<=--user-dir deepnet_fairseq --arch )(deepnet_transformer)(?:_18_18|_tiny_10_10)", TWO_LAYERS),
    (r"(?<=data-bin/de-en --arch )(deepnet_transformer)_tiny_50_50", TWO_LAYERS),
    (r"--max-tokens [14]000 --max-update [28]000", "--max-tokens 40000 --max-update 6"),  # one update an epoch
    (r"(?<=--save-interval-updates )200", "2"),
    (r"(--nproc-per-node|--distributed-world-size) 8", r"\1 2"),
    (r" --fp16$", ""),
    (r"^(pytest .*)$", r"\1 -n 0 --collect-only"),
]
# Runs the block $1. Folder, variables and functions are kept for the next block in the file $0. With -e and pipefail a
# block fails if any of its commands does.
SHELL = """
[ ! -s "$0" ] || source "$0" 2>/dev/null
set -e -o pipefail
trap '{ declare -p; declare -f; printf "cd -- %q\\n" "$PWD"; } >"$0"' EXIT
eval "$1"
"""


class Block(NamedTuple):
    """A block of bash: its page, its number there from 1, its commands, and the reason if it is not run.

    The reason is that of a comment <!-- not run: .. --> before the block.
    """

    page: str
    number: int
    text: str
    not_run: str | None

    @property
    def smaller(self) -> str:
        """Return the commands at a size for seconds on two CPU cores."""
        text = self.text
        for pattern, instead in SMALLER:
            text = re.sub(pattern, instead, text, flags=re.MULTILINE)
        return text


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page, in order."""
    matches = BLOCK.finditer((ROOT / page).read_text())
    return [Block(page, number, match["text"], match["why"]) for number, match in enumerate(matches, 1)]


ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]
every_block = pytest.mark.parametrize("block", ALL_BLOCKS, ids=lambda block: f"{block.page}-{block.number}")


class Reader:
    """Somebody who runs the blocks of a page, one after the other, in a clone of the repository.

    The clone has the tracked files, an environment that looks set up, and the text that pages assume. ran: block -> how
    it ended.
    """

    def __init__(self, root: Path):
        self.root = root
        self.ran: dict[Block, subprocess.CompletedProcess] = {}
        self.clone()
        self.set_up()
        self.write_text()

    def clone(self) -> None:
        """Copy the tracked files."""
        words = ["git", "ls-files", "-z"]
        listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            copy = self.root / name
            if (ROOT / name).exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy, follow_symlinks=False)

    def write_text(self) -> None:
        """Write the text that pages assume: corpus/train.de and so on."""
        folder = self.root / "corpus"
        write_corpus(make_corpus({"train": 104, "valid": 10, "test": 10}, nouns=20, verbs=10), folder)
        endings = {".qaa": ".de", ".qab": ".en"}
        for file in folder.iterdir():
            file.rename(file.with_suffix(endings[file.suffix]))

    def set_up(self) -> None:
        """Make a .venv of links to this environment, which scripts/setup.sh takes for complete."""
        venv = self.root / ".venv"
        venv.mkdir()
        for name in ("bin", "lib", "pyvenv.cfg"):
            (venv / name).symlink_to(Path(sys.prefix) / name)

        # the checksum by which the script knows a complete environment, computed by the script's own line
        setup = (self.root / "scripts/setup.sh").read_text()
        stamp = re.search(r"^deepnet_stamp=.*$", setup, re.MULTILINE)[0]
        command = f'deepnet_root="$PWD"\n{stamp}\nprintf %s "$deepnet_stamp"'
        printed = subprocess.run(["bash", "-c", command], cwd=self.root, check=True, capture_output=True, text=True)
        (venv / "complete").write_text(printed.stdout)

    def run(self, block: Block) -> subprocess.CompletedProcess:
        """Run a block after all earlier blocks of its page; each block runs once."""
        environment = os.environ | {"PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"}
        for earlier in blocks(block.page)[: block.number]:
            if earlier not in self.ran and not earlier.not_run:
                command = ["bash", "-c", SHELL, str(self.root.parent / "state"), earlier.smaller]
                self.ran[earlier] = subprocess.run(
                    command, cwd=self.root, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True, errors="replace", timeout=1800,
                )  # fmt: skip
        return self.ran[block]


@pytest.fixture(scope="module")
def reader_of(tmp_path_factory):
    """Provide a function from a page to its Reader, in a clone of its own; the clone's path has a blank."""
    readers = {}

    def reader_of(page: str) -> Reader:
        if page not in readers:
            readers[page] = Reader(tmp_path_factory.mktemp("a reader") / "deepnet fairseq")
        return readers[page]

    return reader_of


@pytest.mark.slow
@every_block
def test_block_runs(block, reader_of):
    if block.not_run:
        pytest.skip(block.not_run)

    done = reader_of(block.page).run(block)

    assert done.returncode == 0, f"{block.smaller}\n{done.stdout[-3000:]}"


@every_block
def test_block_parses(block):
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@every_block
def test_block_leaves_nothing_out(block):
    """A block has no three dots in place of words, so that a reader can paste the block."""
    commands = re.sub(r"#.*", "", block.text)

    assert commands.strip()
    assert "..." not in commands


def test_every_page_has_blocks():
    assert {block.page for block in ALL_BLOCKS} == set(PAGES)


def test_at_most_one_block_in_ten_is_not_run_and_says_why():
    reasons = [block.not_run for block in ALL_BLOCKS if block.not_run is not None]

    assert len(reasons) <= len(ALL_BLOCKS) / 10
    for reason in reasons:
        assert len(reason.split()) >= 3  # words
