"""Put small mistakes into the package, one at a time, and see whether the tests that run the line notice.

    python dev/mutate.py --record        which test runs which line: the default suite once, with coverage
    python dev/mutate.py SEED            fifty mistakes, rooms by their size; needs the record of this very tree
    python dev/mutate.py SEED --count 5  fewer

Each mistake is made in a copy of the tree. Those tests run that coverage names for the line, the most specific ones
(which run the fewest lines of the package) first, until one fails. Prints a line for each mistake, then the mistakes
that no test has noticed; exits with 1 if there are any. What no test noticed either changes nothing that anybody could
see, or wants a test.

Hardware: 1 CPU core. Time: --record half as long again as the default suite; then about a minute a mistake.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dev.mutants import PACKAGE, Mutant, draw  # noqa: E402

RECORD = ROOT / "coverage" / "contexts"  # coverage's database: which test runs which line
AT_ONCE = 60  # tests in one call of pytest, whose start takes as long as ten short tests
LIMIT = 900  # seconds of tests for a mistake


def record(arguments: list[str]) -> int:
    """Run the default suite with coverage, and write RECORD anew; return pytest's status.

    Coverage keeps beside each line the names of the tests that ran it, as its contexts. arguments: more words for
    pytest.
    """
    RECORD.parent.mkdir(exist_ok=True)
    for old in RECORD.parent.glob("contexts*"):
        old.unlink()
    environment = os.environ | {"COVERAGE_FILE": str(RECORD), "PYTHONPATH": str(ROOT)}
    coverage = ("--cov", "--cov-context=test", "--cov-report=", "-p", "dev.contexts")
    # without --dist, pytest-cov would name no tests in xdist's worker processes
    words = ["pytest", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *coverage, *arguments]
    status = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=environment, check=False).returncode

    parts = [str(path) for path in RECORD.parent.glob("contexts.*")]  # of programs that tests started
    if parts:
        combine = [sys.executable, "-m", "coverage", "combine", "--append", "--quiet", *parts]
        subprocess.run(combine, cwd=ROOT, env=environment, check=False)
    return status


class Record:
    """Which tests run which lines, as coverage has recorded it.

    A test is named as pytest names one case of it, FILE::TEST[PARAMETERS]. A line that runs in a fixture that several
    tests share counts for the first of them alone. A line that runs when its module is imported runs in no test: what
    it makes may be used by any test of the module.
    """

    def __init__(self, path: Path) -> None:
        """Read coverage's database, the file `path`: in SQLite, its table line_bits has a row a file and context."""
        from coverage.numbits import numbits_to_nums

        # {file, as "deepnet_fairseq/errors.py": {line: names of the tests that run it}}
        self.tests: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.at_import: dict[str, set[int]] = defaultdict(set)  # {file: lines that run outside of any test}
        # {name of a test: number of lines of the package that it runs; those of its setup and teardown count as well}
        self.lines: Counter[str] = Counter()
        rows = sqlite3.connect(path).execute(
            "select file.path, context.context, line_bits.numbits from line_bits"
            " join file on file.id = line_bits.file_id join context on context.id = line_bits.context_id"
        )
        for file, context, numbits in rows:
            test = re.sub(r"\|(setup|run|teardown)$", "", context)  # pytest-cov's word for the phase of the test
            if f"/{PACKAGE}/" not in file:
                continue
            short = f"{PACKAGE}/" + file.rpartition(f"/{PACKAGE}/")[2]
            numbers = numbits_to_nums(numbits)
            if not test:  # coverage's name for the time outside of any test is ""
                self.at_import[short].update(numbers)
                continue
            self.lines[test] += len(numbers)
            for number in numbers:
                self.tests[short][number].add(test)

    def of(self, mutant: Mutant) -> list[str]:
        """Return the names of the test functions that run a mutant's line, those first that run the fewest lines.

        For a line that runs at import, they are the tests that run any line of its file. Names are without parameters,
        so that all cases of a function run: parameters with brackets or line ends make a name that pytest does not
        find.
        """
        tests_by_line = self.tests[mutant.path]
        cases = tests_by_line[mutant.line]
        if mutant.line in self.at_import[mutant.path]:
            cases = cases.union(*tests_by_line.values())
        by_lines = sorted(cases, key=lambda case: (self.lines[case], case))
        return list(dict.fromkeys(case.partition("[")[0] for case in by_lines))


