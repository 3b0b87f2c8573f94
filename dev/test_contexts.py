"""A pytest plug-in: programs that a test starts are counted by coverage as that test's.

Coverage hands its settings to started programs in an environment variable. Its `context` is a name that coverage keeps
beside each line that ran; here it becomes the test that is running. Used by dev/mutate.py as `-p dev.test_contexts`.
"""

from __future__ import annotations

import json
import os

SETTINGS = "COVERAGE_PROCESS_CONFIG"


def pytest_runtest_logstart(nodeid: str) -> None:
    """Name the test that begins in the settings of the programs that it will start."""
    if SETTINGS in os.environ:
        settings = json.loads(os.environ[SETTINGS])
        settings["context"] = nodeid
        os.environ[SETTINGS] = json.dumps(settings)
