"""A pytest plug-in: programs that a test starts, and forks of its process, are counted by coverage as that test's.

Coverage hands its settings to started programs in an environment variable, and to forks as they are in the process. Its
`context` is a name that coverage keeps beside each line that ran; here it becomes the test that is running. Used by
dev/mutate.py as `-p dev.contexts`.
"""

from __future__ import annotations

import os

from coverage import Coverage
from coverage.config import CoverageConfig

SETTINGS = "COVERAGE_PROCESS_CONFIG"


def pytest_runtest_logstart(nodeid: str) -> None:
    """Name the test that begins in the settings of the programs and forks that it will start."""
    if SETTINGS in os.environ:
        settings = CoverageConfig.deserialize(os.environ[SETTINGS])
        settings.context = nodeid
        os.environ[SETTINGS] = settings.serialize()

    running = Coverage.current()
    if running is not None:
        running.config.context = nodeid  # for forks; this process, which has begun to count, reads its settings no more
