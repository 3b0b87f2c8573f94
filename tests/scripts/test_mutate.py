"""Tests of dev/mutate.py: where small mistakes are made, and whether a test that notices one is found."""

import ast
import re
import subprocess
import sys

import pytest

from dev import mutants

from ..support.helpers import ROOT

SOURCE = """
def share(values: list[int], least: int = -1) -> float:
    print("share")
    if values[0] < least:
        return values[1] - 2
    return sum(values) / len(values)
"""
MISTAKES = [  # in the order of the text
    ("-1", "(1)"),
    ('print("share")', "pass"),
    ("values[0] < least", "(values[0]) <= (least)"),
    ("0", "1"),
    ("values[1] - 2", "(values[1]) + (2)"),
    ("1", "2"),
    ("sum(values) / len(values)", "(sum(values)) * (len(values))"),
]


@pytest.fixture
def small_package(tmp_path):
    """Provide a root with one file of a package of that name."""
    file = tmp_path / mutants.PACKAGE / "room" / "file.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    return tmp_path


def test_all_mistakes_of_a_file_are_those_by_hand(small_package):
    [file] = small_package.rglob("*.py")

    made = mutants.mutants_of_file(small_package, file)

    assert [(mutant.before, mutant.after) for mutant in made] == MISTAKES


def test_a_mistake_changes_its_place_alone(small_package):
    [file] = small_package.rglob("*.py")

    for mutant in mutants.mutants_of_file(small_package, file):
        changed = mutant.source(small_package)
        assert changed == SOURCE[: mutant.start] + mutant.after + SOURCE[mutant.end :]
        ast.parse(changed)


def test_mistakes_within_annotations_and_f_strings_are_left_out(tmp_path):
    file = tmp_path / "file.py"
    file.write_text('def shown(x: tuple[1] = f"{1 - 2}") -> None: ...\n')

    assert mutants.mutants_of_file(tmp_path, file) == []


def test_a_seed_draws_the_same_mistakes_of_the_package():
    drawn = mutants.draw(ROOT, seed=3, count=20)

    assert drawn == mutants.draw(ROOT, seed=3, count=20)
    assert drawn != mutants.draw(ROOT, seed=4, count=20)
    assert len(set(drawn)) == 20


def test_without_a_record_the_command_says_how_to_make_one(tmp_path):
    program = "import sys, dev.mutate as m, pathlib; m.RECORD = pathlib.Path('none'); sys.argv[1:] = ['1']; m.main()"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 1
    assert re.search("^coverage/contexts: .*--record", done.stderr)
