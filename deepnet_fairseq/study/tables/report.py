"""`deepnet report`: a table with its runs as one Markdown page, and the same page as HTML with its pictures."""

from __future__ import annotations

import base64
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from urllib.parse import quote

from ...errors import UserError
from ...files import check_file, whole
from ...text_table import escape, markdown
from ..named_figures import FIGURES, training_losses
from ..plots import Picture, draw
from ..runs import RecordedRun
from .definitions import DEPTH, TABLES, number_at
from .results import Cell, Entry, Result, TableReport, collect, described, shallow_first

DASH, MINUS = "–", "−"
BANNER = "Miniature on generated data: numbers say nothing about the paper's."
FURTHER = {"sacreBLEU": "sacrebleu", "chrF": "chrf", "spBLEU": "spbleu", "TER": "ter"}  # by their keys in score.json
SIGNED = {"tokenised": "tokenised BLEU", "m2m": "BLEU by M2M-100's protocol"} | {k: name for name, k in FURTHER.items()}
Rows = list[list[str]]


def markdown_page(report: TableReport, out: Path | None = None) -> str:
    """Return the Markdown page. out: the file it is for: links to logs are relative to its folder, or else to RUNS."""
    table, start = report.table, (out.resolve().parent if out else report.runs.resolve())
    parts = [
        f"# {escape(table.place)}: {escape(table.title)}",
        f"Beside {escape(table.place)} of {escape(table.paper['citation'])}: <{table.paper['url']}>",
        *([f"> **{escape(BANNER)}**"] if report.miniature else []),
        *(f"> **Warning:** {escape(warning)}" for warning in report.warnings),
    ]
    several = "over several seeds mean ± standard deviation of the sample"
    for title, caption, rows in (
        ("Overview", f"{table.metric.name}: measured (published)", _overview(report)),
        ("Beside the paper", f"{table.metric.name}; {several}", _beside_paper(report)),
        ("Runs", "one row a training", _runs(report, start)),
        ("Into each language", "mean BLEU of the directions into it, of all test sets", _by_language(report)),
    ):
        if len(rows) > 1:
            parts += [f"## {title}", escape(caption), markdown(rows)]
    parts += ["## Notes", "\n".join(f"- {escape(note)}" for note in _notes(report)), "Trained with:"]
    parts.append("\n".join(f"- <sup>{k}</sup> {escape(described(e))}" for k, e in report.environments.items()))
    return "\n\n".join(parts) + "\n"


def published(cell: Cell, missing: str = DASH) -> str:
    """Return the paper's number, with the digits that it gives."""
    return missing if cell.published is None else str(cell.published)


def _overview(report: TableReport) -> Rows:
    """Methods by depths where the table is a grid, else rows by columns; a cell: measured (published)."""
    table = report.table
    if not table.grid:
        names = [*_names(report)[0], "parameters", *(column.name for column in table.columns)]
        rows = zip(report.results, _names(report)[1:], strict=True)
        return [names, *([*row, _size(one), *(_cell(report, one, k) for k in one.cells)] for one, row in rows)]
    found = {(result.label, result.depth): result for result in report.results}
    depths = list(dict.fromkeys(result.depth for result in shallow_first(report.results, with_label=False)))
    key, labels = table.columns[0].key, dict.fromkeys(result.label for result in report.results)
    rows = [[label, *(_cell(report, found.get((label, depth)), key) for depth in depths)] for label in labels]
    return [["method", *map(escape, depths)], *rows]


def _cell(report: TableReport, result: Result | None, key: str) -> str:
    """Measured (published), with the letters of its environments where the table has several."""
    if result is None:
        return "not run"
    cell = result.cells[key]
    letters = sorted({entry.environment for entry in result.entries}, key=lambda letter: (len(letter), letter))
    marks = f"<sup>{', '.join(letters)}</sup>" if letters and len(report.environments) > 1 else ""
    theirs = published(cell, missing="" if result.method else DASH)
    return f"{cell if result.method else DASH}{marks}" + (f" ({theirs})" if theirs else "")


def _names(report: TableReport) -> Rows:
    """Columns that tell rows apart: model, the table's own, and the depth, as 18L-18L in a grid, else in all."""
    table = report.table
    rows = [["model", *table.others, *["layers"] * (DEPTH[1] in table.keys), *filter(None, [table.tuned])]]
    for result in report.results:
        row, facts = [escape(result.label), *(escape(value) or DASH for value in result.others)], result.row.facts
        if DEPTH[1] in table.keys:
            row.append(f"{facts[DEPTH[1]]}L-{facts[DEPTH[2]]}L" if table.grid else str(result.layers))
        rows.append([*row, result.tuned or DASH] if table.tuned else row)
    return rows


