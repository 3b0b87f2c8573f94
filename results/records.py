"""Keep records of finished runs, and render the pages of results/ from them.

keep RUNS DEST     writes a line for each run with the data of reports and figures, without paths of the machine
render RESULTS     writes tables, pictures and an index from RESULTS/runs

scripts/render_results.sh calls both. Run as python -m results.records.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.files import whole
from deepnet_fairseq.study.figures import EVERY, redraw
from deepnet_fairseq.study.runs import (
    FILES,
    RECORDS,
    RecordedRun,
    folder_of,
    holds_runs,
    is_over,
    name_of,
    read_records,
    recorded_below,
    runs_of,
)
from deepnet_fairseq.study.tables import BANNER, DASH, TABLES, TableReport, collect, environment_line, markdown_page
from deepnet_fairseq.text_table import escape, markdown
from results.small_tables import rows_by_depth, rows_by_method, rows_gradients, rows_inverted

STEP = r"(?:[\w.@%+=-]|\\.)+"  # a name in a path, blanks escaped as a shell prints them
ABSOLUTE = re.compile(rf"(?<![\w./~*-])/({STEP}/)*({STEP})?/?")
HOME = re.compile(rf"~/({STEP}/)*({STEP})?/?")
OWN = ("deepnorm", "normformer", "admin")  # the method that a table's paper is about
FIGURES: dict[int | str, tuple[str, str]] = {  # those that are not Figure N of DeepNet, by scripts/figureN.sh
    10: ("Wang et al. 2022, Figures 9 and 10", "scripts/table3_m2m.sh"),
    "depth": ("DeepNorm and Post-LN at several depths", "scripts/quickstart.sh"),
    "normformer3": ("Shleifer et al. 2021, Figure 3", "scripts/normformer_lm.sh"),
    "normformer4": ("Shleifer et al. 2021, Figure 4", "scripts/normformer_lm.sh"),
    "inverted_gain": ("DeepNorm and its gain inverted", "scripts/inverted_gain.sh"),
}
TABLES_OF_RUNS = {  # folder of runs, and of their page the name -> tables by the name of their place on it
    "quickstart": {"quickstart": rows_by_depth},
    "inverted_gain": {"inverted_gain": rows_inverted, "gradients": rows_gradients},
    "later_methods": {"later_methods": rows_by_method},
}
MINIATURES = """# Figures in miniature

> **{banner}**

This page shows what the scripts of the papers' figures produce, for readers who want to see the output before they run
one at full size.

```bash
SMOKE=1 scripts/figure4.sh             # a figure in miniature; likewise the other scripts
scripts/render_results.sh runs-smoke   # records the runs and writes this page again
```

A miniature trains a narrow model on generated text for a few hundred updates. Its picture shows that the script runs to
the end, and nothing about the paper's result. The [records](runs) hold the log, settings and environment of each run.
"""


def keep(runs: Path, dest: Path) -> Iterator[str]:
    """Record every finished run below `runs`; a record of the same name is replaced, others stay.

    dest: a folder, in which the runs of RUNS/EXPERIMENT get a file EXPERIMENT.jsonl, or a file .jsonl for them all.
    Yields what it did. UserError, before that, if no run is over, one is broken or says nothing of its environment, or
    if `dest` lies in `runs`.
    """
    if not runs.is_dir():
        raise UserError(f"{runs}: no such folder; name one that holds recorded runs")
    if dest.resolve().is_relative_to(runs.resolve()):
        raise UserError(f"{dest}: lies in {runs}; name another place for the records")
    folders = [path.parent for path in sorted(runs.rglob("run.json"))]
    over = [RecordedRun(place) for place in folders if is_over(place)]
    if not over:
        raise UserError(f"{runs}: holds no finished runs; a finished one has run.json and a file `trained`")
    for run in over:
        if not run.environment:
            raise UserError(f"{run.place}: has no environment.json; write it with `deepnet path --environment --json`")
    files: dict[Path, dict[str, dict]] = {}
    for run in over:
        file, name = _line_of(run, runs, dest)
        record = {part: _relative_values(run.parts[part], runs) for part in FILES if part in run.parts}
        files.setdefault(file, {})[name] = {"name": name} | record
    for file, records in files.items():
        before = read_records(file) if file.is_file() else []
        every = {run.parts["name"]: run.parts for run in before} | records
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole(file) as part:
            lines = (json.dumps(every[name], ensure_ascii=False) + "\n" for name in sorted(every, key=Path))
            part.write_text("".join(lines), encoding="utf-8")
    yield f"recorded {len(over)} runs in {dest}"
    if left_out := [str(place.relative_to(runs)) for place in folders if not is_over(place)]:
        yield f"not over, left out: {', '.join(left_out)}"


def _line_of(run: RecordedRun, runs: Path, dest: Path) -> tuple[Path, str]:
    """Return the file of a run's record and its name there."""
    words = run.place.relative_to(runs).parts
    if dest.suffix == RECORDS:
        return dest, "/".join(words)
    if len(words) < 2:
        raise UserError(f"{run.place}: lies in no experiment's folder of {runs}; name a file {RECORDS} for its record")
    return dest / f"{words[0]}{RECORDS}", "/".join(words[1:])


