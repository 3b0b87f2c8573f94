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

# A record has "case" (a key of CASES), "which" checkout ("before" or "after") and its "commit", "pairs" (sentence pairs
# of training text), what `measure` returns, and the machine's "hardware", "versions" and time ("started").

RECORDS = Path(__file__).with_name("records.jsonl")
PAGE = Path(__file__).parents[2] / "docs" / "corpora.md"
FIRST_MARK, LAST_MARK = "<!-- memory by size -->\n", "<!-- /memory by size -->\n"  # around the table on the page
PAIRS = (2**18, 2**20, 2**21)  # sentence pairs of the training text, by measurement
MOST_BEFORE = 2**20  # most pairs for the checkout BEFORE: it may keep all text in memory
EVERY = 0.1  # seconds between samples of the memory
VOCAB = ("--vocab", "1000")  # subwords: few, since the generated language has few words


class Case(NamedTuple):
    """A command of `deepnet prepare` that is measured.

    title: its name on the page. words: function that returns the arguments behind `deepnet prepare`, of the folder of
    text, as write_corpus returns it, and of the folder that the command makes.
    """

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
    """What a program and all of its processes took.

    Linux counts a page of memory that several processes share for each of them in RSS (resident set size), and divides
    it among them in PSS (proportional set size).
    """

    pss: int  # bytes; the largest of the samples, each the sum over the processes
    rss: int  # likewise
    seconds: float  # from start to end
    status: int  # with which the program ended


def watch(words: list, **options) -> Peak:
    """Run a program to its end, and sample the memory of its processes meanwhile.

    words: the program and its arguments, texts or paths; options: of subprocess.Popen.
    """
    begun = time.monotonic()
    largest_pss = largest_rss = 0
    program = subprocess.Popen([os.fspath(word) for word in words], **options)
    while program.poll() is None:
        pss = rss = 0
        for process in list(descendants(program.pid)):
            sizes = memory(process)
            pss += sizes[0]
            rss += sizes[1]
        largest_pss = max(largest_pss, pss)
        largest_rss = max(largest_rss, rss)
        time.sleep(EVERY)
    return Peak(largest_pss, largest_rss, time.monotonic() - begun, program.returncode)