def _size(result: Result) -> str:
    """Parameters as papers give them, 61M or 3.8B, with the published number."""
    count, said = result.parameters, DASH
    for unit, name in ((1, ""), (1e3, "K"), (1e6, "M"), (1e9, "B")):
        if count and count >= unit:
            said = f"{count / unit:.{0 if count >= 10 * unit or unit == 1 else 1}f}{name}"
    return said + (f" ({result.row.parameters})" if result.row.parameters else "")


def _beside_paper(report: TableReport) -> Rows:
    """A row a result, with the difference from the paper; a grid's rows without runs stand in the overview alone."""
    columns = report.table.columns
    names = _names(report)
    header = [*names[0], "parameters", "runs"]
    for column in columns:
        name = f"{column.name}, " if len(columns) > 1 else ""
        header += [column.name, f"{name}paper"] + [f"{name}difference"] * (not report.miniature)
    rows = [header]
    for result, name in zip(report.results, names[1:], strict=True):
        if result.entries or not report.table.grid:
            row = [*name, _size(result), str(len(result.best))]
            for cell in result.cells.values():
                row += [str(cell) if result.method else DASH, published(cell)]
                row += [] if report.miniature else [_number(cell.difference, "+")]
            rows.append(row)
    return rows


def _number(value: float | None, sign: str = "") -> str:
    return DASH if value is None else f"{value:{sign}.2f}".replace("-", MINUS)


def _further_metrics(report: TableReport) -> dict[str, str]:
    """Return those of FURTHER that some run has and no column of the table is of."""
    paths = {column.path for column in report.table.columns}
    found = {name: key for name, key in FURTHER.items() if f"{key}.score" not in paths}
    return {n: k for n, k in found.items() if any(number_at(e.score, f"{k}.score") is not None for e in report.entries)}


def _runs(report: TableReport, start: Path) -> Rows:
    """Every run: how it stands, its scores, what it took, with what it was trained."""
    table, metrics = report.table, _further_metrics(report)
    tested = any(entry.p is not None for entry in report.entries)
    header = ["run", "method", "layers" if DEPTH[1] in table.keys else "row", *filter(None, [table.tuned]), "seed"]
    header += ["state", *(column.name for column in table.columns), *(f"{name} [95%]" for name in metrics)]
    header += [f"p against {report.baseline}"] * tested + ["updates", "cost", "trained with", "log"]
    rows = [list(map(escape, header))]
    for result in report.results:
        for entry in result.entries:
            path, facts = entry.run.log_file, entry.run.facts
            link = quote(Path(os.path.relpath(path.resolve(), start)).as_posix())
            rows.append([
                escape(entry.name), escape(result.label), escape(result.depth),
                *(str(facts.get(key, DASH)) for key in filter(None, [table.tuned])),
                DASH if entry.run.seed is None else str(entry.run.seed), entry.status,
                *(_number(column.read(entry.score)) for column in table.columns),
                *(_interval(entry.score, key) for key in metrics.values()), *[_p(entry, report.baseline)] * tested,
                DASH if entry.updates is None else str(entry.updates), _hours(entry), entry.environment,
                f"[log]({link})" if path.exists() else DASH,
            ])  # fmt: skip
    return rows


def _interval(score: dict, metric: str) -> str:
    """A score with its 95% bootstrap interval, as "27.53 [26.90, 28.14]"."""
    value, mean, half = (number_at(score, f"{metric}.{key}") for key in ("score", "mean", "ci"))
    if value is None or half is None:
        return _number(value)
    middle = value if mean is None else mean
    return escape(f"{value:.2f} [{middle - half:.2f}, {middle + half:.2f}]")


def _p(entry: Entry, baseline: str) -> str:
    if entry.run.method == baseline:
        return "baseline"
    return DASH if entry.p is None else escape("<0.001" if entry.p < 0.001 else f"{entry.p:.3f}")


def _hours(entry: Entry) -> str:
    """Cost with at most three decimals: 0.042 GPU-hours, 1250 GPU-hours."""
    if entry.cost is None:
        return DASH
    value, unit = entry.cost
    return f"{value:.{3 if value < 0.1 else 2 if value < 10 else 0}f} {unit}-hours"


