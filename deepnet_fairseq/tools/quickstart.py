"""`deepnet quickstart`: run `deepnet compare` on an artificial language pair, which it makes first."""

from __future__ import annotations

from pathlib import Path

from .. import register
from ..data import language
from ..data.parallel_text import prepare_text
from .compare import Grid, compare

PAIR = ("qaa", "qab")  # languages; ISO 639-2 leaves these codes for local use


def quickstart(methods: list[str], depth: int, updates: int, seed: int, out: Path, user_dir: str | None = None) -> str:
    """Make the data, train each method that is not trained yet, draw OUT/loss.png; return the table under a heading.

    methods: names in METHODS; depth: number of layers of the encoder, and of the decoder; updates: number of updates of
    each training; seed: of each training; user_dir: folder of the user's methods, which the caller has imported, None
    if there are none. Raises a UserError, before anything is written, for an invalid setting; later, naming the log, if
    a program fails.
    """
    grid = Grid(
        data=out / "data",
        methods=methods,
        depths=[depth],
        lrs=[1e-3],
        seeds=[seed],
        updates=updates,
        out=out,
        user_dir=user_dir,
    )
    grid.check()
    make_data(out)
    table = compare(grid, out / "loss.png")
    return f"\n== result ({depth}-{depth}, seed {seed})\n{table}\nloss curves: {out / 'loss.png'}"


def make_data(out: Path) -> None:
    """Write the artificial language pair to OUT/text, and binarised to OUT/data, unless it is there already."""
    if (out / "data" / f"dict.{PAIR[0]}.txt").exists():
        return

    print("\n== corpus: 20,000 sentence pairs of an artificial language", flush=True)
    text = out / "text"
    corpus = language.make_corpus(language.SIZES, nouns=60, verbs=30)  # with so many words of each kind
    language.write_corpus(corpus, text)

    register()  # as `deepnet prepare text` does before it calls prepare_text
    prefixes = {split: str(text / split) for split in language.SIZES}
    prepare_text(PAIR, prefixes, out / "data", vocab=1000)  # 1,000 pieces of SentencePiece
