"""Render the tables of this folder's page, and the package's table of threads, from the records.

python results/threads/render.py            writes them
python results/threads/render.py --check    says whether they are those of the records
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
MARKED = re.compile(r"(<!-- report (\w+) -->\n).*?(<!-- /report \2 -->\n)", re.DOTALL)
IDLE, BUSY = 0, 1  # busy cores


def read(name: str) -> list[dict]:
    """Read the records of a file in this folder; none if it does not exist yet."""
    path = HERE / name
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def seconds(records: list[dict]) -> dict[tuple[int, int, int], float]:
    """Return the median seconds of an update by width, threads and busy cores."""
    return {(one["width"], one["threads"], one["busy"]): one["median"] for one in records}


def ratios(records: list[dict]) -> dict[int, threads.Ratio]:
    """Return what two threads take of one thread's seconds, by width."""
    taken = seconds(records)
    widths = sorted({one["width"] for one in records})
    return {w: threads.Ratio(*(taken[w, 2, busy] / taken[w, 1, busy] for busy in (IDLE, BUSY))) for w in widths}


def package_table(records: list[dict]) -> str:
    """Return threads.toml with the ratios of the records, below its own comment."""
    comment = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    rows = [f"{width} = {{ idle = {one.idle:.2f}, busy = {one.busy:.2f} }}" for width, one in ratios(records).items()]
    return "\n".join([*comment, *rows]) + "\n"


def by_width(records: list[dict]) -> str:
    """Lay out the seconds of an update, one width a row."""
    taken, rows = seconds(records), []
    for width, ratio in ratios(records).items():
        layers = next(one["layers"] for one in records if one["width"] == width)
        cells = [f"{taken[width, number, busy]:.3f}" for busy in (IDLE, BUSY) for number in (1, 2)]
        shares = [f"{ratio.idle:.2f}", f"{ratio.busy:.2f}"]
        chosen = "all cores" if ratio.idle * ratio.busy < 1 else "1"
        rows.append([str(width), f"{layers}L-{layers}L", *cells[:2], shares[0], *cells[2:], shares[1], chosen])
    heads = ["width", "layers", "idle: 1 thread", "2 threads", "2 by 1"]
    return markdown([[*heads, "one core busy: 1 thread", "2 threads", "2 by 1", "threads chosen"], *rows])


def quickstart(records: list[dict]) -> str:
    """Lay out the quickstart's minutes before and after, idle and beside a busy core."""
    rows = []
    for busy in (IDLE, BUSY):
        for checkout in ("old", "new"):
            some = [one for one in records if (one["checkout"], one["busy"]) == (checkout, busy)]
            if some:
                minutes = median(one["seconds"] for one in some) / 60
                bleu = sorted({f"{value:.1f}" for one in some for value in one["bleu"].values()})
                place = ["one core busy" if busy else "idle", {"old": "before", "new": "after"}[checkout]]
                rows.append([*place, some[-1]["commit"], f"{minutes:.1f}", ", ".join(bleu), str(len(some))])
    return markdown([["machine", "function", "commit", "minutes", "BLEU", "runs"], *rows])


def place(records: list[dict]) -> str:
    """Say where and with what the records were measured."""
    one = records[0]["environment"]
    versions = ", ".join(f"{name} {one['versions'][name]}" for name in ("python", "torch"))
    return f"Measured on {one['hardware'].removeprefix('CPU, ')} with commit {one['commit']}, {versions}."


def sections() -> dict[str, str]:
    """Render the marked sections of README.md by name; one without records is empty."""
    widths, runs = read("records.jsonl"), read("quickstart.jsonl")
    return {
        "widths": f"{by_width(widths)}\n\n{place(widths)}" if widths else "",
        "quickstart": quickstart(runs) if runs else "",
    }


def main() -> None:
    """Write page and table, or check them."""
    made, path = sections(), HERE / "README.md"
    page = path.read_text(encoding="utf-8")
    rendered = MARKED.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", page)
    records = read("records.jsonl")
    table = package_table(records) if records else TABLE.read_text(encoding="utf-8")
    if sys.argv[1:] != ["--check"]:
        path.write_text(rendered, encoding="utf-8")
        TABLE.write_text(table, encoding="utf-8")
    elif (rendered, table) != (page, TABLE.read_text(encoding="utf-8")):
        sys.exit(f"{path} or {TABLE.name}: not of the records; run results/threads/render.py")


if __name__ == "__main__":
    main()
