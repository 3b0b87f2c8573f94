"""The command that redraws the papers' figures from recorded runs."""

from __future__ import annotations

from pathlib import Path


def figures(args) -> None:
    """Figures 3-8 of the DeepNet paper, and 3 and 4 of NormFormer's, measured beside published, from recorded runs.

    Reads RUNS/figureN and the like, trains nothing, and writes figureN.png and its numbers, figureN.txt. `depth` draws
    the losses of the quickstart's runs, RUNS/quickstart.
    """
    from ..analysis.figures import chosen, redraw

    runs = Path(args.runs)
    out = Path(args.out) if args.out else runs
    for figure in chosen(runs, args.only):
        print(redraw(runs, figure, out))


def add(command) -> None:
    """Registers `deepnet figures` and its flags; command: as parser() gives it."""
    sub = command("figures", figures)
    sub.add_argument("runs", metavar="RUNS", help="folder with figure3, figure4 and so on, each with one folder a run")
    sub.add_argument("--only", metavar="N,N", help="figures to draw, as 4,5,normformer4; without it all that have runs")
    sub.add_argument("--out", metavar="DIR", help="folder to write to, made if it is not there; default RUNS")
