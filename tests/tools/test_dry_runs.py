"""Tests that dry runs are those of the bash engine that `deepnet reproduce` replaced; golden/dry_runs.py has the cases.

Plans are compared as they are printed, commands by program, positional arguments and last value of each flag: they are
quoted and ordered otherwise, and flags that an earlier engine gave twice are given once (CHANGELOG.md).
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

import pytest

from deepnet_fairseq.tools.reproduce.words import equal_values

from ..golden.dry_runs import GOLDEN, OUT, cases, golden, printed
from ..support.experiments import needs_venv

pytestmark = needs_venv

PROGRAMS = ("fairseq-train", "fairseq-generate", "deepnet", "torchrun", "srun")
QUICK = (  # those that the default suite runs
    "admin_iwslt14-smoke", "figure3-torchrun", "table3_m2m-smoke", "later_methods-variables17",
)  # fmt: skip
CASES = [case for case in cases() if (GOLDEN / f"{case.name}.xz").exists()]
ALL = [pytest.param(case, id=case.name) for case in CASES if case.name in QUICK]
ALL += [pytest.param(case, id=case.name, marks=pytest.mark.slow) for case in CASES if case.name not in QUICK]


def output(text: str) -> list[str]:
    """Return the lines of standard output."""
    return text.split("\n-- errors\n")[0].splitlines()


def printed_status(text: str) -> int:
    return int(text.split("-- status ")[1])


def rows_of_plan(text: str) -> list[list[str]]:
    """Return the rows of a plan without their names, which are cut to what tells the rows of one plan apart."""
    rows = [line.split() for line in output(text) if re.match(r"\S+-seed\d+ ", line)]
    return sorted(row[1:] for row in rows)


class Command(NamedTuple):
    """Command of a dry run: positional arguments, the program first, and the last values of each flag."""

    arguments: list[str]
    flags: dict[str, list[str]]

    @property
    def subject(self) -> tuple[str, str]:
        """What tells the command from the others: program with its subcommands, and folder or file with its split."""
        place = self.flags.get("--save-dir") or self.flags.get("--path") or [""]
        split = "".join(self.flags.get("--gen-subset", []))
        return self.arguments[0] + " ".join(self.arguments[1:3]), place[0] + split


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


def commands(text: str) -> dict[tuple[str, str], Command]:
    """Return the commands of a dry run by their subjects."""
    found = {}
    for line in output(text.replace("OUT", OUT)):
        words = [word for word in shlex.split(line) if word != "!"]  # marks a row that does not fit
        words = [word.replace("scripts/inverted_gain", "examples/inverted_gain") for word in words]  # it has moved
        if words and words[0] in PROGRAMS:
            command = parse_command(words)
            found[command.subject] = command
    return found


def same_flags(old: dict[str, list[str]], new: dict[str, list[str]]) -> bool:
    """Return whether flags are the same and their values equal, numbers by value."""
    if old.keys() != new.keys():
        return False
    for flag, values in old.items():
        if len(values) != len(new[flag]):
            return False
        for one, other in zip(values, new[flag], strict=True):
            if not equal_values(one, other):
                return False
    return True


def assert_same_plan(case, before: str, now: str) -> None:
    """Check that a plan is printed as before; Figure 3 has its rows in another order."""
    if case.script == "normformer_lm":  # three experiments have three plans
        assert rows_of_plan(now)
        assert rows_of_plan(now) == rows_of_plan(before)
    else:
        assert sorted(output(now)) == sorted(output(before))


def assert_same_commands(before: str, now: str) -> None:
    """Check that every command of before is there, with equal arguments and flags."""
    assert now.count("sbatch <<") >= before.count("sbatch <<")  # with and without warm-up are two rows
    old = commands(before)
    new = commands(now)
    if "sbatch <<" not in before:
        assert new.keys() == old.keys()

    for subject, (arguments, flags) in old.items():
        assert new[subject].arguments == arguments
        assert same_flags(flags, new[subject].flags), (subject, flags, new[subject].flags)


@pytest.mark.parametrize("case", ALL)
def test_a_dry_run_is_that_of_the_bash_engine(case):
    """A refusal stays one, a plan its text, and commands are the same, but for the text of a job of SLURM."""
    before = golden(case)
    if case.script in ("later_methods", "inverted_gain"):  # the name is NormFormer's text's, too
        before = before.replace("OUT/data/text", "OUT/data/plain")

    now = printed(case)

    if "LAUNCH=slurm: trains here" in before:  # bash could not submit the rows of figures
        assert printed_status(now) == 0
        assert "sbatch <<" in now
    elif printed_status(before) != 0:
        assert printed_status(now) != 0, now
    else:
        assert printed_status(now) == 0, now
        if case.flags[0] == "--dry-run":
            assert_same_plan(case, before, now)
        else:
            assert_same_commands(before, now)
