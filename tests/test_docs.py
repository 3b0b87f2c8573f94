"""The documentation says what the code does."""

import json
import re

import pytest

from deepnet_fairseq.methods import METHODS

from .helpers import ROOT, run

PAGE = (ROOT / "docs" / "methods.md").read_text()


def test_table_of_methods_is_the_commands():
    """docs/methods.md holds what `deepnet methods --markdown` prints; paste it there when this fails."""
    held = re.search(r"<!-- methods -->\n(.*)<!-- /methods -->", PAGE, re.DOTALL).group(1)
    assert held.strip() == run("deepnet", "methods", "--markdown").stdout.strip()


def test_example_of_a_new_method_runs(tmp_path):
    """The file as printed, in a copy of the package: listed, foldable, with its option."""
    import os
    import shutil
    import subprocess
    import sys

    code = re.search(r'```python\n("""Halved.*?)```', PAGE, re.DOTALL).group(1)
    package = tmp_path / "deepnet_fairseq"
    shutil.copytree(ROOT / "deepnet_fairseq", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "methods" / "halved.py").write_text(code)
    command = [sys.executable, "-m", "deepnet_fairseq.cli", "methods", "--json"]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    printed = subprocess.run(command, env=env, cwd=ROOT / "tests", text=True, capture_output=True, check=True).stdout
    (halved,) = [row for row in json.loads(printed) if row["method"] == "halved"]
    assert halved["equation"] == "LN(x + s f(x))" and halved["obstacle"] is None
    assert halved["options"]["--halved-share"]["default"] == 0.5


@pytest.mark.parametrize("method", sorted(METHODS))
def test_default_profile_is_the_documented_one(method):
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{METHODS[method].init_profiles[0]}` |"))
    assert method in re.findall(r"\w+", row.split("|")[-2])


def test_listing():
    rows = json.loads(run("deepnet", "methods", "--json").stdout)
    assert [row["method"] for row in rows] == sorted(METHODS)
    assert {row["method"] for row in rows if row["final_norm"]} == {"pre_ln", "dlcl", "normformer", "sub_ln"}
    flags = run("deepnet", "methods", "--flags", "admin,pre_ln").stdout
    assert flags == "--method admin --admin-profile auto\n--method pre_ln\n"
    assert "deepnorm" in run("deepnet", "methods").stdout


def test_commands_named_in_the_documentation_exist():
    known = set(re.findall(r"^    ([a-z-]+)", run("deepnet", "--help").stdout, re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "docs" / "methods.md"):
        named = set(re.findall(r"`?deepnet ([a-z][a-z-]+)", page.read_text()))
        assert named <= known, page
