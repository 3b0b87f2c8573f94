"""The command that redraws the DeepNet paper's figures from recorded runs."""

from __future__ import annotations

from pathlib import Path


def figures(args) -> None:
    """Figures 3-8 of the DeepNet paper, measured beside published, from recorded runs.

    Reads RUNS/figureN, trains nothing, and writes figureN.png and its numbers, figureN.txt.
    """
    from ..analysis.redrawing import chosen, redraw

    runs = Path(args.runs)
    out = Path(args.out) if args.out else runs
    for number in chosen(runs, args.only):
        print(redraw(runs, number, out))


def add(command) -> None:
    sub = command("figures", figures)
    sub.add_argument("runs", metavar="RUNS", help="folder with figure3, figure4 and so on, each with one folder a run")
    sub.add_argument("--only", metavar="N,N", help="figures to draw, as 4,5; without it all that have runs")
    sub.add_argument("--out", metavar="DIR", help="folder to write to, made if it is not there; default RUNS")
