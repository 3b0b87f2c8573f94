"""A method that somebody writes to a file: the tests that go by the registry, run in a copy of package and tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .helpers import ROOT


def extended(folder: Path, path: str, text: str, edits: list[str]) -> Path:
    """`folder` as a copy of package and tests beside all else, with a file `path`, after some commands on it."""
    for name in ("deepnet_fairseq", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("docs", "scripts", "results", "configs", "README.md", "setup.py", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / path).write_text(text)
    for edit in edits:
        subprocess.run(edit, shell=True, cwd=folder, check=True)
    return folder


def passed(folder: Path, names: str, *words: str) -> int:
    """How many of the copy's tests have such names, all of which pass; words: files and flags of pytest."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-k", names, "--tb=short"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run([*command, *words], cwd=folder, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-3000:]
    return int(re.search(r"(\d+) passed", done.stdout)[1])
