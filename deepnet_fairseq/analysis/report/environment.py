"""What runs were trained with: each distinct commit, set of versions and hardware gets a letter."""

from __future__ import annotations

import json
from string import ascii_lowercase

from ..recorded_run import RecordedRun

NAMES = {"deepnet_fairseq": "deepnet_fairseq", "python": "Python", "torch": "PyTorch", "sacrebleu": "sacreBLEU"}


def environment_of(run: RecordedRun) -> dict:
    """Of environment.json: commit, modified, versions and hardware; not when or on how many GPUs it ran."""
    found = run.environment
    versions = found.get("versions")
    return {
        "commit": found.get("commit"),
        "modified": bool(found.get("modified")),
        "versions": versions if isinstance(versions, dict) else {},
        "hardware": found.get("hardware"),
    }


def described(environment: dict) -> str:
    """An environment in one line."""
    if not environment["commit"] and not environment["versions"] and not environment["hardware"]:
        return "environment not recorded"
    modified = " (modified)" if environment["modified"] else ""
    parts = [f"commit {environment['commit'] or 'not recorded'}{modified}"]
    parts += [f"{NAMES.get(name, name)} {version}" for name, version in environment["versions"].items()]
    return f"{', '.join(parts)}; {environment['hardware'] or 'hardware not recorded'}"


class Environments:
    """letters["a"], letters["b"], ...: in the order in which they were met."""

    def __init__(self) -> None:
        self.letters: dict[str, dict] = {}
        self._known: dict[str, str] = {}

    def letter(self, run: RecordedRun) -> str:
        """That of the run's environment: a new one if no run before had the same."""
        environment = environment_of(run)
        key = json.dumps(environment, sort_keys=True)
        if key not in self._known:
            self._known[key] = _letter(len(self._known))
            self.letters[self._known[key]] = environment
        return self._known[key]


def _letter(rank: int) -> str:
    """a to z, then aa, ab and so on."""
    rest, last = divmod(rank, len(ascii_lowercase))
    return (_letter(rest - 1) if rest else "") + ascii_lowercase[last]


def cost(run: RecordedRun, hours: float | None) -> tuple[float, str] | None:
    """Hours of wall time times GPUs, "GPU"; on a CPU those of wall time, "CPU"; None if either is not recorded."""
    gpus = run.environment.get("gpus")
    if hours is None or not isinstance(gpus, int):
        return None
    return (hours * gpus, "GPU") if gpus else (hours, "CPU")
