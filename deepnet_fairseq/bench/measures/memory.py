"""Peak memory of training, each candidate in a process of its own: a process's peak does not come down again."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from ..candidate import Candidate
from ..cell import FAILED, NO_MEMORY, NO_TIME, Cell
from ..settings import Settings, Shape

KILLED = -9


def measure_memory(candidate: Candidate, shape: Shape, settings: Settings, cell: Cell) -> None:
    """Fills the cell with what .alone measures there, or with how that process ended."""
    with tempfile.TemporaryDirectory(prefix="deepnet-bench-") as folder:
        path = Path(folder) / "result.json"
        order = {"candidate": asdict(candidate), "shape": asdict(shape), "settings": asdict(settings)}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "deepnet_fairseq.bench.measures.memory_process", str(path)],
                input=json.dumps(order),
                capture_output=True,
                text=True,
                timeout=settings.seconds,
            )
        except subprocess.TimeoutExpired:
            cell.end(NO_TIME, f"more than {settings.seconds:.0f} s")
            return
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            for name in ("state", "reason", "repeats", "values", "facts"):
                setattr(cell, name, found[name])
        elif done.returncode == KILLED:
            cell.end(NO_MEMORY, "killed by the system")
        else:
            cell.end(FAILED, (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])


def conditions(settings: Settings) -> list[tuple[dict, Settings]]:
    """Settings without and with activation checkpointing, each behind its condition."""
    return [({"checkpointing": on}, replace(settings, checkpoint_activations=on)) for on in (False, True)]
