"""A pytest plug-in: the lines that a started program runs are recorded by coverage for the test that started it.

Coverage hands its settings to started programs in an environment variable, serialised. One of them, `context`, is a
name that coverage keeps beside each line that ran; here it becomes the name of the test. Used by dev/mutate.py as
`-p dev.contexts`.
"""

from __future__ import annotations

import os

from coverage.config import CoverageConfig

SETTINGS = "COVERAGE_PROCESS_CONFIG"


def pytest_runtest_logstart(nodeid: str) -> None:
    """Put the name of the test that begins, pytest's `nodeid`, into the settings of programs that it will start."""
    if SETTINGS in os.environ:  # coverage follows started programs
        settings = CoverageConfig.deserialize(os.environ[SETTINGS])
        settings.context = nodeid
        os.environ[SETTINGS] = settings.serialize()
