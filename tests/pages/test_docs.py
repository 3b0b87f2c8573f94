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

METHODS_PAGE = (ROOT / "docs" / "methods.md").read_text()
EXAMPLE = (ROOT / "docs" / "adding_a_method.md").read_text()

FOLDERS = (ROOT, ROOT / "docs", ROOT / "results")
PAGES = [page for folder in FOLDERS for page in sorted(folder.glob("*.md")) if page.name != "CHANGELOG.md"]


TABLES = re.search(r"<!-- methods -->\n(.*)<!-- /methods -->", METHODS_PAGE, re.DOTALL)[1].strip().splitlines()


def test_tables_of_methods_have_the_lines_that_are_generated():
    """docs/methods.md holds the tables that dev/methods_page.py writes.

    Methods that are new, or from a user's folder, need not be on the page.
    """
    assert TABLES
    assert set(TABLES) <= set(methods_page().splitlines())


def test_tables_of_methods_have_a_row_of_most_methods():
    """The test above takes a table with a row less, too; a new method need not be on the page."""
    named = {name for name in METHODS if any(f"`{name}`" in line for line in TABLES)}

    assert len(named) >= 25


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


@pytest.fixture(scope="module")
def card_of_example(extended):
    """Provide what `methods` tells of the example, at 18L-25L."""
    command = ("deepnet_fairseq", "methods", "layer_scale", "--layers", "18,25", "--json")
    return json.loads(call(extended / "deepnet_fairseq", *command))


def test_the_example_of_a_new_method_adds_its_vectors(card_of_example):
    added = 30 * 512 + 2 * 2 * 512  # 2N + 3M vectors of 6L-6L, and Pre-LN's two final LayerNorms

    assert card_of_example["parameters"].startswith(f"{added:+,} beside")
    assert card_of_example["last LayerNorm"] == "yes"


def test_the_example_of_a_new_method_can_be_exported(card_of_example):
    assert card_of_example["export"].startswith("plain Transformer")


def test_the_example_of_a_new_method_has_its_option(card_of_example):
    assert card_of_example["options"][0][:3] == ["--layer-scale-init", "number", "0.0"]


def test_the_example_of_a_new_method_has_its_coefficients(card_of_example):
    gains = {"encoder g": 0.1, "decoder g": 1e-6}

    assert card_of_example["coefficients"] == {"18L-25L": pytest.approx(gains)}


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
    for row in re.findall(r"^\| `\w+` \| .* \|$", METHODS_PAGE, re.MULTILINE):
        profile = re.match(r"\| `(\w+)`", row)[1]
        if profile not in PROFILES:
            continue
        for name in re.findall(r"\w+", row.split("|")[-2]):
            if name in METHODS:
                assert METHODS[name].init_profiles[0] == profile, row
                documented += 1

    assert documented >= 25


COEFFICIENTS = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\d., |]+) \|$", METHODS_PAGE, re.MULTILINE)
DEPTHS_OF_COLUMNS = (6, 18, 100)


def test_coefficients_are_documented_of_methods_in_which_they_depend_on_depth():
    named = {name for name, _, _ in COEFFICIENTS}

    assert named == {
        "deepnorm", "admin_torch", "sub_ln", "r_fixup", "t_fixup", "complete_p", "keel", "ln_scaling",
    }  # fmt: skip


@pytest.mark.parametrize("name, coefficient, cells", COEFFICIENTS, ids=lambda part: part.replace(" | ", ";"))
def test_documented_coefficients_are_those_of_the_methods(name, coefficient, cells):
    for depth, cell in zip(DEPTHS_OF_COLUMNS, cells.split("|"), strict=True):
        method = METHODS[name](depth, depth)
        expected = [method.coefficients(stack)[coefficient] for stack in ("encoder", "decoder")]
        assert [float(value) for value in cell.split(",")] == pytest.approx(expected, abs=5e-5), depth


def commands_named_on(page) -> set[str]:
    """Return the commands of `deepnet` that a page names."""
    return set(re.findall(r"(?:^|`|&& )deepnet ([a-z][a-z-]+)", page.read_text(), re.MULTILINE))


def test_commands_named_in_the_documentation_exist():
    known = set(re.findall(r"^  ([a-z-]+)  ", run_cold("deepnet", "--help").stdout, re.MULTILINE))

    assert len({command for page in PAGES for command in commands_named_on(page)}) > 10
    for page in PAGES:
        assert commands_named_on(page) <= known, page


def test_path_is_what_user_dir_wants(capsys):
    main(["path"])

    assert capsys.readouterr().out == f"{USER_DIR}\n"
