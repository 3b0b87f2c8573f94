"""Commands that read finished runs."""

from __future__ import annotations

from pathlib import Path


def compare(args) -> None:
    """a table and a plot of several runs: loss, BLEU, time"""
    from ..analysis.comparison import compare

    print(compare([Path(run) for run in args.runs], Path(args.reference), Path(args.plot)))


def add(command) -> None:
    sub = command("compare", compare)
    sub.add_argument("runs", nargs="+", metavar="RUN", help="folder with train.log and generated.txt")
    sub.add_argument("--reference", required=True, help="reference translations, one a line")
    sub.add_argument("--plot", required=True, help="PNG to write")
