"""Tests of dev/mutants.py and dev/mutate.py, which give the package small mistakes for its tests to notice.

Such a mistake is called a mutant, and replaces some bytes of a file.
"""

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
MISTAKES = [  # (text before, text after) in SOURCE, in its order, found by hand
    ("-1", "(1)"),
    ('print("share")', "pass"),
    ("values[0] < least", "(values[0]) <= (least)"),
    ("0", "1"),
    ("values[1] - 2", "(values[1]) + (2)"),
    ("1", "2"),
    ("sum(values) / len(values)", "(sum(values)) * (len(values))"),
]


@pytest.fixture
def root_of_small_package(tmp_path):
    """Provide a root with one file of the package, which holds SOURCE."""
    file = tmp_path / mutants.PACKAGE / "room" / "file.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    return tmp_path


@pytest.fixture
def mutants_of_source(root_of_small_package):
    """Provide the mutants of the small package's only file."""
    [file] = root_of_small_package.rglob("*.py")
    return mutants.mutants_of_file(root_of_small_package, file)


def test_all_mistakes_of_a_file_are_those_by_hand(mutants_of_source):
    assert [(mutant.before, mutant.after) for mutant in mutants_of_source] == MISTAKES


def test_a_mistake_changes_its_place_alone(mutants_of_source, root_of_small_package):
    """The text before and behind a mistake stays, and the changed file is still Python."""
    assert mutants_of_source
    for mutant in mutants_of_source:
        changed = mutant.source(root_of_small_package)

        assert changed == SOURCE[: mutant.start] + mutant.after + SOURCE[mutant.end :]
        ast.parse(changed)


def test_mistakes_within_annotations_and_f_strings_are_left_out(tmp_path):
    """The annotation has an index, and the f-string a minus sign. Elsewhere both would be changed."""
    file = tmp_path / "file.py"
    file.write_text('def shown(x: tuple[1] = f"{1 - 2}") -> None: ...\n')

    assert mutants.mutants_of_file(tmp_path, file) == []


def test_a_seed_draws_the_same_mistakes_of_the_package():
    drawn = mutants.draw(ROOT, seed=3, count=20)

    assert drawn == mutants.draw(ROOT, seed=3, count=20)
    assert drawn != mutants.draw(ROOT, seed=4, count=20)
    assert len(set(drawn)) == 20


def test_without_a_record_the_command_says_how_to_make_one():
    """The record, coverage/contexts, says which tests run which lines; `python -m dev.mutate 1` needs it."""
    program = "import sys, dev.mutate as m, pathlib; m.RECORD = pathlib.Path('none'); sys.argv[1:] = ['1']; m.main()"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 1
    assert re.search("^coverage/contexts: .*--record", done.stderr)
