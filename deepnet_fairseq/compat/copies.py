"""checkpoint_last.pt is whole at every moment.

fairseq writes one file of a save in one move, and copies it over the others, checkpoint_last.pt among them: killed
while it copies, a run has lost the file it would resume from.
"""

from __future__ import annotations

import functools
import os

from fairseq.file_io import PathManager


def replace_in_one_move() -> None:
    """A copy is made beside its destination and then takes its name."""
    original = PathManager.copy
    if not hasattr(original, "__wrapped__"):
        PathManager.copy = staticmethod(_in_one_move(original))


def _in_one_move(copy):
    @functools.wraps(copy)
    def copy_in_one_move(src_path: str, dst_path: str, overwrite: bool = False):
        part = f"{dst_path}.part"
        try:
            done = copy(src_path, part, overwrite=True)
            if done:
                os.replace(part, dst_path)
            return done and dst_path
        finally:
            if os.path.exists(part):
                os.unlink(part)

    return copy_in_one_move
