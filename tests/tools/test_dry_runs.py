"""Tests that dry runs are those of the bash engine that `deepnet reproduce` replaced; golden/dry_runs.py has the cases.

Plans are compared as they are printed. Commands are compared by program, positional arguments and last value of each
flag, because the engines quote and order them in different ways, and flags that the earlier one gave twice are given
once (CHANGELOG.md).

A printed text here is what golden.dry_runs.printed returns: standard output, then errors, then the exit status.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

import pytest

from deepnet_fairseq.tools.reproduce.words import equal_values

from ..golden.dry_runs import OUT, PLAN, Case, cases, file_of, golden, printed
from ..support.experiments import needs_venv

pytestmark = needs_venv

PROGRAMS = ("fairseq-train", "fairseq-generate", "deepnet", "torchrun", "srun")  # with which a command begins
SLURM_JOB = "<<'JOB'"  # how a dry run begins a job that is submitted
QUICK = (  # cases that the default suite runs
    "admin_iwslt14-smoke", "figure3-torchrun", "table3_m2m-smoke", "later_methods-variables17",
)  # fmt: skip
# cases whose files `python -m tests.golden.dry_runs` has yet to write are left out
CASES = [case for case in cases() if file_of(case).exists()]
PARAMETERS = []
for one_case in CASES:
    marks = () if one_case.name in QUICK else pytest.mark.slow
    PARAMETERS.append(pytest.param(one_case, id=one_case.name, marks=marks))


def output(text: str) -> list[str]:
    """Return the lines of standard output in a printed text."""
    return text.split("\n-- errors\n")[0].splitlines()


def exit_status(text: str) -> int:
    """Return the exit status in a printed text."""
    return int(text.split("-- status ")[1])


def rows_of_plan(text: str) -> list[list[str]]:
    """Return the rows of a plan without their names, which are cut to what tells the rows of one plan apart.

    A row's line begins with NAME-seedN.
    """
    rows = [line.split() for line in output(text) if re.match(r"\S+-seed\d+ ", line)]
    return sorted(row[1:] for row in rows)


class Subject(NamedTuple):
    """What tells a command of a dry run from the others."""

    program: str  # with its subcommands
    place: str  # the folder or file that it writes or reads, with the split of the data that it translates


class Command(NamedTuple):
    """Command of a dry run: positional arguments, the program first, and the last values of each flag."""

    arguments: list[str]
    flags: dict[str, list[str]]

    @property
    def subject(self) -> Subject:
        program = " ".join(self.arguments[:3])
        place = self.flags.get("--save-dir") or self.flags.get("--path") or [""]
        split = self.flags.get("--gen-subset", [""])
        return Subject(program, place[0] + split[0])


def parse_command(words: list[str]) -> Command:
    """Split words into arguments, which stand before the first flag, and flags with the words behind them."""
    arguments: list[str] = []
    flags: dict[str, list[str]] = {}
    last_flag = None
    for word in words:
        if word.startswith("--"):
            last_flag = word
            flags[word] = []  # the last occurrence of a flag counts
        elif last_flag is not None:
            flags[last_flag].append(word)
        else:
            arguments.append(word)
    return Command(arguments, flags)


def commands(text: str) -> dict[Subject, Command]:
    """Return the commands that a dry run prints, by their subjects."""
    found = {}
    for line in output(text.replace("OUT", OUT)):
        line = line.replace("scripts/inverted_gain", "examples/inverted_gain")  # the folder has moved
        words = [word for word in shlex.split(line) if word != "!"]  # "!" marks a row that does not fit
        if ">" in words:  # where the output goes, which bash did not print
            words = words[: words.index(">")]
        if words and words[0] in PROGRAMS:
            command = parse_command(words)
            found[command.subject] = command
    return found


def same_flags(old: dict[str, list[str]], new: dict[str, list[str]]) -> bool:
    """Return whether flags are the same and their values equal, numbers by value."""
    if old.keys() != new.keys():
        return False
    for flag, old_values in old.items():
        new_values = new[flag]
        if len(old_values) != len(new_values):
            return False
        for old_value, new_value in zip(old_values, new_values, strict=True):
            if not equal_values(old_value, new_value):
                return False
    return True


def without_notes(lines: list[str]) -> list[str]:
    """Return the lines of a plan, sorted, but for those that explain a mark; their words have changed."""
    return sorted(line for line in lines if not line.startswith(("* ", "! ")))


def assert_same_plan(case: Case, before: str, now: str) -> None:
    """Check that a plan is printed as before, its rows in any order: Figure 3 now has another order."""
    if case.script == "normformer_lm":  # three experiments, each with a plan; bash had one plan for all
        assert rows_of_plan(now)
        assert rows_of_plan(now) == rows_of_plan(before)
    else:
        assert without_notes(output(now)) == without_notes(output(before))


def assert_same_commands(before: str, now: str) -> None:
    """Check that every command of `before` is there, with equal arguments and flags."""
    # trainings with and without warm-up, once in one job, are two rows now, and so two jobs
    assert now.count(SLURM_JOB) >= before.count(SLURM_JOB)
    old = commands(before)
    new = commands(now)
    if SLURM_JOB not in before:
        assert new.keys() == old.keys()

    for subject, command in old.items():
        new_command = new[subject]
        assert new_command.arguments == command.arguments
        assert same_flags(command.flags, new_command.flags), (subject, command.flags, new_command.flags)


@pytest.mark.parametrize("case", PARAMETERS)
def test_a_dry_run_is_that_of_the_bash_engine(case):
    """A refusal stays a refusal, a plan keeps its text, and commands are the same, but for the text of a SLURM job."""
    before = golden(case)
    if case.script in ("later_methods", "inverted_gain"):
        # their text lies in another folder, because NormFormer's text has that name
        before = before.replace("OUT/data/text", "OUT/data/plain")
    bash_could_not_submit = "LAUNCH=slurm: trains here" in before  # the rows of figures
    was_refused = exit_status(before) != 0

    now = printed(case)

    if bash_could_not_submit:
        assert exit_status(now) == 0
        assert SLURM_JOB in now
    elif was_refused:
        assert exit_status(now) != 0, now
    elif case.flags[0] == PLAN:
        assert exit_status(now) == 0, now
        assert_same_plan(case, before, now)
    else:
        assert exit_status(now) == 0, now
        assert_same_commands(before, now)


def test_every_quick_case_is_a_case():
    """A case that was renamed would leave the default suite."""
    assert set(QUICK) <= {case.name for case in CASES}
