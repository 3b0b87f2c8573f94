"""Part 3: the tests that need a GPU.

The part yields a row: a dictionary of what it found. Its Work has its folder, and says whether it is a miniature, which
has no GPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from .records import ROOT
from .work import PYTHON, Work

NO_TESTS = 5  # pytest's status where nothing was collected


def tests(work: Work) -> Iterator[dict]:
    """Run the tests marked gpu; yield one row: how many passed, failed and so on, and the names of those that failed.

    The miniature only collects the tests; "collected" is their number in its row, and 0 in that of a GPU.
    """
    # only these files, as pytest imports every file that it is given
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    words = [PYTHON, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "--timeout=120", *files]
    if work.miniature:
        # pyproject.toml has one -q; with two, pytest prints a line "tests/FILE: NUMBER" for each file
        words += ["--collect-only", "-q"]
    else:
        # a process for each two cores, but no more than eight, which share the one GPU
        processes = max(1, min(8, (os.cpu_count() or 1) // 2))
        words += ["-n", processes]
    # a test that fails is a result, which the row names
    work.run(words, "pytest", allowed=(0, 1, NO_TESTS))

    printed = work.log("pytest").read_text(encoding="utf-8", errors="replace")
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", printed)}
    collected = sum(int(number) for number in re.findall(r"^tests/\S+: (\d+)$", printed, re.MULTILINE))
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)
    yield {"what": "pytest -m gpu", **counts, "collected": collected, "failures": failures}
