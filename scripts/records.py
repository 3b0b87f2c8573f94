"""Records of finished runs, and what readers see of them; scripts/render_results.sh calls both.

keep RUNS DEST     what reports and figures need of the runs, without the machine's own paths
render RESULTS     RESULTS/runs as tables, pictures, an index
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.files import read_object, whole
from deepnet_fairseq.plugin.probe_record import FILE as PROBES
from deepnet_fairseq.study import logs
from deepnet_fairseq.study.figures import EVERY, redraw
from deepnet_fairseq.study.figures.losses import rows_by_depth
from deepnet_fairseq.study.runs import RecordedRun, folder_of, name_of, runs_of
from deepnet_fairseq.study.tables.collect import PAIRED, Report, collect
from deepnet_fairseq.study.tables.definitions import TABLES
from deepnet_fairseq.study.tables.formats import escape, grid_text, reports
from deepnet_fairseq.study.tables.layout import BANNER, Grid, Text, published
from deepnet_fairseq.study.tables.result import described, environment_of

OBJECTS, TEXTS = ("run.json", "environment.json", "score.json"), ("command", "diverged", "trained")
SETTINGS = re.compile(r"(\| INFO \| fairseq_cli\.train \| (\{|Namespace\()).*")
ROW = re.compile(r"(\| INFO \| (?:train_inner|train|valid|test)[^|]* \| )(\{.*\})")
STEP = r"(?:[\w.@%+=-]|\\.)+"  # a name in a path, blanks escaped as a shell prints them
ABSOLUTE = re.compile(rf"(?<![\w./~*-])/({STEP}/)*({STEP})?/?")
HOME = re.compile(rf"~/({STEP}/)*({STEP})?/?")
COLOURS = 64  # of a picture: lines and letters on white
OWN = ("deepnorm", "normformer", "admin")  # the method that a table's paper is about
FIGURES = {  # those that are not Figure N of DeepNet, by scripts/figureN.sh
    "depth": ("DeepNorm and Post-LN at several depths", "scripts/quickstart.sh"),
    "normformer3": ("Shleifer et al. 2021, Figure 3", "scripts/normformer_lm.sh"),
    "normformer4": ("Shleifer et al. 2021, Figure 4", "scripts/normformer_lm.sh"),
}
MINIATURES = """# Figures in miniature

> **{banner}**

