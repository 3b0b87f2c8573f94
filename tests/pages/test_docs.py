"""Tests of the documentation against the code."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from deepnet_fairseq.cli import main
from deepnet_fairseq.core.initialisation import PROFILES
from deepnet_fairseq.core.methods import METHODS
from dev.methods_page import methods_page

from ..support.helpers import ROOT, USER_DIR, call, run_cold

PAGE = (ROOT / "docs" / "methods.md").read_text()
EXAMPLE = (ROOT / "docs" / "adding_a_method.md").read_text()

FOLDERS = (ROOT, ROOT / "docs", ROOT / "results")
PAGES = [page for folder in FOLDERS for page in sorted(folder.glob("*.md")) if page.name != "CHANGELOG.md"]


def test_tables_of_methods():
    """docs/methods.md holds the tables that dev/methods_page.py writes.

    Methods that are new, or from a user's folder, need not be on the page.
    """
    held = re.search(r"<!-- methods -->\n(.*)<!-- /methods -->", PAGE, re.DOTALL).group(1)
    assert set(held.strip().splitlines()) <= set(methods_page().splitlines())


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """Provide a copy of package and tests with the file of docs/adding_a_method.md in it."""
    folder = tmp_path_factory.mktemp("extended")
    for name in ("deepnet_fairseq", "benchmarks", "dev", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("docs", "scripts", "results", "configs", "README.md", "setup.py", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    written = re.search(r"^cat > (\S+) <<'END'\n(.*?)^END$", EXAMPLE, re.DOTALL | re.MULTILINE)
    (folder / written[1]).write_text(written[2])
    return folder


def test_example_of_a_new_method_is_found(extended):
    """The example of a new method is listed, can be exported, and has its option and its coefficients."""
    command = ("deepnet_fairseq", "methods", "layer_scale", "--layers", "18,25", "--json")
    card = json.loads(call(extended / "deepnet_fairseq", *command))
    extra = 30 * 512 + 2 * 2 * 512  # 2N + 3M vectors, and Pre-LN's two final LayerNorms
    assert card["parameters"].startswith(f"{extra:+,} beside") and card["last LayerNorm"] == "yes"
    assert card["export"].startswith("plain Transformer")
    assert card["options"][0][:3] == ["--layer-scale-init", "number", "0.0"]
    assert card["coefficients"] == {"18L-25L": pytest.approx({"encoder g": 0.1, "decoder g": 1e-6})}


@pytest.mark.smoke
def test_a_new_method_keeps_what_every_method_keeps(extended):
    """Every test that is parametrised by the registry passes for the example of a new method."""
    words = ["-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=short"]
    words += ["-m", "not slow and not gpu and not peers"]
    words += ["-k", "(layer_scale or by_name) and not documented"]
    environment = os.environ | {"PYTHONPATH": str(extended)}
    done = subprocess.run([sys.executable, *words], cwd=extended, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 30, done.stdout[-500:]


def test_default_profiles_are_the_documented_ones():
    """Default init profiles of the methods equal those on the page."""
    documented = 0
    for row in re.findall(r"^\| `\w+` \| .* \|$", PAGE, re.MULTILINE):
        profile, names = re.match(r"\| `(\w+)`", row)[1], re.findall(r"\w+", row.split("|")[-2])
        if profile in PROFILES:
            methods = [METHODS[name] for name in names if name in METHODS]
            assert all(method.init_profiles[0] == profile for method in methods), row
            documented += len(methods)
    assert documented >= 25


def test_coefficients_are_those_of_the_depths():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\d., |]+) \|$", PAGE, re.MULTILINE)
    by_depth = {"deepnorm", "admin_torch", "sub_ln", "r_fixup", "t_fixup", "complete_p", "keel", "ln_scaling"}
    assert {name for name, *_ in rows} == by_depth
    for name, number, cells in rows:
        for depth, cell in zip((6, 18, 100), cells.split("|"), strict=True):
            built = METHODS[name](depth, depth)
            expected = [built.coefficients(stack)[number] for stack in ("encoder", "decoder")]
            assert [float(value) for value in cell.split(",")] == pytest.approx(expected, abs=5e-5), (name, depth)


def test_commands_named_in_the_documentation_exist():
    known = set(re.findall(r"^  ([a-z-]+)  ", run_cold("deepnet", "--help").stdout, re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^|`|&& )deepnet ([a-z][a-z-]+)", page.read_text(), re.MULTILINE))
        assert named <= known, page


def test_path_is_what_user_dir_wants(capsys):
    main(["path"])
    assert capsys.readouterr().out == f"{USER_DIR}\n"
