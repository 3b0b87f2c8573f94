"""What is installed: a version, a command by two names, annotations for others, and nothing but the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata

import pytest

from deepnet_fairseq import __version__, cli

from .support.helpers import ROOT, run_cold


def test_version_is_the_packages(capsys):
    """Of the package, of what pip knows, and of the changelog's newest entry."""
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).group(1)
    assert (end.value.code, capsys.readouterr().out) == (0, f"deepnet_fairseq {newest}\n")
    assert __version__ == newest == metadata.version("deepnet_fairseq")


@pytest.mark.parametrize("words", ["--help", "--version", "archs", "coefficients 6 6", "methods"])
def test_commands_import_what_they_use(words):
    """The command by its other name: no torch for a page of help; no fairseq and not torch's compiler for a model."""
    printed = run_cold("python", "-X", "importtime", "-m", "deepnet_fairseq", *words.split()).stdout
    loaded = {line.split("|")[-1].strip() for line in printed.splitlines() if line.startswith("import time:")}
    assert "deepnet_fairseq.cli" in loaded
    assert loaded.isdisjoint({"torch"} if words[0] == "-" else {"fairseq", "hydra", "omegaconf", "torch._dynamo"})


def test_every_tool_of_the_tests_is_pinned():
    """What the extra `dev` installs stands in scripts/constraints.txt."""
    pinned = {
        line.split("==")[0] for line in (ROOT / "scripts/constraints.txt").read_text().splitlines() if "==" in line
    }
    wanted = [entry for entry in metadata.requires("deepnet_fairseq") if 'extra == "dev"' in entry]
    assert len(wanted) > 5
    assert {re.match(r"[\w-]+", entry).group() for entry in wanted} <= pinned


@pytest.mark.smoke
def test_wheel_holds_the_package_and_nothing_else(tmp_path):
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "deepnet_fairseq", tree / "deepnet_fairseq", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, tree]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    there = (path for path in (ROOT / "deepnet_fairseq").rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert held == {path.relative_to(ROOT).as_posix() for path in there}
    assert "deepnet_fairseq/py.typed" in held
