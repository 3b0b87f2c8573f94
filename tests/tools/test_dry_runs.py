"""Tests that dry runs are those of the bash engine that `deepnet reproduce` replaced; golden/dry_runs.py has the cases.

Plans are compared as they are printed, commands by program, positional arguments and last value of each flag: they are
quoted and ordered otherwise, and flags that an earlier engine gave twice are given once (CHANGELOG.md).
"""

from __future__ import annotations

import re
import shlex

import pytest

from deepnet_fairseq.tools.reproduce.words import equal_values

from ..golden.dry_runs import GOLDEN, OUT, cases, golden, printed
from ..scripts.test_scripts import needs_venv

pytestmark = needs_venv

PROGRAMS = ("fairseq-train", "fairseq-generate", "deepnet", "torchrun", "srun")
QUICK = (
    "admin_iwslt14-smoke", "admin_wmt14_en_fr-torchrun", "figure3-torchrun", "figure7-smoke", "table3_m2m-smoke",
    "normformer_lm-smoke", "inverted_gain-variables18", "later_methods-variables17",
)  # fmt: skip
CASES = [case for case in cases() if (GOLDEN / f"{case.name}.xz").exists()]
SLOW = [pytest.param(case, marks=pytest.mark.slow, id=case.name) for case in CASES if case.name not in QUICK]
ALL = [pytest.param(case, id=case.name) for case in CASES if case.name in QUICK] + SLOW


def output(text: str) -> list[str]:
    return text.split("\n-- errors\n")[0].splitlines()


def planned(text: str) -> list[list[str]]:
    """Return the rows of a plan without their names, which are cut to what tells the rows of one plan apart."""
    return sorted(line.split()[1:] for line in output(text) if re.match(r"\S+-seed\d+ ", line))


def status(text: str) -> int:
    return int(text.split("-- status ")[1])


def commands(text: str) -> dict[tuple[str, str], tuple[list[str], dict[str, list[str]]]]:
    """Return the commands of a dry run, by program and what it is for: positional arguments, values by flag."""
    found = {}
    for line in output(text.replace("OUT", OUT)):
        words = [word for word in shlex.split(line) if word != "!"]  # marks a row that does not fit
        words = [word.replace("scripts/inverted_gain", "examples/inverted_gain") for word in words]  # it has moved
        if not words or words[0] not in PROGRAMS:
            continue
        arguments, flags = [], {}
        for number, word in enumerate(words):
            if word.startswith("--"):
                flags[word] = []
                for value in words[number + 1 :]:
                    if value.startswith("--"):
                        break
                    flags[word].append(value)
            elif not flags:
                arguments.append(word)
        subject = (flags.get("--save-dir") or flags.get("--path") or [""])[0] + "".join(flags.get("--gen-subset", []))
        found[words[0] + " ".join(arguments[1:3]), subject] = arguments, flags
    return found


def same(old: dict[str, list[str]], new: dict[str, list[str]]) -> bool:
    if old.keys() != new.keys():
        return False
    for flag, values in old.items():
        if len(values) != len(new[flag]):
            return False
        if not all(equal_values(one, other) for one, other in zip(values, new[flag], strict=True)):
            return False
    return True


@pytest.mark.parametrize("case", ALL)
def test_dry_runs_are_those_of_before(case):
    """A refusal stays one, a plan its text, and commands are the same, but for the text of a job of SLURM."""
    before, now = golden(case), printed(case)
    if case.script in ("later_methods", "inverted_gain"):  # the name is NormFormer's text's, too
        before = before.replace("OUT/data/text", "OUT/data/plain")
    if "LAUNCH=slurm: trains here" in before:  # bash could not submit the rows of figures
        assert status(now) == 0 and "sbatch <<" in now
        return
    assert (status(before) == 0) == (status(now) == 0), now
    if status(before):
        return
    if case.flags[0] == "--dry-run" and case.script == "normformer_lm":  # three experiments have three plans
        assert planned(now) == planned(before) and planned(now)
        return
    if case.flags[0] == "--dry-run":
        assert sorted(output(now)) == sorted(output(before))  # Figure 3 has its rows in another order
        return

    assert now.count("sbatch <<") >= before.count("sbatch <<")  # with and without warm-up are two rows
    old, new = commands(before), commands(now)
    if "sbatch <<" not in before:
        assert old.keys() == new.keys()
    for key, (arguments, flags) in old.items():
        assert new[key][0] == arguments
        assert same(flags, new[key][1]), (key, flags, new[key][1])
