"""Part 3: the tests that need a GPU."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from .records import ROOT
from .work import PYTHON, Work

NO_TESTS = 5  # pytest's status where nothing was collected


def tests(work: Work) -> Iterator[dict]:
    """Run pytest -m gpu, a process for each two cores up to eight; the miniature only collects the tests."""
    files = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    words = [PYTHON, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "--timeout=120", *files]
    if work.miniature:
        words += ["--collect-only", "-q"]  # with that of pyproject.toml, the number of tests by file
    else:
        processes = max(1, min(8, (os.cpu_count() or 1) // 2))
        words += ["-n", processes]
    # a test that fails is a result, which the row names
    work.run(words, "pytest", allowed=(0, 1, NO_TESTS))

    printed = work.log("pytest").read_text(encoding="utf-8", errors="replace")
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", printed)}
    collected = sum(int(number) for number in re.findall(r"^tests/\S+: (\d+)$", printed, re.MULTILINE))
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)
    yield {"what": "pytest -m gpu", **counts, "collected": collected, "failures": failures}
