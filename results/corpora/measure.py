"""Measure memory and time of preparing corpora by their size, of two checkouts of this repository.

    python results/corpora/measure.py BEFORE AFTER              all cases; about half an hour on two idle cores
    python results/corpora/measure.py BEFORE AFTER --cases text --pairs 262144
    python results/corpora/measure.py --table                   renders the table of docs/corpora.md anew

BEFORE and AFTER are folders of two checkouts; the environment is the active one. The text is that of `deepnet prepare
language`, its 20,000 pairs repeated, each time in another order. Memory is the peak, in samples, of the sum over all
processes of the program, in which pages that processes share count once (PSS). A line for each measurement is
appended to records.jsonl; the newest of a case counts, and the table of docs/corpora.md is rendered from those.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import NamedTuple

RECORDS = Path(__file__).with_name("records.jsonl")
PAGE = Path(__file__).parents[2] / "docs" / "corpora.md"
MARKS = "<!-- memory by size -->\n", "<!-- /memory by size -->\n"  # around the table on the page
PAIRS = (1 << 18, 1 << 20, 1 << 21)
MOST_BEFORE = 1 << 20  # pairs that the older checkout is tried with
EVERY = 0.1  # seconds between samples of the memory
VOCAB = ("--vocab", "1000")


class Case(NamedTuple):
    """Command that is measured: its name on the page, its arguments for a folder of text and one to make."""

    title: str
    words: Callable[[Path, Path], list]


CASES = {
    "text": Case(
        "`prepare text`",
        lambda text, dest: ["text", "de", "en", text / "train", text / "valid", text / "test", dest, *VOCAB],
    ),
    "lm": Case(
        "`prepare lm`, the source side",
        lambda text, dest: ["lm", text / "train.de", text / "valid.de", text / "test.de", dest, *VOCAB],
    ),
    "multilingual": Case(
        "`prepare corpus multilingual`",
        lambda text, dest: ["corpus", "multilingual", dest, "--from", text.parent, *VOCAB],
    ),
    "iwslt14": Case(
        "`prepare corpus iwslt14_de_en --from`",
        lambda text, dest: ["corpus", "iwslt14_de_en", dest, "--from", text, *VOCAB],
    ),
}


class Peak(NamedTuple):
    """Memory of a program and all of its processes: the largest sums of PSS and of RSS, in bytes; seconds; status."""

    pss: int
    rss: int
    seconds: float
    status: int


def watch(words: list, **options) -> Peak:
    """Run a program and sample the memory of its processes; options: of subprocess.Popen."""
    begun, pss, rss = time.monotonic(), 0, 0
    program = subprocess.Popen([os.fspath(word) for word in words], **options)
    while program.poll() is None:
        processes = list(descendants(program.pid))
        samples = [memory(process) for process in processes]
        pss = max(pss, sum(sample[0] for sample in samples))
        rss = max(rss, sum(sample[1] for sample in samples))
        time.sleep(EVERY)
    return Peak(pss, rss, time.monotonic() - begun, program.returncode)


def descendants(first: int) -> Iterator[int]:
    """Yield a process, its children, theirs and so on."""
    yield first
    for task in Path(f"/proc/{first}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it has ended
            continue
        for child in children:
            yield from descendants(int(child))


def memory(process: int) -> tuple[int, int]:
    """Return PSS and RSS of a process in bytes; 0 if it has ended."""
    try:
        rows = [row.split() for row in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()]
    except OSError:
        return 0, 0
    sizes = {row[0]: int(row[1]) * 1024 for row in rows if len(row) == 3}
    return sizes.get("Pss:", 0), sizes.get("Rss:", 0)


def write_corpus(folder: Path, pairs: int) -> Path:
    """Write FOLDER/de-en/{train,valid,test}.{de,en}; return FOLDER/de-en."""
    from deepnet_fairseq.data.language import SIZES, make_corpus
    from deepnet_fairseq.data.lines import write_columns

    def repeated(rows: list) -> Iterator[tuple[str, str]]:
        rng = Random(1)
        while True:
            rng.shuffle(rows)
            yield from rows

    text = folder / "de-en"
    corpus = make_corpus(SIZES)
    for split, rows in corpus.items():
        chosen = islice(repeated(rows), pairs) if split == "train" else rows
        write_columns([text / f"{split}.{lang}" for lang in ("de", "en")], chosen)
    return text


def measure(name: str, checkout: Path, text: Path, dest: Path) -> dict:
    """Run one case in a checkout; return what is recorded."""
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "deepnet_fairseq", "prepare", *CASES[name].words(text, dest)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = watch(words, cwd=checkout, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if peak.status:
        sys.exit(f"measure.py: error: {' '.join(map(str, words))} ended with status {peak.status}")
    made = sum(file.stat().st_size for file in dest.rglob("*") if file.is_file())
    shutil.rmtree(dest)
    return {
        "seconds": round(peak.seconds, 1),
        "processor_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "bytes": peak.pss,
        "resident_bytes": peak.rss,
        "text_bytes": sum(file.stat().st_size for file in text.iterdir()),
        "made_bytes": made,
        "load_at_end": round(os.getloadavg()[0], 2),
        "cores": os.cpu_count(),
    }


def idle(record: dict) -> bool:
    """Return whether nothing else was at work: the load is the command's own, of its processes and their parent."""
    return record["load_at_end"] <= record["cores"] + 2