def first_failure(folder: Path, tests: list[str]) -> str:
    """Run tests in their order until one fails; return its name, "" if none has failed in all or after LIMIT seconds.

    folder: a copy of the repository; tests: names as Record.of returns them. Where pytest fails without naming a test,
    "a test" stands for it, and "a test that does not end" for one that still runs a minute after the limit. Ends the
    program if pytest cannot run the tests.
    """
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("COVERAGE_PROCESS_CONFIG", None)  # coverage, if it runs, shall not follow into these tests
    began = time.monotonic()
    for first in range(0, len(tests), AT_ONCE):
        left = LIMIT - (time.monotonic() - began)
        if left <= 0:
            return ""
        words = ["pytest", "-x", "-p", "no:cacheprovider", "-rfE", "-m", "not peers and not gpu"]
        command = [sys.executable, "-m", *words, *tests[first : first + AT_ONCE]]
        try:
            ended = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=left + 60, check=False
            )
        except subprocess.TimeoutExpired:
            return "a test that does not end"
        if ended.returncode == 0:
            continue
        for line in ended.stdout.splitlines():
            if line.startswith(("FAILED ", "ERROR ")):
                return line.split(" ", 1)[1].split(" - ")[0]
        if ended.returncode > 1:  # pytest could not run them, as when a test is gone: the record is of another tree
            sys.exit(f"pytest ended with status {ended.returncode}: {ended.stdout[-500:]}{ended.stderr[-500:]}")
        return "a test"
    return ""


def copy_tree(folder: Path) -> None:
    """Copy the files that git tracks, as they are in this tree now, into `folder`."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)


def main() -> int:
    """Record the tests of each line, or draw mistakes and try them; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", nargs="?", type=int, metavar="SEED", help="random seed by which the mistakes are drawn")
    record_help = "record which test runs which line, for the calls with SEED; words behind it go to pytest"
    parser.add_argument("--record", nargs=argparse.REMAINDER, metavar="WORD", help=record_help)
    parser.add_argument("--count", type=int, default=50, help="number of mistakes to try (default: 50)")
    args = parser.parse_args()

    if args.record is not None:
        return record(args.record)
    if args.seed is None:
        parser.error("SEED: give a number, or take --record")
    if not RECORD.exists():
        sys.exit("coverage/contexts: no such file; run `python dev/mutate.py --record` first")

    record_of_lines = Record(RECORD)
    unnoticed = []  # mutants
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copy_tree(copy)
        for number, mutant in enumerate(draw(ROOT, args.seed, args.count), start=1):
            began = time.monotonic()
            tests = record_of_lines.of(mutant)
            # put the mistake into the copy while the tests run
            path = copy / mutant.path
            original = path.read_bytes()
            path.write_text(mutant.source(ROOT), encoding="utf-8")
            try:
                failed_test = first_failure(copy, tests)
            finally:
                path.write_bytes(original)

            seconds = time.monotonic() - began
            if failed_test:
                result = f"noticed by {failed_test}"
            elif tests:
                result = f"NOT NOTICED by {len(tests)} tests"
            else:
                result = "NOT NOTICED: no test runs the line"
            print(f"{number:3d}  {seconds:4.0f} s  {mutant}  {result}", flush=True)
            if not failed_test:
                unnoticed.append(mutant)

    print(f"\ntests noticed {args.count - len(unnoticed)} of {args.count} mistakes; seed {args.seed}")
    for mutant in unnoticed:
        print(mutant)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
