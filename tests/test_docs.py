"""The documentation says what the code does."""

import json
import re

import pytest

from deepnet_fairseq.methods import METHODS

from .support.helpers import ROOT, call, extended_package, run, run_cold

PAGE = (ROOT / "docs" / "methods.md").read_text()


def test_table_of_methods_is_the_commands():
    """docs/methods.md holds what `deepnet methods --markdown` prints; paste it there when this fails."""
    held = re.search(r"<!-- methods -->\n(.*)<!-- /methods -->", PAGE, re.DOTALL).group(1)
    assert held.strip() == run("deepnet", "methods", "--markdown").stdout.strip()


def test_example_of_a_new_method_runs(tmp_path):
    """The file as printed, in a copy of the package: listed, foldable, with its option."""
    code = re.search(r'```python\n("""Halved.*?)```', PAGE, re.DOTALL).group(1)
    printed = call(extended_package(tmp_path, code), "deepnet_fairseq.cli", "methods", "--json")
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
    known = set(re.findall(r"^    ([a-z-]+)", run_cold("deepnet", "--help").stdout, re.MULTILINE))
    for page in (ROOT / "README.md", ROOT / "docs" / "methods.md"):
        named = set(re.findall(r"`?deepnet ([a-z][a-z-]+)", page.read_text()))
        assert named <= known, page


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "results").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    """Files and headings of this repository that a page links to."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        linked = (page.parent / path) if path else page
        assert linked.exists(), target
        if not heading:
            continue
        titles = [line.lstrip("# ").lower() for line in linked.read_text().splitlines() if line.startswith("#")]
        anchors = {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}
        assert heading in anchors, target


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_no_placeholder_is_left(page):
    assert not re.search(r"\b(TODO|FIXME|TBD)\b", page.read_text())