def commit(checkout: Path) -> str:
    """Return the commit of a checkout."""
    words = ["git", "-C", checkout, "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def table(records: list[dict]) -> str:
    """Return the table in Markdown: memory and seconds of each case, before and after."""
    newest = {(record["case"], record["pairs"], record["which"]): record for record in records}
    lines = ["| command | pairs | memory before | now | seconds before | now |", "|---|---|---|---|---|---|"]
    for name, case in CASES.items():
        for pairs in sorted({key[1] for key in newest if key[0] == name}):
            both = [newest.get((name, pairs, which)) for which in ("before", "after")]
            sizes = [f"{record['bytes'] / 1e9:.2f} GB" if record else "–" for record in both]
            seconds = [f"{record['seconds']:.0f}" if record and idle(record) else "–" for record in both]
            lines.append(f"| {case.title} | {pairs:,} | {' | '.join(sizes)} | {' | '.join(seconds)} |")
    return "\n".join(lines)


def render() -> None:
    """Put the table of the records onto the page, and print it."""
    made = table(read_records())
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    PAGE.write_text(f"{before}{MARKS[0]}{made}\n{MARKS[1]}{after}", encoding="utf-8")
    print(made)


def read_records() -> list[dict]:
    """Return all records, the oldest first."""
    return [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?")
    parser.add_argument("after", type=Path, nargs="?")
    parser.add_argument("--cases", default=",".join(CASES), help="default: %(default)s")
    parser.add_argument("--pairs", default=",".join(map(str, PAIRS)), help="default: %(default)s")
    parser.add_argument("--folder", type=Path, help="for text and data, 3 GB (default: that of temporary files)")
    parser.add_argument("--table", action="store_true", help="render the table from the records, and measure nothing")
    args = parser.parse_args()
    if args.table:
        return render()
    if not args.after:
        parser.error("BEFORE and AFTER: name the folders of two checkouts")

    from deepnet_fairseq.tools.environment import environment

    machine = environment(0)
    for pairs in map(int, args.pairs.split(",")):
        with TemporaryDirectory(dir=args.folder) as folder:
            text = write_corpus(Path(folder) / "text", pairs)
            for name in args.cases.split(","):
                for which, checkout in (("before", args.before), ("after", args.after)):
                    if which == "before" and pairs > MOST_BEFORE:
                        continue
                    record = {"case": name, "which": which, "pairs": pairs, "commit": commit(checkout)}
                    record |= measure(name, checkout, text, Path(folder) / "made")
                    record |= {"hardware": machine["hardware"], "versions": machine["versions"]}
                    record |= {"started": machine["started"]}
                    with open(RECORDS, "a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
                    print(json.dumps(record), flush=True)
    render()


if __name__ == "__main__":
    main()
