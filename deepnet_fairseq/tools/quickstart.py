"""`deepnet quickstart`: one deep model by several methods on an artificial language, by `compare`.

The language pair is made first. A second call skips what is done and resumes what is not.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from .. import register
from ..data import language
from ..data.parallel_text import prepare_text
from . import compare

SCRIPT = "scripts/quickstart.sh"  # of a clone: sets it up and runs the command
PAIR = ("qaa", "qab")
RATE = 1e-3
FLAGS = shlex.split("--warmup-init-lr 1e-7")


@dataclass(frozen=True)
class Quickstart(compare.Grid):
    """A grid of one depth, one rate and one seed; `out` has its data too."""

    experiment: str = "quickstart"

    def name(self, cell: compare.Cell) -> str:
        """Without the rate."""
        return super().name(cell).removesuffix(f"-lr{compare.rate(cell.lr)}")

    def command(self, cell: compare.Cell) -> str:
        """Of the clone's script, where there is one."""
        program = SCRIPT if (compare.PACKAGE.parent / SCRIPT).exists() else "deepnet quickstart"
        return f"{program} --methods {cell.method} --depth {cell.depth} --updates {self.updates} --seed {cell.seed}"


def quickstart(methods: list[str], depth: int, updates: int, seed: int, out: Path) -> str:
    """Make the data, do all that is not done yet, draw OUT/loss.png; return the table.

    UserError, before anything is written, for a setting that cannot be; later, naming the log, where a program fails.
    """
    grid = Quickstart(out / "data", methods, [depth], [RATE], [seed], updates, out, flags=FLAGS)
    grid.check()
    make_data(out)
    said = compare.compare(grid, out / "loss.png")
    return f"\n== result ({depth}-{depth}, seed {seed})\n{said}\nloss curves: {out / 'loss.png'}"


def make_data(out: Path) -> None:
    """The artificial language, as text and binarised."""
    if (out / "data" / f"dict.{PAIR[0]}.txt").exists():
        return
    print("\n== corpus: 20,000 sentence pairs of an artificial language", flush=True)
    text = out / "text"
    language.write_corpus(language.make_corpus(language.SIZES, nouns=60, verbs=30), text)
    register()
    prepare_text(PAIR, {split: str(text / split) for split in language.SIZES}, out / "data", vocab=1000)
