"""fairseq writes one file of a save and copies it over the others, checkpoint_last.pt among them.

Killed while it copies, a run has lost the file it would resume from: a copy takes its name when it is whole.
"""

from __future__ import annotations

from fairseq.file_io import PathManager

from ...checkpoints import atomic, background
from ..wrapping import wrap


def replace_in_one_move() -> None:
    """Wraps PathManager.copy, for files of this machine; others are their file system's."""
    wrap(PathManager, "copy", _copy)


def _copy(original, src_path: str, dst_path: str, overwrite: bool = False):
    if not PathManager.supports_rename(dst_path):
        return original(src_path, dst_path, overwrite=overwrite)
    background.do(lambda: atomic.copy(src_path, dst_path))
    return dst_path
