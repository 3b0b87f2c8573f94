"""The commands that keep what reports need of finished runs, and render it."""

from __future__ import annotations

from pathlib import Path


def record(args) -> None:
    """keeps what reports and figures need of finished runs

    Copies run.json, environment.json, command, score.json, probes and the losses of the log to the same places below
    DEST, without checkpoints, translations, corpora and the machine's own paths; reports are the same from either.
    """
    from ..analysis.records.keep import keep

    kept, left_out = keep(Path(args.runs), Path(args.dest))
    print(f"recorded {len(kept)} runs in {args.dest}")
    if left_out:
        print(f"not over, left out: {', '.join(map(str, left_out))}")


def render(args) -> None:
    """renders recorded runs: tables, pictures, and the short forms in README.md

    Reads RESULTS/runs; writes RESULTS/tables, RESULTS/figures and RESULTS/miniatures.md, and what stands between lines
    <!-- report NAME --> and <!-- /report NAME --> of the page, RESULTS/README.md and RESULTS/quickstart.md.
    """
    from ..analysis.records.render import render

    for line in render(Path(args.results), Path(args.page)):
        print(line)


def add(command) -> None:
    """Registers `deepnet record` and its flags; command: as parser() gives it."""
    sub = command("record", record)
    sub.add_argument("runs", metavar="RUNS", help="folder with runs at any depth, each with run.json")
    sub.add_argument("dest", metavar="DEST", help="folder for the records, as results/runs")

    sub = command("render", render)
    sub.add_argument("results", metavar="RESULTS", help="folder with runs, the records; as results")
    sub.add_argument("--page", default="README.md", metavar="PAGE", help="page with short forms (default README.md)")
