"""Verification of checkpoints: whether they are whole, and whether two of them are equal bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

CLOCKS = {"TimeMeter", "StopwatchMeter"}  # fairseq's meters that measure time
HISTORY = "optimizer_history"  # in a checkpoint: an entry for each resume, with its number of updates
NOT_COMPARED = {  # entries that depend on the folder or the clock, and sums that fairseq never prints
    ".args",
    ".cfg",
    ".extra_state.previous_training_time",
    ".extra_state.metrics.default",
    ".extra_state.metrics.valid",
}


class Lost(Exception):
    """Error raised when a training has lost a checkpoint, or differs from the undisturbed one."""


def load(path: Path) -> dict:
    """Load a checkpoint; raise Lost if it cannot be read."""
    try:
        return torch.load(path, map_location="cpu")
    except Exception as error:
        reason = str(error).splitlines()[0][:100]
        raise Lost(f"{path.name} cannot be read ({reason})") from error


def updates(path: Path) -> int:
    """Return the number of updates in a checkpoint; raise Lost if it cannot be read."""
    return load(path)[HISTORY][-1]["num_updates"]


def check(folder: Path, at_least: int) -> int:
    """Return the number of updates in checkpoint_last.pt, 0 if there is none.

    Raises Lost if any checkpoint of the folder is damaged, or the last one holds fewer updates than `at_least`.
    """
    counts = {path.name: updates(path) for path in sorted(folder.glob("checkpoint*.pt"))}
    last = counts.get("checkpoint_last.pt", 0)
    if last < at_least:
        raise Lost(f"checkpoint_last.pt holds {last} updates where {at_least} were saved before")
    return last


def differences(actual: dict, expected: dict) -> Iterator[str]:
    """Yield a line for every place where two checkpoints differ bit for bit; times are left out.

    Each resume appends an entry to the optimiser's history; only the last entry, that of the saved state, is compared.
    """
    return _differences(_with_last_history(actual), _with_last_history(expected), where="")


def _with_last_history(state: dict) -> dict:
    """Return a checkpoint's content with the last entry of its history in place of all."""
    return state | {HISTORY: state[HISTORY][-1]}


def _differences(actual, expected, where: str) -> Iterator[str]:
    """Yield the differences of two entries; where: the entry's address, as ".model.decoder.fc1" or ".state[0]"."""
    if where in NOT_COMPARED or _is_clock(expected):
        return
    if type(actual) is not type(expected):
        yield f"{where}: {type(actual).__name__} instead of {type(expected).__name__}"
    elif isinstance(expected, dict):
        yield from _differences_of_dicts(actual, expected, where)
    elif isinstance(expected, list | tuple):
        yield from _differences_of_lists(actual, expected, where)
    elif torch.is_tensor(expected):
        if actual.dtype != expected.dtype or not torch.equal(_bits(actual), _bits(expected)):
            yield f"{where}: other numbers"
    elif actual != expected and not (_is_nan(actual) and _is_nan(expected)):
        yield f"{where}: {actual} instead of {expected}"


def _differences_of_dicts(actual: dict, expected: dict, where: str) -> Iterator[str]:
    """Yield the differences of two dicts: keys that only one has, and differences of the values of common keys."""
    for key in sorted(actual.keys() | expected.keys(), key=str):
        place = f"{where}.{key}"
        if key in actual and key in expected:
            yield from _differences(actual[key], expected[key], place)
        elif place not in NOT_COMPARED and key in expected:
            yield f"{place}: missing"
        elif place not in NOT_COMPARED:
            yield f"{place}: new"


def _differences_of_lists(actual: list | tuple, expected: list | tuple, where: str) -> Iterator[str]:
    """Yield the differences of two lists: their lengths, and differences of entries in the same place."""
    if len(actual) != len(expected):
        yield f"{where}: {len(actual)} instead of {len(expected)} entries"
    for number, (one, other) in enumerate(zip(actual, expected)):
        yield from _differences(one, other, f"{where}[{number}]")


def _is_nan(number) -> bool:
    return number != number  # true of NaN alone, and defined for values other than numbers


def _is_clock(entry) -> bool:
    """Return whether an entry is a meter of time; fairseq saves a meter as (priority, name, class, state)."""
    if not isinstance(entry, tuple) or len(entry) != 4:
        return False
    _, _, meter, _ = entry
    return meter in CLOCKS


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, so that NaN equals itself and 0.0 differs from -0.0."""
    return tensor.reshape(-1).view(torch.uint8)