def relative(text: str, base: Path) -> str:
    """Return text with paths below `base` relative to it, and other paths as ".../NAME"; network addresses stay."""
    start = str(base.resolve())
    for spelling in dict.fromkeys((start, re.sub(r"([^\w@%+=:,./-])", r"\\\1", start))):
        text = re.sub(re.escape(spelling) + r"/(?=[^\s/])", "", text)

    def name(match: re.Match) -> str:
        return f".../{match.group(2) or ''}" if match.group(1) or match.group(2) else match.group()

    return HOME.sub(name, ABSOLUTE.sub(name, text))


def _relative_values(value, base: Path):
    """Return the content of a JSON file with `relative` applied to every text."""
    if isinstance(value, dict):
        return {key: _relative_values(item, base) for key, item in value.items()}
    if isinstance(value, list):
        return [_relative_values(item, base) for item in value]
    return relative(value, base) if isinstance(value, str) else value


def render(results: Path) -> Iterator[str]:
    """Render the records in `results`/runs; yield a line for each thing done.

    The same records give the same bytes. Written are `results`/tables, /figures and /miniatures.md, and the text
    between <!-- report NAME --> and <!-- /report NAME --> in `results`/README.md, the index, and in the pages of
    TABLES_OF_RUNS. A figure whose runs are incomplete is left out, and its line says so. UserError if nothing is
    recorded, or a record is broken.
    """
    runs = results / "runs"
    if not runs.is_dir():
        raise UserError(f"{runs}: no such folder; record runs there with results/records.py keep")
    rows = []  # of the index: what, script, what was run, the headline, the record
    for table in TABLES.values():
        title = f"{table.paper['citation'].split(',')[0]}, {table.place}: {table.title}"
        if any(holds_runs(runs / folder) for folder in table.folders):
            report, out = collect(runs, table), results / "tables" / f"{table.folders[0]}.md"
            out.parent.mkdir(exist_ok=True)
            with whole(out) as part:
                part.write_text(markdown_page(report, out), encoding="utf-8")
            rows.append((title, table.script, *_state_and_headline(report), out))
            yield f"wrote {out}"
        else:
            rows.append((title, table.script, "not run", "–", None))
    yield from _render_figures(results, rows)
    yield from _put(results / "README.md", "index", _index(rows, results))
    for name, tables in TABLES_OF_RUNS.items():
        if not (recorded := recorded_below(runs / name, over=True)):
            continue
        for place, table in tables.items():
            footer = _trained_with(recorded) if place == name else ""
            yield from _put(results / f"{name}.md", place, _of_runs(table(recorded)) + footer)


def _put(page: Path, name: str, text: str) -> Iterator[str]:
    """Replace the text between the two comments that name it, where `page` has them."""
    held = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, first, rest = held.partition(f"<!-- report {name} -->\n")
    _, last, after = rest.partition(f"<!-- /report {name} -->")
    if last:
        with whole(page) as part:
            part.write_text(f"{before}{first}{text}{last}{after}", encoding="utf-8")
        yield f"put {name} into {page}"


