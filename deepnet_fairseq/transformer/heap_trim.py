"""Memory of the CPU that torch has freed and glibc keeps.

torch asks for aligned memory, for which glibc needs a hole larger than what it gives: the hole a tensor left does not
take the next one of its size. Where activations are recomputed, holes come to be most of the process.
"""

from __future__ import annotations

import ctypes
import sys

AT_MOST = 512 * 2**20  # bytes of holes; to return them costs the time to get their pages anew


class Heap:
    """The process's heap. `freed` is told of tensors that have gone, and returns their pages now and then."""

    def __init__(self) -> None:
        self.holes = 0
        self.trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None  # glibc's

    def freed(self, size: int) -> None:
        """`size` bytes of tensors have gone since the last call."""
        self.holes += size
        if self.holes > AT_MOST and self.trim is not None:
            self.trim(0)
            self.holes = 0


HEAP = Heap()
