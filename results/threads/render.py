"""Render the tables of this folder's page, and the package's table of threads, from the records.

python results/threads/render.py            writes them
python results/threads/render.py --check    says whether they are those of the records

records.jsonl is written by `python -m benchmarks threads`: "median" is the median of the seconds of an update with so
many "threads" of a model of this "width" (embed_dim) and these "layers" while so many cores are "busy" with other
programs; the machine has two. quickstart.jsonl is written by quickstart.py: "seconds" of the "old" or the "new"
"checkout", before and after there was deepnet_fairseq/threads.py, while so many cores are "busy".
The package's table, deepnet_fairseq/threads.toml, says by width whether two threads are faster than one.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import median

from deepnet_fairseq import threads
from deepnet_fairseq.text_table import markdown

HERE = Path(__file__).resolve().parent
TABLE = Path(threads.__file__).with_suffix(".toml")
# A section of the page. Groups: the first comment, the section's name, the last comment.
MARKED = re.compile(r"(<!-- report (\w+) -->\n).*?(<!-- /report \2 -->\n)", re.DOTALL)
IDLE, BUSY = 0, 1  # busy cores


def read(name: str) -> list[dict]:
    """Read the records of a file in this folder; none if it does not exist yet."""
    path = HERE / name
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def median_seconds(records: list[dict]) -> dict[tuple[int, int, int], float]:
    """Return the median seconds of an update by (width, threads, busy cores). records: of records.jsonl."""
    return {(one["width"], one["threads"], one["busy"]): one["median"] for one in records}


def ratios(records: list[dict]) -> dict[int, threads.Ratio]:
    """Return by width the seconds of two threads divided by those of one, on an idle and on a busy machine.

    records: of records.jsonl. Below 1, two threads are faster.
    """
    seconds = median_seconds(records)
    found = {}
    for width in sorted({one["width"] for one in records}):
        idle = seconds[width, 2, IDLE] / seconds[width, 1, IDLE]
        busy = seconds[width, 2, BUSY] / seconds[width, 1, BUSY]
        found[width] = threads.Ratio(idle, busy)
    return found


def package_table(records: list[dict]) -> str:
    """Return the text of threads.toml with the ratios of the records; its lines of comment stay, at the top."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    for width, ratio in ratios(records).items():
        lines.append(f"{width} = {{ idle = {ratio.idle:.2f}, busy = {ratio.busy:.2f} }}")
    return "\n".join(lines) + "\n"


def by_width(records: list[dict]) -> str:
    """Lay out the seconds of an update and the number of threads that the package chooses, one width a row.

    The package chooses all cores where two threads are faster than one in the geometric mean of an idle and a busy
    machine: if the product of both ratios is below 1. Otherwise it chooses one thread.
    """
    header = [
        "width", "layers", "idle: 1 thread", "2 threads", "2 by 1", "one core busy: 1 thread", "2 threads", "2 by 1",
        "threads chosen",
    ]  # fmt: skip
    rows = []
    seconds = median_seconds(records)
    for width, ratio in ratios(records).items():
        layers = next(one["layers"] for one in records if one["width"] == width)  # those of a width are all equal
        row = [str(width), f"{layers}L-{layers}L"]
        for busy, two_by_one in ((IDLE, ratio.idle), (BUSY, ratio.busy)):
            row.append(f"{seconds[width, 1, busy]:.3f}")
            row.append(f"{seconds[width, 2, busy]:.3f}")
            row.append(f"{two_by_one:.2f}")
        row.append("all cores" if ratio.idle * ratio.busy < 1 else "1")
        rows.append(row)
    return markdown([header, *rows])


def quickstart(records: list[dict]) -> str:
    """Lay out the quickstart's median minutes and BLEU, before and after there was deepnet_fairseq/threads.py.

    records: of quickstart.jsonl. There is a row for each checkout on an idle machine, and on one with a busy core.
    """
    rows = []
    for busy, machine in ((IDLE, "idle"), (BUSY, "one core busy")):
        for checkout, before_or_after in (("old", "before"), ("new", "after")):
            runs = [one for one in records if one["checkout"] == checkout and one["busy"] == busy]
            if not runs:
                continue
            minutes = median(run["seconds"] for run in runs) / 60
            scores = set()  # BLEU of all methods and runs; equal ones count once
            for run in runs:
                scores |= {f"{value:.1f}" for value in run["bleu"].values()}
            bleu = ", ".join(sorted(scores))
            rows.append([machine, before_or_after, runs[-1]["commit"], f"{minutes:.1f}", bleu, str(len(runs))])
    return markdown([["machine", "function", "commit", "minutes", "BLEU", "runs"], *rows])


def measured_with(records: list[dict]) -> str:
    """Say on which machine, and with which commit and versions, the first record was measured; it stands for all."""
    environment = records[0]["environment"]
    processor = environment["hardware"].removeprefix("CPU, ")
    versions = ", ".join(f"{name} {environment['versions'][name]}" for name in ("python", "torch"))
    return f"Measured on {processor} with commit {environment['commit']}, {versions}."


def sections() -> dict[str, str]:
    """Render the marked sections of README.md by name; "" for a section without records."""
    widths = read("records.jsonl")
    runs = read("quickstart.jsonl")
    return {
        "widths": f"{by_width(widths)}\n\n{measured_with(widths)}" if widths else "",
        "quickstart": quickstart(runs) if runs else "",
    }


def main() -> None:
    """Write README.md's tables and threads.toml; with --check end with an error if the records give others."""
    made = sections()
    path = HERE / "README.md"
    page = path.read_text(encoding="utf-8")
    # the comments around a section stay, and its text becomes that of its name in `made`
    rendered = MARKED.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", page)
    records = read("records.jsonl")
    table = package_table(records) if records else TABLE.read_text(encoding="utf-8")
    if sys.argv[1:] != ["--check"]:
        path.write_text(rendered, encoding="utf-8")
        TABLE.write_text(table, encoding="utf-8")
    elif (rendered, table) != (page, TABLE.read_text(encoding="utf-8")):
        sys.exit(f"{path} or {TABLE.name}: not what the records give; run results/threads/render.py")


if __name__ == "__main__":
    main()