def _state_and_headline(report: TableReport) -> tuple[str, str]:
    """Return the kind and number of runs, and the best result, "–" where there is none.

    The best result is taken from the row of the paper's own method, with a published number, at the largest depth, if
    there is one.
    """
    over = sum(run.finished for run in report.runs)
    kind = "miniature" if report.miniature else "as in the paper, but for its warnings"
    state = f"{kind}, {over} run{'s' * (over != 1)}"
    column, sign = next(iter(report.table.columns)), 1 if report.table.higher_is_better else -1
    cells = {result: cell for result in report.results if (cell := result.cell(column)).mean is not None}
    if not cells:
        return state, "–"
    row = max(cells, key=lambda one: (one.method in OWN, cells[one].published is not None, one.layers)).key
    best = max((one for one in cells if one.key == row), key=lambda one: sign * cells[one].mean)
    return state, f"{' '.join(word for word in best.labels if word != DASH)}, {column}: {cells[best]}"


def _render_figures(results: Path, rows: list[tuple]) -> Iterator[str]:
    """Draw the figures; pictures of miniatures go to a folder of their own, their numbers to one page."""
    page = [MINIATURES.format(banner=BANNER)]
    for figure in EVERY:
        what, script = FIGURES.get(figure, (f"Wang et al. 2022, Figure {figure}", f"scripts/{name_of(figure)}.sh"))
        name = f"{name_of(figure)}.png"
        try:
            miniature = any(run.miniature for run in runs_of(results / "runs", figure))
            picture = results / "figures" / ("miniature" if miniature else "") / name
            text = redraw(results / "runs", figure, picture.parent)
            picture.with_suffix(".md").unlink()
        except UserError as error:
            if holds_runs(results / "runs" / folder_of(figure)):
                yield f"left out {name_of(figure)}: {error}"
            rows.append((what, script, "not run", "–", None))
            continue
        if miniature:
            heading, _, numbers = text.partition("\n")
            page.append(
                f"## {heading}\n\n![{heading}]({picture.relative_to(results).as_posix()})\n\n"
                f"<details><summary>numbers</summary>\n\n{numbers.strip()}\n\n</details>\n"
            )
        rows.append((what, script, "miniature" if miniature else "in full", "picture", picture))
        yield f"wrote {picture}"
    if len(page) > 1:
        with whole(results / "miniatures.md") as part:
            part.write_text("\n".join(page), encoding="utf-8")
        yield f"wrote {results / 'miniatures.md'}"


def _index(rows: list[tuple], results: Path) -> str:
    """Return the index of all rows in Markdown, for a page in `results`."""
    header = ["what", "script", "run here", "measured (published)", "record"]
    cells = []
    for *words, place in rows:
        link = f"[{escape(place.name)}]({quote(place.relative_to(results).as_posix())})" if place else "–"
        cells.append([*map(escape, words), link])
    return markdown([header, *cells]) + "\n"


def _of_runs(table: list[list[str]]) -> str:
    """Return a table of runs in Markdown, header first, or "None." if it has no rows."""
    return markdown([list(map(escape, row)) for row in table]) + "\n" if len(table) > 1 else "None.\n"


def _trained_with(runs: list[RecordedRun]) -> str:
    """Return the environments of the runs, each once, with its commits."""
    trained: dict[str, list[str]] = {}
    for environment in (run.environment for run in runs):
        commits = trained.setdefault(environment_line(environment | {"commit": "COMMITS"}), [])
        commits += [environment.get("commit")] * (environment.get("commit") not in commits)
    environments = [escape(rest.replace("COMMITS", ", ".join(map(str, commits)))) for rest, commits in trained.items()]
    return f"\nTrained with {'; '.join(environments)}.\n"


def main(argv: list[str] | None = None) -> None:
    """Parse the arguments, run the command and print its lines; a mistake ends it with one line and status 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    sub = commands.add_parser("keep", help="records finished runs")
    sub.add_argument("runs", type=Path, metavar="RUNS", help="folder with runs at any depth, each with run.json")
    sub.add_argument("dest", type=Path, metavar="DEST", help="folder for the records, or one file .jsonl for all")
    sub = commands.add_parser("render", help="renders records")
    sub.add_argument("results", type=Path, metavar="RESULTS", help="folder with runs, the records; as results")
    args = parser.parse_args(argv)
    done = keep(args.runs, args.dest) if args.command == "keep" else render(args.results)
    try:
        for line in done:
            print(line)
    except (UserError, OSError) as error:
        sys.exit(f"records.py: error: {error}")


if __name__ == "__main__":
    main()
