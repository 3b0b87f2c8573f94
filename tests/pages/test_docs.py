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

from ..support.helpers import ROOT, USER_DIR, output_of_module, run_cold

METHODS_PAGE = (ROOT / "docs" / "methods.md").read_text()
# lines of the tables that dev/methods_page.py writes
GENERATED = re.search(r"<!-- methods -->\n(.*)<!-- /methods -->", METHODS_PAGE, re.DOTALL)[1].strip().splitlines()

FOLDERS = (ROOT, ROOT / "docs", ROOT / "results")
PAGES = [page for folder in FOLDERS for page in sorted(folder.glob("*.md")) if page.name != "CHANGELOG.md"]


def test_tables_of_methods_are_as_generated():
    """Methods that are new, or from a user's folder, need not be on the page."""
    assert GENERATED
    assert set(GENERATED) <= set(methods_page().splitlines())


def test_tables_of_methods_have_rows_of_at_least_25_methods():
    """test_tables_of_methods_are_as_generated accepts tables that lack rows."""
    rows = "\n".join(GENERATED)
    named = {name for name in METHODS if f"`{name}`" in rows}

    assert len(named) >= 25


@pytest.fixture(scope="module")
def checkout_with_example(tmp_path_factory):
    """Provide a copy of package and tests with the file that docs/adding_a_method.md writes: the method layer_scale."""
    folder = tmp_path_factory.mktemp("extended")
    for name in ("deepnet_fairseq", "benchmarks", "dev", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("docs", "scripts", "results", "configs", "README.md", "setup.py", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)

    page = (ROOT / "docs" / "adding_a_method.md").read_text()
    command = re.search(r"^cat > (?P<file>\S+) <<'END'\n(?P<content>.*?)^END$", page, re.DOTALL | re.MULTILINE)
    (folder / command["file"]).write_text(command["content"])
    return folder


@pytest.fixture(scope="module")
def card_of_example(checkout_with_example):
    """Provide what `deepnet methods` tells of the example, at 18L-25L."""
    command = ("deepnet_fairseq", "methods", "layer_scale", "--layers", "18,25", "--json")
    return json.loads(output_of_module(checkout_with_example / "deepnet_fairseq", *command))


def test_the_example_of_a_new_method_adds_its_vectors(card_of_example):
    """Parameters are counted in a 6L-6L model of width 512, and compared with Post-LN's."""
    vectors = 2 * 6 + 3 * 6  # one on each branch: two in a layer of the encoder, three in one of the decoder
    final_layer_norms = 2 * (512 + 512)  # as in Pre-LN, one a stack, with weight and bias
    added = vectors * 512 + final_layer_norms

    number, *_ = card_of_example["parameters"].split()
    assert number == f"{added:+,}"
    assert card_of_example["last LayerNorm"] == "yes"


def test_the_example_of_a_new_method_can_be_exported(card_of_example):
    assert card_of_example["export"].startswith("plain ")


def test_the_example_of_a_new_method_has_its_option(card_of_example):
    (option,) = card_of_example["options"]

    flag, kind, default, *_ = option
    assert flag == "--layer-scale-init"
    assert kind == "number"
    assert default == "0.0"  # 0 stands for the paper's value, which depends on depth


def test_the_example_of_a_new_method_has_its_coefficients(card_of_example):
    """The paper begins with 0.1 in models of up to 18 layers, and with 1e-6 beyond 24."""
    gains = {"encoder g": 0.1, "decoder g": 1e-6}

    assert card_of_example["coefficients"] == {"18L-25L": pytest.approx(gains)}


@pytest.mark.smoke
def test_every_test_of_all_methods_passes_for_the_example_of_a_new_method(checkout_with_example):
    """Many tests are parametrised by the registry of methods."""
    words = ["-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "--tb=short"]
    words += ["-m", "not slow and not gpu and not peers"]
    words += ["-k", "(layer_scale or by_name) and not documented"]
    environment = os.environ | {"PYTHONPATH": str(checkout_with_example)}

    done = subprocess.run(
        [sys.executable, *words], cwd=checkout_with_example, env=environment, text=True, capture_output=True
    )

    assert done.returncode == 0, done.stdout[-3000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed >= 30, done.stdout[-500:]


def documented_profiles() -> list[tuple[str, str]]:
    """Return (method, initialisation profile beside it) of rows | `PROFILE` | .. | methods | on the page."""
    pairs = []
    for row in re.findall(r"^\| `\w+` \| .* \|$", METHODS_PAGE, re.MULTILINE):
        first_cell, *_, last_cell = row.strip("| ").split("|")
        profile = first_cell.strip(" `")
        if profile in PROFILES:
            for name in re.findall(r"\w+", last_cell):
                if name in METHODS:
                    pairs.append((name, profile))
    return pairs


def test_default_profiles_are_the_documented_ones():
    documented = documented_profiles()

    assert len(documented) >= 25
    for name, profile in documented:
        assert METHODS[name].init_profiles[0] == profile, name


# Rows of the table of coefficients: method, coefficient, and cells by depth, each "of the encoder, of the decoder".
COEFFICIENTS = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\d., |]+) \|$", METHODS_PAGE, re.MULTILINE)
DEPTHS_OF_COLUMNS = (6, 18, 100)


def test_coefficients_are_documented_of_methods_in_which_they_depend_on_depth():
    named = {name for name, _coefficient, _cells in COEFFICIENTS}

    assert named == {
        "deepnorm", "admin_torch", "sub_ln", "r_fixup", "t_fixup", "complete_p", "keel", "ln_scaling",
    }  # fmt: skip


@pytest.mark.parametrize("name, coefficient, cells", COEFFICIENTS, ids=lambda part: part.replace(" | ", ";"))
def test_documented_coefficients_are_those_of_the_methods(name, coefficient, cells):
    """docs/methods.md gives coefficients to four decimals."""
    for depth, cell in zip(DEPTHS_OF_COLUMNS, cells.split("|"), strict=True):
        method = METHODS[name](depth, depth)
        computed = [method.coefficients(stack)[coefficient] for stack in ("encoder", "decoder")]

        documented = [float(value) for value in cell.split(",")]

        assert documented == pytest.approx(computed, abs=5e-5), depth


def commands_named_on(page) -> set[str]:
    """Return the commands of `deepnet` that a page names in code, as "translate" of "deepnet translate"."""
    return set(re.findall(r"(?:^|`|&& )deepnet ([a-z][a-z-]+)", page.read_text(), re.MULTILINE))


def test_commands_named_in_the_documentation_exist():
    known = set(re.findall(r"^  ([a-z-]+)  ", run_cold("deepnet", "--help").stdout, re.MULTILINE))

    named = set()
    for page in PAGES:
        assert commands_named_on(page) <= known, page
        named |= commands_named_on(page)
    assert len(named) > 10


def test_path_prints_the_folder_for_user_dir(capsys):
    main(["path"])

    assert capsys.readouterr().out == f"{USER_DIR}\n"
