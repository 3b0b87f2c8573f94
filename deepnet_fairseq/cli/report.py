"""The command that sets recorded runs beside the numbers of the papers."""

from __future__ import annotations

from pathlib import Path


def report(args) -> None:
    """a table of a paper, measured beside published, from recorded runs

    Reads RUNS/EXPERIMENT, one folder a run, and trains nothing: what was not run says so.
    """
    from ..analysis.report.write import report

    out = Path(args.out) if args.out else None
    text = report(Path(args.runs), args.table, args.format, out, args.baseline)
    print(f"wrote {out}" if out else text, end="\n" if out else "")


def add(command) -> None:
    sub = command("report", report)
    sub.add_argument("runs", metavar="RUNS", help="folder with table1, iwslt14 and so on, each with one folder a run")
    sub.add_argument("--table", required=True, metavar="NAME", help="1, 2, 3, iwslt14, opus100, admin_wmt14")
    sub.add_argument("--format", default="md", choices=("md", "html", "tex", "json"), help="default md")
    sub.add_argument("--out", metavar="FILE", help="file to write; without it the report is printed")
    sub.add_argument("--baseline", metavar="METHOD", help="method to test others against, instead of the table's own")
