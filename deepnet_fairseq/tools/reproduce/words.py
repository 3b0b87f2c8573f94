"""Flags of fairseq's programs as words of a command line, and the comparison of two command lines.

A word is one argument of a program, as "--lr" or "5e-4".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...study.experiment import Flags


def as_words(flags: Flags) -> list[str]:
    """Return flags as words of a command line.

    flags: {name without dashes: value}; the value of a switch is True.
    """
    words = []
    for name, value in flags.items():
        words.append(f"--{name}")
        if value is True:
            continue
        words.append(format_number(value) if isinstance(value, float) else str(value))
    return words


def format_number(value: float) -> str:
    """Format a number as papers print it: 0.0, 0.4, 5e-4; those below 0.01 with an exponent."""
    if value == 0 or abs(value) >= 0.01:
        return repr(value)
    mantissa, exponent = f"{value:e}".split("e")  # "5.000000e-04"
    digits = mantissa.rstrip("0").rstrip(".")
    return f"{digits}e{int(exponent)}"


def last_value(flag: str, words: Sequence[str]) -> str | None:
    """Return the last value of a flag, which is the one that argparse takes; None if the flag is not there."""
    value = None
    for before, word in zip(words, words[1:], strict=False):
        if before == flag:
            value = word
    return value


def whole_number(word: str | None) -> int:
    """Parse a flag's value as a whole number; 0 for None and "", and for text that is no finite number.

    fairseq-train itself refuses such text, so that nothing is trained with the 0.
    """
    try:
        return int(float(word or 0))
    except (ValueError, OverflowError):
        return 0


# Flags that do not change what a training computes, but its devices, its memory or an earlier end. --cuda-graphs
# changes its rounding alone. --update-freq is here because differing_flag compares the batches of an update instead.
WITHOUT_EFFECT = {
    "--distributed-world-size", "--update-freq", "--stop-stuck", "--cpu", "--checkpoint-activations",
    "--checkpoint-every", "--zero-sharding", "--cuda-graphs",
}  # fmt: skip
EQUAL_OPTIMIZERS = ("adam", "deepnet_adam")  # both give the same results


def differing_flag(before: Sequence[str], now: Sequence[str]) -> str | None:
    """Return the first flag by which two commands of fairseq-train are different trainings; None if they are the same.

    before, now: the words after fairseq-train. "data" is returned if their first words, the data, differ, and
    "--update-freq" if an update has more batches in one of them, on all processes together.
    """
    old_values = values_by_flag(before)
    new_values = values_by_flag(now)
    if batches_per_update(old_values) != batches_per_update(new_values):
        return "--update-freq"

    for flag in {**old_values, **new_values}:  # each once, the old ones first
        if flag in WITHOUT_EFFECT:
            continue
        old = old_values.get(flag)
        new = new_values.get(flag)
        if flag == "--optimizer" and old in EQUAL_OPTIMIZERS and new in EQUAL_OPTIMIZERS:
            continue
        if flag == "--user-dir" and old and new and Path(old).name == Path(new).name:
            continue  # a checkout may have moved
        if not equal_values(old, new):
            return flag
    return None


def batches_per_update(values: Mapping[str, str]) -> int:
    """Return how many batches of --max-tokens an update has, on all processes together.

    values: flag -> value, as values_by_flag returns them. A flag that is not given stands for 1: a training on the CPU
    has no --distributed-world-size.
    """
    processes = whole_number(values.get("--distributed-world-size") or "1")
    return processes * whole_number(values.get("--update-freq") or "1")


def values_by_flag(words: Sequence[str]) -> dict[str, str]:
    """Return flag -> its value in the words after fairseq-train; the key "data" has the first word.

    The value of a switch is "". If a flag occurs more than once, or has several values, the last one is taken.
    """
    values = {"data": words[0]}
    flag = None
    for word in words[1:]:
        if word.startswith("--"):
            flag = word
            values[flag] = ""
        elif flag is not None:
            values[flag] = word
    return values


def equal_values(one: str | None, other: str | None) -> bool:
    """Return whether two values of a flag are the same, as words or as numbers; None stands for a flag not given."""
    if one == other:
        return True
    if one is None or other is None:
        return False
    try:
        return float(one) == float(other)
    except ValueError:
        return False