def _by_language(report: TableReport) -> Rows:
    """BLEU into each language, a column a run of many directions: about 0 where the model writes another language."""
    columns: dict[str, dict[str, list[float]]] = {}
    for entry in report.entries:
        for scores in entry.score.get("sets", {}).values():
            for direction, values in scores.get("directions", {}).items():
                into = columns.setdefault(entry.name, {}).setdefault(direction.split("-")[1], [])
                into.append(values["bleu"])
    rows = [["language", *map(escape, columns)]]
    for language in sorted(set().union(*columns.values())):
        rows.append([language, *(_number(fmean(c[language]) if language in c else None) for c in columns.values())])
    return rows


def _notes(report: TableReport) -> list[str]:
    """Explain how to read the tables, and how their numbers were computed."""
    better = "Higher" if report.table.metric.higher_is_better else "Lower"
    found = [
        f"In parentheses the published number, of {report.table.place}; no parentheses where the paper gives none. "
        f'"not run": no run was recorded. {better} is better.',
        *report.table.notes,
    ]
    if _further_metrics(report):
        found.append("In brackets the 95% interval of 1,000 bootstrap samples of the test set.")
    if any(entry.p is not None for entry in report.entries):
        found.append(f"p: paired test of sacreBLEU, same sentences, against {report.baseline}'s run at the same depth.")
    if any(entry.cost for entry in report.entries):
        found.append(
            "Cost: wall time of the training, all its attempts, times its GPUs; on a CPU wall time alone. "
            "Translating and scoring are not in it."
        )
    signatures = {pair for entry in report.entries for pair in _signatures(entry.score) if pair[0] in SIGNED}
    return found + [f"Signature of {SIGNED[name]}: {text}" for name, text in sorted(signatures)]


def _signatures(score: dict) -> Iterator[tuple[str, str]]:
    """Yield metric and signature, at any depth of a score."""
    for key, value in score.items():
        if isinstance(value, dict):
            if value.get("signature") and isinstance(value["signature"], str):
                yield key, value["signature"]
            yield from _signatures(value)


def pictures(report: TableReport) -> Iterator[Picture]:
    """Yield the training losses by depth, and the figure that is drawn from the same runs, if there is one."""
    curves: dict[str, list[RecordedRun]] = {}
    for result in report.results:
        for entry in result.entries:
            if entry.updates is not None:
                curves.setdefault(result.depth, []).append(entry.run)
    if curves:
        yield training_losses(curves, "Training loss")
    over = [entry.run for entry in report.entries if entry.status.startswith(("scored", "diverged", "stuck"))]
    square = [run for run in over if run.decoder_layers == run.encoder_layers]
    if report.table.figure and square:
        yield FIGURES[report.table.figure](square)


STYLE = """body { font: 16px/1.5 sans-serif; margin: 2rem; } table { border-collapse: collapse; }
th, td { border: 1px solid #bbb; padding: .3rem .6rem; white-space: nowrap; } blockquote { background: #fff4d6; }"""


def html(text: str, drawn: list[Picture]) -> str:
    """Return a Markdown page as one HTML file that needs nothing else, with its pictures at its end."""
    from markdown import Markdown  # type: ignore[import-untyped]  # without types of its own

    for picture in drawn:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "picture.png"
            draw(picture, path)
            data = base64.b64encode(path.read_bytes()).decode("ascii")
        text += f"\n## {escape(picture.heading)}\n\n![{escape(picture.heading)}](data:image/png;base64,{data})\n"
    text = re.sub(r"\\([<>|&~$])", lambda mark: f"&#{ord(mark[1])};", text)  # GitHub's escapes, unknown to Markdown
    body, title = Markdown(extensions=["tables"]).convert(text), text.splitlines()[0].strip("# ").replace("\\", "")
    head = f'<meta charset="utf-8">\n<title>{title}</title>\n<style>\n{STYLE}\n</style>'
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def render_report(
    runs: Path, table: str, out: Path | None = None, page_out: Path | None = None, baseline: str | None = None
) -> str:
    """Return the page of a table and write it. out: Markdown; page_out: HTML. The same runs give the same bytes.

    UserError for an unknown table or method, for runs that are not there or broken, and for a path not to be written.
    """
    if table not in TABLES:
        raise UserError(f"--table {table}: no such table; choose one of {', '.join(TABLES)}")
    for flag, path in (("--out", out), ("--html", page_out)):
        if path:
            check_file(flag, path)
    report = collect(runs, TABLES[table], baseline)
    text = markdown_page(report, out)
    texts = {out: text} if out else {}
    if page_out:
        texts[page_out] = html(markdown_page(report, page_out), list(pictures(report)))
    for path, content in texts.items():
        with whole(path) as part:
            part.write_text(content, encoding="utf-8")
    return text
