"""Flags of fairseq's programs as words of a command line, and the comparison of two command lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...study.experiment import Flags


def words_of(flags: Flags) -> list[str]:
    """Return flags as words of a command line."""
    words = []
    for name, value in flags.items():
        words.append(f"--{name}")
        if value is True:
            continue
        words.append(number(value) if isinstance(value, float) else str(value))
    return words


def number(value: float) -> str:
    """Format a number as papers print it: 0.0, 0.4, 5e-4."""
    if value == 0 or abs(value) >= 0.01:
        return repr(value)
    mantissa, exponent = f"{value:e}".split("e")
    digits = mantissa.rstrip("0").rstrip(".")
    return f"{digits}e{int(exponent)}"


def last_of(flag: str, words: Sequence[str]) -> str | None:
    """Return the last value of a flag, which is the one that counts; None if it is not there."""
    value = None
    for before, word in zip(words, words[1:], strict=False):
        if before == flag:
            value = word
    return value


def whole_number(word: str | None) -> int:
    """Return the number that a flag's value names, 0 for none and for a value that fairseq-train will refuse."""
    try:
        return int(float(word or 0))
    except (ValueError, OverflowError):
        return 0


# flags that do not change what a training computes: devices, the split of a batch, memory, an earlier end
WITHOUT_EFFECT = {
    "--distributed-world-size", "--update-freq", "--stop-stuck", "--cpu", "--checkpoint-activations",
    "--checkpoint-every", "--zero-sharding",
}  # fmt: skip
ADAM = ("adam", "deepnet_adam")  # the same numbers


def differing_flag(before: Sequence[str], now: Sequence[str]) -> str | None:
    """Return the first flag in which two commands of fairseq-train are of different trainings; None if in none."""
    old = by_flag(before)
    new = by_flag(now)
    if batches(old) != batches(new):
        return "--update-freq"
    for flag in {**old, **new}:
        if flag in WITHOUT_EFFECT:
            continue
        one, other = old.get(flag), new.get(flag)
        if flag == "--optimizer" and one in ADAM and other in ADAM:
            continue
        if flag == "--user-dir" and one and other and Path(one).name == Path(other).name:
            continue  # a checkout may have moved
        if not equal(one, other):
            return flag
    return None


def batches(values: Mapping[str, str | None]) -> int:
    """Return how many batches of --max-tokens an update has, over all processes."""
    processes = whole_number(values.get("--distributed-world-size") or "1")
    return processes * whole_number(values.get("--update-freq") or "1")


def by_flag(words: Sequence[str]) -> dict[str, str | None]:
    """Return the last value of each flag in the words of a command, "" for a switch; "data" is the first word."""
    values: dict[str, str | None] = {"data": words[0]}
    flag = None
    for word in words[1:]:
        if word.startswith("--"):
            flag = word
            values[flag] = ""
        elif flag is not None:
            values[flag] = word
    return values


def equal(one: str | None, other: str | None) -> bool:
    """Return whether two values of a flag are the same, as words or as numbers."""
    if one == other or one is None or other is None:
        return one == other
    try:
        return float(one) == float(other)
    except ValueError:
        return False