What `SMOKE=1 scripts/figureN.sh` and `SMOKE=1 scripts/normformer_lm.sh` draw: narrow models, a few hundred updates,
generated text. They show that the scripts run to the end and what their output looks like. Logs, settings and
environment of each run are in [runs](runs); `scripts/render_results.sh` writes this page.
"""


def keep(runs: Path, dest: Path) -> Iterator[str]:
    """Records every finished run below `runs` at the same place below `dest`; what is there of it already is replaced.

    Yields what it did. UserError, before that, if no run is over, one is broken or says nothing of its environment, or
    if `dest` lies in `runs`.
    """
    if not runs.is_dir():
        raise UserError(f"{runs}: no such folder; name one that holds recorded runs")
    if dest.resolve().is_relative_to(runs.resolve()):
        raise UserError(f"{dest}: lies in {runs}; name another place for the records")
    found = sorted(path.parent for path in runs.rglob("run.json"))
    over = [run for run in found if RecordedRun.read(run).finished]
    if not over:
        raise UserError(f"{runs}: holds no finished runs; a finished one has run.json and a file `trained`")
    for run in over:
        if not (run / "environment.json").is_file():
            raise UserError(f"{run}: has no environment.json; write it with `deepnet environment`")
    tests = _paired_tests(runs)
    for run in over:
        _keep(runs, run, dest / run.relative_to(runs), tests.get(run.resolve(), {}))
    yield f"recorded {len(over)} runs in {dest}"
    if left_out := [str(run.relative_to(runs)) for run in found if run not in over]:
        yield f"not over, left out: {', '.join(left_out)}"


def _keep(runs: Path, run: Path, dest: Path, tests: dict[str, float]) -> None:
    """One run; its folder appears whole."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    with whole(dest) as part:
        part.mkdir()
        for path in sorted(run.iterdir()):
            if path.name in OBJECTS:
                content = _relative_values(read_object(path, "record the run again"), runs)
                (part / path.name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            elif path.name in (*TEXTS, "train.log"):
                text = path.read_text(encoding="utf-8", errors="replace")
                text = short_log(text) if path.name == "train.log" else text
                (part / path.name).write_text(relative(text, runs), encoding="utf-8")
            elif path.name == PROBES:
                shutil.copyfile(path, part / PROBES)
        if tests:
            (part / PAIRED).write_text(json.dumps(dict(sorted(tests.items()))) + "\n", encoding="utf-8")
        if dest.is_dir():
            shutil.rmtree(dest)


def _paired_tests(runs: Path) -> dict[Path, dict[str, float]]:
    """Folder of a run -> baseline's run, with its experiment -> p, of every table whose runs are there."""
    found: dict[Path, dict[str, float]] = {}
    for table in TABLES.values():
        if any(next((runs / folder).glob("*/trained"), None) for folder in table.folders):
            entries = collect(runs, table, over=True).entries
            folders = {entry.name: entry.run.folder for entry in entries}
            for entry in entries:
                if entry.p is not None and entry.baseline is not None:
                    rival = folders[entry.baseline]
                    found.setdefault(entry.run.folder.resolve(), {})[f"{rival.parent.name}/{rival.name}"] = entry.p
    return found


def short_log(text: str) -> str:
    """A training's log without what no report reads.

    That is the model's listing, the settings (the file `command` has them), and what was probed (probes.jsonl has it).
    """

    def without_probes(match: re.Match) -> str:
        try:
            row = json.loads(match.group(2))
        except ValueError:  # a line cut off where a run was killed
            return match.group()
        return match.group(1) + json.dumps({key: value for key, value in row.items() if "/" not in key})

    lines = [line for line in text.splitlines() if any(pattern.search(line) for pattern in logs.READ)]
    kept = [ROW.sub(without_probes, SETTINGS.sub(r"\1...", line)) for line in lines if not line.endswith("(")]
    return "".join(f"{line}\n" for line in kept)


def relative(text: str, base: Path) -> str:
    """text with paths below `base` relative to it, others as ".../NAME"; addresses on the network stay."""
    start = str(base.resolve())
    for spelling in dict.fromkeys((start, re.sub(r"([^\w@%+=:,./-])", r"\\\1", start))):
        text = re.sub(re.escape(spelling) + r"/(?=[^\s/])", "", text)

    def name(match: re.Match) -> str:
        return f".../{match.group(2) or ''}" if match.group(1) or match.group(2) else match.group()

    return HOME.sub(name, ABSOLUTE.sub(name, text))


def _relative_values(value, base: Path):
    """The same for each text in what a JSON file holds."""
    if isinstance(value, dict):
        return {key: _relative_values(item, base) for key, item in value.items()}
    if isinstance(value, list):
        return [_relative_values(item, base) for item in value]
    return relative(value, base) if isinstance(value, str) else value


def render(results: Path) -> Iterator[str]:
    """Renders what `results`/runs records; yields a line on each thing done. The same records give the same bytes.

    Written are `results`/tables, /figures and /miniatures.md, and what stands between <!-- report NAME --> and
    <!-- /report NAME --> in `results`/README.md, the index, and /quickstart.md. A figure whose runs lack something is
    left out, and its line says so. UserError if nothing is recorded, or a record is broken.
    """
    runs = results / "runs"
    if not runs.is_dir():
        raise UserError(f"{runs}: no such folder; record runs there with scripts/records.py keep")
    rows = []  # of the index: what, script, what was run, the headline, the record
    for table in TABLES.values():
        title = f"{table.paper['citation'].split(',')[0]}, {table.place}: {table.title}"
        if any(next((runs / folder).glob("*/run.json"), None) for folder in table.folders):
            out = results / "tables" / f"{table.folders[0]}.md"
            out.parent.mkdir(exist_ok=True)
            reports(runs, table.name, {"md": out})
            rows.append((title, table.script, *_state_and_headline(collect(runs, table)), out))
            yield f"wrote {out}"
        else:
            rows.append((title, table.script, "not run", "–", None))
    yield from _render_figures(results, rows)
    yield from _put(results / "README.md", "index", _index(rows, results))
    if (runs / "quickstart").is_dir():
        yield from _put(results / "quickstart.md", "quickstart", _quickstart(runs_of(runs, "depth")))


def _put(page: Path, name: str, text: str) -> Iterator[str]:
    """Between the two lines that name it, where `page` has them."""
    held = page.read_text(encoding="utf-8") if page.is_file() else ""
    before, first, rest = held.partition(f"<!-- report {name} -->\n")
    _, last, after = rest.partition(f"<!-- /report {name} -->")
    if last:
        with whole(page) as part:
            part.write_text(f"{before}{first}{text}{last}{after}", encoding="utf-8")
        yield f"put {name} into {page}"


def _state_and_headline(report: Report) -> tuple[str, str]:
    """What was run; and the number of the deepest model of the paper's own method, if it can be one that was published.

    "–" where nothing has a number.
    """
    over = sum(entry.run.finished for entry in report.entries)
    kind = "miniature" if report.miniature else "as in the paper, but for its warnings"
    state = f"{kind}, {over} run{'s' * (over != 1)}"
    column = report.table.columns[0]
    measured = [result for result in report.results if result.method and result.cells[column.key].mean is not None]
    if not measured:
        return state, "–"
    result = max(measured, key=lambda r: (r.method in OWN, r.cells[column.key].published is not None, r.layers or 0))
    cell = result.cells[column.key]
    theirs = published(cell, missing="no number")
    return state, f"{result.label} {result.depth}, {column.name}: {cell} ({theirs})"


def _render_figures(results: Path, rows: list[tuple]) -> Iterator[str]:
    """Pictures of miniatures go to a folder of their own, and with their numbers on one page."""
    page = [MINIATURES.format(banner=BANNER)]
    for figure in EVERY:
        what, script = FIGURES.get(figure, (f"Wang et al. 2022, Figure {figure}", f"scripts/{name_of(figure)}.sh"))
        name = f"{name_of(figure)}.png"
        try:
            miniature = any(run.facts.get("smoke") is True for run in runs_of(results / "runs", figure))
            picture = results / "figures" / ("miniature" if miniature else "") / name
            text = redraw(results / "runs", figure, picture.parent, COLOURS)
            picture.with_suffix(".txt").unlink()
        except UserError as error:
            if (results / "runs" / folder_of(figure)).is_dir():
                yield f"left out {name_of(figure)}: {error}"
            rows.append((what, script, "not run", "–", None))
            continue
        if miniature:
            heading, _, numbers = text.partition("\n")
            page.append(
                f"## {heading}\n\n![{heading}]({picture.relative_to(results).as_posix()})\n\n"
                f"<details><summary>numbers</summary>\n\n```text\n{numbers.strip()}\n```\n\n</details>\n"
            )
        rows.append((what, script, "miniature" if miniature else "in full", "picture", picture))
        yield f"wrote {picture}"
    if len(page) > 1:
        with whole(results / "miniatures.md") as part:
            part.write_text("\n".join(page), encoding="utf-8")
        yield f"wrote {results / 'miniatures.md'}"


def _index(rows: list[tuple], results: Path) -> str:
    """Markdown of all rows, on a page in `results`."""
    header = ["what", "script", "run here", "measured (published)", "record"]
    cells = []
    for *words, place in rows:
        link = Text(place.name, link=quote(place.relative_to(results).as_posix())) if place else Text("–")
        cells.append([*map(Text, words), link])
    return grid_text(Grid("index", "", "", header, cells)) + "\n"


def _quickstart(runs: list[RecordedRun]) -> str:
    """One row a run, and what they were trained with."""
    header, *rows = rows_by_depth(runs)
    words = {"model", "method"}
    cells = [[Text(text, "" if name in words else "number") for name, text in zip(header, row)] for row in rows]
    trained = dict.fromkeys(escape(described(environment_of(run))) for run in runs)
    return f"{grid_text(Grid('quickstart', '', '', header, cells))}\n\nTrained with {'; '.join(trained)}.\n"


def main(argv: list[str] | None = None) -> None:
    """Parses, does, prints; a mistake ends it with one line and status 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    sub = commands.add_parser("keep", help="records finished runs")
    sub.add_argument("runs", type=Path, metavar="RUNS", help="folder with runs at any depth, each with run.json")
    sub.add_argument("dest", type=Path, metavar="DEST", help="folder for the records, as results/runs")
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
