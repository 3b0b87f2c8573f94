"""The command that sets recorded runs beside the numbers of the papers."""

from __future__ import annotations

from pathlib import Path

from ..errors import UserError


def report(args) -> None:
    """a table of a paper, measured beside published, from recorded runs

    Reads RUNS/EXPERIMENT, one folder a run, and trains nothing: what was not run says so.
    """
    from ..analysis.report.write import FORMATS, reports

    forms = args.format.split(",")
    for form in forms:
        if form not in FORMATS:
            raise UserError(f"--format {form}: choose from {', '.join(FORMATS)}")
    if len(forms) > 1 and not args.out:
        raise UserError(f"--format {args.format}: name the files' common beginning with --out; each gets its ending")
    out = Path(args.out) if args.out else None
    several = out if len(forms) > 1 else None
    places = {form: several.with_name(f"{several.name}.{form}") if several else out for form in forms}
    into = Path(args.into) if args.into else None
    texts = reports(Path(args.runs), args.table, places, args.baseline, into)
    for form, place in places.items():
        if place or not into:
            print(f"wrote {place}" if place else texts[form], end="\n" if place else "")
    if into:
        print(f"put table {args.table} into {into}")


def add(command) -> None:
    """Registers `deepnet report` and its flags; command: as parser() gives it."""
    sub = command("report", report)
    sub.add_argument("runs", metavar="RUNS", help="folder with table1, iwslt14 and so on, each with one folder a run")
    sub.add_argument("--table", required=True, metavar="NAME", help="1, 2, 3, iwslt14, opus100, admin_wmt14, "
                     "normformer_clm, normformer_ablation, normformer_mlm")  # fmt: skip
    sub.add_argument("--format", default="md", metavar="FORM[,FORM]", help="md (default), html, json, or several")
    sub.add_argument("--out", metavar="FILE", help="file to write, for several formats its beginning; else printed")
    sub.add_argument("--into", metavar="PAGE", help="Markdown page that gets the overview, between its lines "
                     "<!-- report NAME --> and <!-- /report NAME -->")  # fmt: skip
    sub.add_argument("--baseline", metavar="METHOD", help="method to test others against, instead of the table's own")
