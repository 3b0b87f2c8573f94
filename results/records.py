"""Keep records of finished runs, and render the pages of results/ from them.

keep RUNS DEST     writes a line for each run with the data of reports and figures, without paths of the machine
render RESULTS     writes tables, pictures and an index from RESULTS/runs

scripts/render_results.sh calls both. Run as python -m results.records.
"""

# A run is one training: a folder with run.json (its settings), its log, its score and other files. RUNS/EXPERIMENT
# holds the runs of an experiment. A record is one line of JSON in EXPERIMENT.jsonl with the contents of the run's
# files, its parts; FILES maps the parts' names to the files'.

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
from deepnet_fairseq.study.tables import (
    BANNER,
    DASH,
    TABLES,
    Result,
    TableReport,
    collect,
    environment_line,
    markdown_page,
)
from deepnet_fairseq.text_table import escape, markdown
from results.small_tables import rows_by_depth, rows_by_method, rows_gradients, rows_inverted

STEP = r"(?:[\w.@%+=-]|\\.)+"  # a name in a path, blanks escaped as a shell prints them
# absolute paths, and paths in the home folder; groups: the last folder, if there is one, and the file's name
ABSOLUTE = re.compile(rf"(?<![\w./~*-])/({STEP}/)*({STEP})?/?")
HOME = re.compile(rf"~/({STEP}/)*({STEP})?/?")
OWN = ("deepnorm", "normformer", "admin")  # methods that are the subject of a paper whose tables are rendered
# figure -> what it shows, and its script; a figure that is not here is Figure N of DeepNet, by scripts/figureN.sh
FIGURES: dict[int | str, tuple[str, str]] = {
    10: ("Wang et al. 2022, Figures 9 and 10", "scripts/table3_m2m.sh"),
    "depth": ("DeepNorm and Post-LN at several depths", "scripts/quickstart.sh"),
    "normformer3": ("Shleifer et al. 2021, Figure 3", "scripts/normformer_lm.sh"),
    "normformer4": ("Shleifer et al. 2021, Figure 4", "scripts/normformer_lm.sh"),
    "inverted_gain": ("DeepNorm and its gain inverted", "scripts/inverted_gain.sh"),
}
# Experiments with a page of their own: EXPERIMENT -> {section of EXPERIMENT.md: function from its runs to the table's
# rows, the header first}. The records are in runs/EXPERIMENT.jsonl.
TABLES_OF_RUNS = {
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
    """Write a record of every finished run below the folder `runs`, and yield lines that say what was done.

    dest: a folder, in which the runs of RUNS/EXPERIMENT get a file EXPERIMENT.jsonl, or a file .jsonl for them all.
    A record of the same name is replaced; the other records of a file stay. Raises a UserError before it writes
    anything if no run is finished, if one is broken, has no environment.json (the commit, versions and hardware it was
    trained with) or, where `dest` is a folder, lies in no experiment's folder, and if `dest` lies in `runs`.
    """
    if not runs.is_dir():
        raise UserError(f"{runs}: no such folder; name one that holds recorded runs")
    if dest.resolve().is_relative_to(runs.resolve()):
        raise UserError(f"{dest}: lies in {runs}; name another place for the records")

    folders = [path.parent for path in sorted(runs.rglob("run.json"))]
    finished = [RecordedRun(folder) for folder in folders if is_over(folder)]
    if not finished:
        raise UserError(f"{runs}: holds no finished runs; a finished one has run.json and a file `trained`")
    for run in finished:
        if not run.environment:
            raise UserError(f"{run.place}: has no environment.json; write it with `deepnet path --environment --json`")

    new_records: dict[Path, dict[str, dict]] = {}  # {file of records: {name of a record: the record}}
    for run in finished:
        file, name = _file_and_name(run, runs, dest)
        record = {"name": name}
        for part in FILES:
            if part in run.parts:  # a run that was not scored has no part "score", and so on
                record[part] = _relative_values(run.parts[part], runs)
        new_records.setdefault(file, {})[name] = record

    for file, records in new_records.items():
        all_records: dict[str, dict] = {}  # by name: those that the file has, then the new ones
        if file.is_file():
            all_records = {run.parts["name"]: run.parts for run in read_records(file)}
        all_records |= records
        lines = [json.dumps(all_records[name], ensure_ascii=False) + "\n" for name in sorted(all_records, key=Path)]
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole(file) as new_file:  # which replaces the old one at the end, in one step
            new_file.write_text("".join(lines), encoding="utf-8")

    yield f"recorded {len(finished)} runs in {dest}"
    left_out = [str(folder.relative_to(runs)) for folder in folders if not is_over(folder)]
    if left_out:
        yield f"not over, left out: {', '.join(left_out)}"


def _file_and_name(run: RecordedRun, runs: Path, dest: Path) -> tuple[Path, str]:
    """Return the file for a run's record, and the record's name there. runs, dest: as in `keep`.

    In one file for all runs (`dest` ends in .jsonl) the name is the run's path below `runs`; in a file for each
    experiment, the path below the experiment's folder. A run that lies directly in `runs` belongs to no experiment:
    a UserError in the second case.
    """
    folders = run.place.relative_to(runs).parts
    if dest.suffix == RECORDS:
        return dest, "/".join(folders)
    if len(folders) < 2:
        raise UserError(f"{run.place}: lies in no experiment's folder of {runs}; name a file {RECORDS} for its record")
    experiment, *below = folders
    return dest / f"{experiment}{RECORDS}", "/".join(below)


def relative(text: str, base: Path) -> str:
    """Return text with paths below the folder `base` relative to it, and other absolute and ~/ paths as ".../NAME".

    Records are public: they name no folder of the machine. Network addresses (https://...) stay.
    """
    plain = str(base.resolve())
    escaped = re.sub(r"([^\w@%+=:,./-])", r"\\\1", plain)  # as a shell prints it in a command
    for spelling in dict.fromkeys((plain, escaped)):  # once where both are equal
        text = re.sub(re.escape(spelling) + r"/(?=[^\s/])", "", text)

    def shortened(path: re.Match) -> str:
        """Return ".../NAME" for a match of ABSOLUTE or HOME; one that has no name, as "/", stays."""
        folders = path.group(1)
        name = path.group(2)
        if not folders and not name:  # a slash by itself
            return path.group()
        return f".../{name or ''}"

    return HOME.sub(shortened, ABSOLUTE.sub(shortened, text))


def _relative_values(value, base: Path):
    """Return a value of JSON (object, list, text, number, ...) with `relative` applied to every text in it."""
    if isinstance(value, dict):
        return {key: _relative_values(item, base) for key, item in value.items()}
    if isinstance(value, list):
        return [_relative_values(item, base) for item in value]
    if isinstance(value, str):
        return relative(value, base)
    return value


def render(results: Path) -> Iterator[str]:
    """Render the records in the folder `results`/runs; yield a line for each file or section that is written.

    Written are the papers' tables (tables/TABLE.md), their figures (figures/ and miniatures.md), the index of both in
    README.md and the tables of the experiments that have a page (TABLES_OF_RUNS). Index and tables go into sections of
    these pages, see `_put`. The same records give the same bytes. A figure whose runs lack something is left out, and
    its line says so. Raises a UserError if there is no folder of records, or if one is broken.
    """
    runs = results / "runs"
    if not runs.is_dir():
        raise UserError(f"{runs}: no such folder; record runs there with results/records.py keep")
    index: list[tuple] = []  # its rows, as _index takes them
    for table in TABLES.values():
        first_author = table.paper["citation"].split(",")[0]
        title = f"{first_author}, {table.place}: {table.title}"
        if not any(holds_runs(runs / folder) for folder in table.folders):
            index.append((title, table.script, "not run", "–", None))
            continue
        report = collect(runs, table)
        out = results / "tables" / f"{table.folders[0]}.md"  # named as the first experiment that the table shows
        out.parent.mkdir(exist_ok=True)
        with whole(out) as part:
            part.write_text(markdown_page(report, out), encoding="utf-8")
        index.append((title, table.script, _state(report), _headline(report), out))
        yield f"wrote {out}"

    yield from _render_figures(results, index)
    yield from _put(results / "README.md", "index", _index(index, results))

    for name, tables in TABLES_OF_RUNS.items():
        recorded = recorded_below(runs / name, over=True)
        if not recorded:
            continue
        for section, rows_of in tables.items():
            text = _table_of_runs(rows_of(recorded))
            if section == name:  # the page's main table
                text += _trained_with(recorded)
            yield from _put(results / f"{name}.md", section, text)


def _put(page: Path, section: str, text: str) -> Iterator[str]:
    """Replace the text of a section of a page, and yield a line that says so.

    A section is what stands between the comments <!-- report SECTION --> and <!-- /report SECTION -->. Nothing is
    written or yielded if the page or one of the comments is missing: folders other than this one need no pages.
    """
    old_page = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, first_comment, rest = old_page.partition(f"<!-- report {section} -->\n")
    _, last_comment, after = rest.partition(f"<!-- /report {section} -->")
    if last_comment:
        with whole(page) as part:
            part.write_text(f"{before}{first_comment}{text}{last_comment}{after}", encoding="utf-8")
        yield f"put {section} into {page}"


def _state(report: TableReport) -> str:
    """Return the kind and number of a table's finished runs, as "miniature, 3 runs"."""
    # the warnings on the table's page say where its runs depart from the paper, as by fewer updates
    kind = "miniature" if report.miniature else "as in the paper, but for its warnings"
    finished = [run for run in report.runs if run.finished]
    noun = "run" if len(finished) == 1 else "runs"
    return f"{kind}, {len(finished)} {noun}"


def _headline(report: TableReport) -> str:
    """Return one number of a table for the index, as "DeepNorm 18L-18L, BLEU: 37.80 (28.8)"; "–" if none is measured.

    The number stands in the table's first column. Its row is preferably one of the paper's own method; among those, one
    for which the paper has a number, too; among those, the deepest.
    """
    column = next(iter(report.table.columns))
    cells = {}  # by row of the table (a Result): the cell in that column, if a run was scored
    for result in report.results:
        cell = result.cell(column)
        if cell.mean is not None:
            cells[result] = cell
    if not cells:
        return "–"

    def preference(result: Result) -> tuple[bool, bool, int]:
        """Return a key for sorting rows, that of the preferred row the largest."""
        return result.method in OWN, cells[result].published is not None, result.layers

    # rows with equal keys differ only in a setting that was searched over, as the learning rate: take the best of them
    preferred = max(cells, key=preference)
    tried = [result for result in cells if result.key == preferred.key]
    sign = 1 if report.table.higher_is_better else -1
    best = max(tried, key=lambda result: sign * cells[result].mean)
    words = [word for word in best.labels if word != DASH]
    return f"{' '.join(words)}, {column}: {cells[best]}"


def _render_figures(results: Path, index: list[tuple]) -> Iterator[str]:
    """Draw every figure into `results`/figures, and append a row for each to `index`, also for those without runs.

    Yields a line for each file that is written, and for each figure that is left out though it has runs. index: rows as
    _index takes them. A figure is a miniature if one of its runs trained on generated data: its picture goes to
    figures/miniature, and its numbers to miniatures.md.
    """
    page = [MINIATURES.format(banner=BANNER)]  # miniatures.md: its head, then a section a figure
    for figure in EVERY:
        what, script = FIGURES.get(figure, (f"Wang et al. 2022, Figure {figure}", f"scripts/{name_of(figure)}.sh"))
        name = f"{name_of(figure)}.png"
        try:
            miniature = any(run.miniature for run in runs_of(results / "runs", figure))
            folder = results / "figures"
            if miniature:
                folder = folder / "miniature"
            picture = folder / name
            text = redraw(results / "runs", figure, picture.parent)
            picture.with_suffix(".md").unlink()  # redraw writes the numbers beside the picture, too; `text` has them
        except UserError as error:  # no finished run, or one lacks what the figure shows
            if holds_runs(results / "runs" / folder_of(figure)):
                yield f"left out {name_of(figure)}: {error}"
            index.append((what, script, "not run", "–", None))
            continue

        if miniature:
            heading, _, numbers = text.partition("\n")
            page.append(
                f"## {heading}\n\n![{heading}]({picture.relative_to(results).as_posix()})\n\n"
                f"<details><summary>numbers</summary>\n\n{numbers.strip()}\n\n</details>\n"
            )
        index.append((what, script, "miniature" if miniature else "in full", "picture", picture))
        yield f"wrote {picture}"

    if len(page) > 1:  # some figure is a miniature
        with whole(results / "miniatures.md") as part:
            part.write_text("\n".join(page), encoding="utf-8")
        yield f"wrote {results / 'miniatures.md'}"


def _index(rows: list[tuple], results: Path) -> str:
    """Return the index of tables and figures in Markdown, for a page in the folder `results`.

    rows: tuples of four texts (the title, the script, what was run, the number or "picture"), and the file of the table
    or picture, None if there is none.
    """
    table = [["what", "script", "run here", "measured (published)", "record"]]
    for *words, file in rows:
        link = "–"
        if file:
            address = quote(file.relative_to(results).as_posix())
            link = f"[{escape(file.name)}]({address})"
        table.append([*map(escape, words), link])
    return markdown(table) + "\n"


def _table_of_runs(table: list[list[str]]) -> str:
    """Return a table in Markdown, or "None." if it has no rows. table: the header, then the rows."""
    if len(table) < 2:
        return "None.\n"
    escaped = [[escape(cell) for cell in row] for row in table]
    return markdown(escaped) + "\n"


def _trained_with(runs: list[RecordedRun]) -> str:
    """Return a sentence with the environments of the runs: commits, versions and hardware.

    Runs that differ only in their commit share one description, which names their commits one after the other.
    """
    # by the description of an environment, in which the word COMMITS holds the place of the commits
    commits_by_environment: dict[str, list[str | None]] = {}
    for run in runs:
        commit = run.environment.get("commit")
        description = environment_line(run.environment | {"commit": "COMMITS"})
        commits = commits_by_environment.setdefault(description, [])
        if commit not in commits:
            commits.append(commit)

    environments = []
    for description, commits in commits_by_environment.items():
        named = ", ".join(map(str, commits))
        environments.append(escape(description.replace("COMMITS", named)))
    return f"\nTrained with {'; '.join(environments)}.\n"


def main(argv: list[str] | None = None) -> None:
    """Parse the arguments, run the command and print its lines; a UserError ends it with one line and status 1.

    argv: the arguments; None for those of the command line.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    sub = commands.add_parser("keep", help="records finished runs")
    sub.add_argument("runs", type=Path, metavar="RUNS", help="folder with runs at any depth, each with run.json")
    sub.add_argument("dest", type=Path, metavar="DEST", help="folder for the records, or one file .jsonl for all")
    sub = commands.add_parser("render", help="renders records")
    sub.add_argument(
        "results",
        type=Path,
        metavar="RESULTS",
        help="folder whose subfolder runs/ holds the records, for example results",
    )
    args = parser.parse_args(argv)
    lines = keep(args.runs, args.dest) if args.command == "keep" else render(args.results)
    try:
        for line in lines:  # both are generators, which do their work meanwhile
            print(line)
    except (UserError, OSError) as error:
        sys.exit(f"records.py: error: {error}")


if __name__ == "__main__":
    main()
