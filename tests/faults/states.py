"""Verification of checkpoints: whether they are whole, and whether two of them are equal bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

CLOCKS = {"TimeMeter", "StopwatchMeter"}
HISTORY = "optimizer_history"
ELSEWHERE = {  # entries that depend on the folder or the clock, and sums that fairseq never prints
    ".args", ".cfg", ".extra_state.previous_training_time",
    ".extra_state.metrics.default", ".extra_state.metrics.valid",
}  # fmt: skip


class Lost(Exception):
    """Error raised when a training has lost a checkpoint, or differs from the undisturbed one."""


def load(path: Path) -> dict:
    """Load a checkpoint; Lost if it cannot be read."""
    try:
        return torch.load(path, map_location="cpu")
    except Exception as error:
        raise Lost(f"{path.name} cannot be read ({str(error).splitlines()[0][:100]})") from error


def updates(path: Path) -> int:
    return load(path)[HISTORY][-1]["num_updates"]


def check(folder: Path, at_least: int) -> int:
    """Return the updates in checkpoint_last.pt;

    Lost if a checkpoint is damaged or the last one holds fewer than `at_least`.
    """
    counts = {path.name: updates(path) for path in sorted(folder.glob("checkpoint*.pt"))}
    last = counts.get("checkpoint_last.pt", 0)
    if last < at_least:
        raise Lost(f"checkpoint_last.pt holds {last} updates where {at_least} were saved before")
    return last


def differences(actual: dict, expected: dict) -> Iterator[str]:
    """Yield every place where two checkpoints differ bit for bit; times are left out.

    Each resume appends an entry to the optimiser's history; only the last entry, that of the saved state, is compared.
    """
    return _differences(*({**state, HISTORY: state[HISTORY][-1]} for state in (actual, expected)))


def _differences(actual, expected, where: str = "") -> Iterator[str]:
    if where in ELSEWHERE or _is_clock(expected):
        return
    if type(actual) is not type(expected):
        yield f"{where}: {type(actual).__name__} instead of {type(expected).__name__}"
    elif isinstance(expected, dict):
        for key in sorted(actual.keys() | expected.keys(), key=str):
            if key in actual and key in expected:
                yield from _differences(actual[key], expected[key], f"{where}.{key}")
            elif f"{where}.{key}" not in ELSEWHERE:
                yield f"{where}.{key}: {'missing' if key in expected else 'new'}"
    elif isinstance(expected, list | tuple):
        if len(actual) != len(expected):
            yield f"{where}: {len(actual)} instead of {len(expected)} entries"
        for place, pair in enumerate(zip(actual, expected)):
            yield from _differences(*pair, f"{where}[{place}]")
    elif torch.is_tensor(expected):
        if actual.dtype != expected.dtype or not torch.equal(_bits(actual), _bits(expected)):
            yield f"{where}: other numbers"
    elif actual != expected and not (actual != actual and expected != expected):
        yield f"{where}: {actual} instead of {expected}"


def _is_clock(entry) -> bool:
    """Return whether an entry (priority, name, class, state) is a meter that measures time."""
    return isinstance(entry, tuple) and len(entry) == 4 and entry[2] in CLOCKS


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, so that NaN equals itself and 0.0 differs from -0.0."""
    return tensor.reshape(-1).view(torch.uint8)
