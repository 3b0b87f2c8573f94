"""Measures what a simulation needs, on this machine's CPU: `deepnet scale --measure FILE`.

Times of computing are processor time of one thread, medians of several turns: other programs' share of the machine is
left out, what they do to its caches is not. A file is timed by the wall clock.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ...bench.roofline import matmul_rate
from ...bench.settings import Settings
from ...checkpoints.atomic import save
from ...environment import environment
from .measured import Measured
from .time_layers import LENGTH, TOKENS, layer_times
from .time_loading import MAX_TOKENS, index_cost, loader_rate
from .time_update import optimiser_seconds

WIDTHS = ("tiny", "base")
TURNS = 15
SAVED, TENSORS = 256 * 2**20, 1000  # bytes of a checkpoint, and tensors in it


def measure(folder: Path, turns: int = TURNS, saved: int = SAVED) -> Measured:
    """All of it, in about a minute; folder: on the disk whose checkpoints are timed."""
    with one_thread(), tempfile.TemporaryDirectory(dir=folder, prefix="deepnet-scale-") as name:
        place = Path(name)
        write, read = disk_rates(place / "checkpoint.pt", saved)
        return Measured(
            matmul=matmul_rate(Settings(clock="process")),
            widths=tuple(layer_times(name, turns) for name in WIDTHS),
            adam=optimiser_seconds(turns),
            loader=loader_rate(place),
            index_seconds=(index := index_cost(place))[0],
            index_bytes=index[1],
            write=write,
            read=read,
            environment=environment(0),
            settings={"turns": turns, "tokens": TOKENS, "length": LENGTH, "saved": saved, "loader tokens": MAX_TOKENS},
        )


def disk_rates(path: Path, size: int) -> tuple[float, float]:
    """Bytes/s to save a checkpoint and have it on the disk, and to load it from the page cache; wall time."""
    content = {f"weight{number}": torch.randn(size // 4 // TENSORS) for number in range(TENSORS)}
    start = time.perf_counter()
    save(content, path)
    written = time.perf_counter()
    torch.load(path, weights_only=True)
    return path.stat().st_size / (written - start), path.stat().st_size / (time.perf_counter() - written)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes on one thread within this block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