def descendants(first: int) -> Iterator[int]:
    """Yield `first`, the number (PID) of a process, and those of its children, of their children and so on."""
    yield first
    # Linux lists the children of a process by the thread that started them
    for task in Path(f"/proc/{first}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it has ended
            continue
        for child in children:
            yield from descendants(int(child))


def memory(process: int) -> tuple[int, int]:
    """Return (PSS, RSS) of a process, by its number, in bytes; both 0 if it has ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0, 0
    sizes = {}  # by name, "Pss:" and others
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3:  # "Pss:   1234 kB"; the first line has the addresses
            sizes[words[0]] = int(words[1]) * 1024
    return sizes["Pss:"], sizes["Rss:"]


def write_corpus(folder: Path, pairs: int) -> Path:
    """Write the text of all cases, FOLDER/de-en/{train,valid,test}.{de,en}; return FOLDER/de-en.

    The name is that of a language pair's folder for `prepare corpus`; the text is of the generated language.
    pairs: sentence pairs of the training text, for which the 20,000 of the language are repeated.
    """
    from deepnet_fairseq.data.language import SIZES, make_corpus
    from deepnet_fairseq.data.lines import write_columns

    def repeated(rows: list) -> Iterator[tuple[str, str]]:
        """Yield the sentence pairs again and again without end, each time in another order; shuffles `rows`."""
        rng = Random(1)
        while True:
            rng.shuffle(rows)
            yield from rows

    text = folder / "de-en"
    for split, rows in make_corpus(SIZES).items():  # rows: pairs (source sentence, target sentence)
        chosen = islice(repeated(rows), pairs) if split == "train" else rows
        files = [text / f"{split}.{lang}" for lang in ("de", "en")]
        write_columns(files, chosen)
    return text


def measure(name: str, checkout: Path, text: Path, dest: Path) -> dict:
    """Run the command of one case with the package of a checkout; return what is recorded of it.

    name: a key of CASES; text: the folder that write_corpus returned; dest: the folder that the command makes, which is
    removed at the end. Returns "seconds" by the clock and "processor_seconds" of all processes; "bytes" and
    "resident_bytes", the peaks of PSS and of RSS; "text_bytes" and "made_bytes", the sizes of the files read and made;
    and the machine's load average of a minute, "load_at_end", and its "cores". A failure ends this program.
    """
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "deepnet_fairseq", "prepare", *CASES[name].words(text, dest)]

    # processor seconds of all child processes that have ended, before and after the command
    usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = watch(words, cwd=checkout, env=environment, stdout=subprocess.DEVNULL)
    usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if peak.status:
        sys.exit(f"measure.py: error: {' '.join(map(str, words))} ended with status {peak.status}")

    processor_seconds = usage_after.ru_utime + usage_after.ru_stime - usage_before.ru_utime - usage_before.ru_stime
    made = sum(file.stat().st_size for file in dest.rglob("*") if file.is_file())
    shutil.rmtree(dest)
    return {
        "seconds": round(peak.seconds, 1),
        "processor_seconds": round(processor_seconds, 1),
        "bytes": peak.pss,
        "resident_bytes": peak.rss,
        "text_bytes": sum(file.stat().st_size for file in text.iterdir()),
        "made_bytes": made,
        "load_at_end": round(os.getloadavg()[0], 2),
        "cores": os.cpu_count(),
    }


def idle(record: dict) -> bool:
    """Return whether nothing else kept the machine busy, so that the seconds of a record may be shown.

    The load is then the command's own: at most a process for each core, their parent, and this program. That makes the
    number of cores and two.
    """
    return record["load_at_end"] <= record["cores"] + 2


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout, all of its digits."""
    words = ["git", "-C", checkout, "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def table(records: list[dict]) -> str:
    """Return the table in Markdown: a row for each case and number of pairs, with memory (PSS) and seconds.

    records: the oldest first; the last one of a case, number of pairs and checkout counts. "–" stands for what was not
    measured, and for the seconds on a machine that was busy.
    """
    newest = {}  # by ("case", "pairs", "which")
    for record in records:
        newest[record["case"], record["pairs"], record["which"]] = record

    lines = ["| command | pairs | memory before | now | seconds before | now |", "|---|---|---|---|---|---|"]
    for name, case in CASES.items():
        for pairs in sorted({pairs for case_name, pairs, _which in newest if case_name == name}):
            sizes = []
            seconds = []
            for which in ("before", "after"):
                record = newest.get((name, pairs, which))
                sizes.append(f"{record['bytes'] / 1e9:.2f} GB" if record else "–")
                seconds.append(f"{record['seconds']:.0f}" if record and idle(record) else "–")
            lines.append(f"| {case.title} | {pairs:,} | {' | '.join(sizes)} | {' | '.join(seconds)} |")
    return "\n".join(lines)


def render() -> None:
    """Replace the table of docs/corpora.md by that of the records, and print it."""
    made = table(read_records())
    above, _, rest = PAGE.read_text(encoding="utf-8").partition(FIRST_MARK)
    _old_table, _, below = rest.partition(LAST_MARK)
    PAGE.write_text(f"{above}{FIRST_MARK}{made}\n{LAST_MARK}{below}", encoding="utf-8")
    print(made)


def read_records() -> list[dict]:
    """Return all records, the oldest first."""
    return [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Measure the cases in both checkouts, append a record of each and render the table; with --table, only render."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, nargs="?", metavar="BEFORE", help="folder of a checkout")
    parser.add_argument(
        "after", type=Path, nargs="?", metavar="AFTER", help="folder of the checkout to compare it with"
    )
    parser.add_argument("--cases", default=",".join(CASES), help="what to prepare (default: %(default)s)")
    parser.add_argument(
        "--pairs", default=",".join(map(str, PAIRS)), help="sizes of corpora in sentence pairs (default: %(default)s)"
    )
    parser.add_argument(
        "--folder", type=Path, help="folder for text and data of 3 GB (default: the system's for temporary files)"
    )
    parser.add_argument("--table", action="store_true", help="render the table from the records, and measure nothing")
    args = parser.parse_args()
    if args.table:
        return render()
    if not args.after:  # both are optional arguments because of --table
        parser.error("BEFORE and AFTER: name the folders of two checkouts")

    from deepnet_fairseq.tools.environment import environment

    machine = environment(0)  # versions and hardware, without GPUs
    for pairs in map(int, args.pairs.split(",")):
        with TemporaryDirectory(dir=args.folder) as folder:
            text = write_corpus(Path(folder) / "text", pairs)
            for name in args.cases.split(","):
                for which, checkout in (("before", args.before), ("after", args.after)):
                    if which == "before" and pairs > MOST_BEFORE:
                        continue
                    record = {"case": name, "which": which, "pairs": pairs, "commit": commit_of(checkout)}
                    record |= measure(name, checkout, text, Path(folder) / "made")
                    for fact in ("hardware", "versions", "started"):
                        record[fact] = machine[fact]
                    with open(RECORDS, "a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
                    print(json.dumps(record), flush=True)
    render()


if __name__ == "__main__":
    main()
