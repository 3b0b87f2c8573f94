"""Planned against measured peaks: `deepnet plan --check`.

Each training runs in a process of its own, for a process's peak does not come down again. On a GPU the peak is what
torch's allocator handed out at most. On a CPU it is the resident memory, less what is resident after an update of a
1L-1L model (imports, first uses). glibc keeps freed blocks that are larger than 128 KiB, once it has seen one freed,
and cuts others out of them: the default settings hold up to three times the tensors' own memory. So the process runs
with MALLOC_MMAP_THRESHOLD_=131072, which returns such blocks; `--check` shows both numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import torch

from ..errors import UserError
from .flags import parse
from .memory import memory

VARIABLE, THRESHOLD = "MALLOC_MMAP_THRESHOLD_", "131072"
SIZES = (
    ("deepnet_transformer_tiny_18_18", 4000, 4096),
    ("deepnet_transformer_tiny_100_100", 4000, 2048),
    ("deepnet_transformer_6_6", 10_000, 2048),
    ("deepnet_transformer_18_18", 10_000, 2048),
)
VARIANTS = ((), ("--checkpoint-activations",), ("--checkpoint-every", "4"))


@dataclass(frozen=True)
class Checked:
    """Bytes: planned, measured with blocks returned, and as glibc does by itself (None where nobody asked)."""

    flags: list[str]
    planned: int
    measured: int
    by_default: int | None

    @property
    def ratio(self) -> float:
        """Planned peak by measured peak; 1 is a perfect plan."""
        return self.planned / self.measured


def cases() -> list[list[str]]:
    """Flags of `deepnet plan` for the sizes that are checked, with and without recomputation, on this machine."""
    place = [] if torch.cuda.is_available() else ["--cpu"]
    return [
        ["--arch", arch, "--vocab", str(vocab), "--max-tokens", str(tokens), "--share-all-embeddings", *variant, *place]
        for arch, vocab, tokens in SIZES
        for variant in VARIANTS
    ]


def check(flags: list[str], default_too: bool = False) -> Checked:
    """The plan for `flags` beside the peak of three updates."""
    planned = memory(parse(flags)).peak
    measured = measure(flags, {VARIABLE: THRESHOLD})
    by_default = measure(flags, {}) if default_too else None
    return Checked(flags, planned, measured, by_default)


def measure(flags: list[str], environment: dict[str, str]) -> int:
    """Peak bytes of a training with these flags of `deepnet plan`, in a fresh process with `environment` besides.

    UserError with its last line where that training fails.
    """
    surroundings = {key: value for key, value in os.environ.items() if key != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-m", "deepnet_fairseq.plan.peak", *flags],
        env=surroundings | environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UserError(f"--check: the training of {' '.join(flags)} failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])["peak"]
