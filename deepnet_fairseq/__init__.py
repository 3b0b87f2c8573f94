"""deepnet_fairseq: very deep Transformers for translation and language models, as a fairseq plug-in (`--user-dir`).

Importing it does nothing, unless fairseq does, or has found it imported: then it registers what fairseq-train is to
know. From Python:
    register                                          for everything below that reads or trains with fairseq
    plugin.building.build, from_checkpoint            a model from flags, or from one of its checkpoints
    core.methods.Method, core.methods.register        a stabilisation method of one's own
    core.probes.Probe, tools.check.train_briefly      what training does, update by update, and a verdict on it
    tools.export.transformer, tools.averaging         a trained model as fairseq's own, the mean of several
What a user can mend is an errors.UserError, whose text is one line.
"""

import os
import sys
from types import FrameType

__version__ = "0.1.0"


def register() -> None:
    """fairseq gets what this package changes in it (plugin/patches.py), models, losses, optimisers and schedules.

    `--user-dir` calls it. Whoever uses fairseq from Python without that calls it first. Idempotent.
    """
    from . import plugin

    plugin.silence()
    from .plugin import chunked_cross_entropy, models, patches  # noqa: F401
    from .plugin.optimisers import deepnet_adam, papers  # noqa: F401

    patches.apply()


def _fairseq_asks() -> bool:
    """Is it the import of --user-dir that came here?"""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) == ("fairseq.utils", "import_user_module"):
            return True
        frame = frame.f_back
    return False


class _Folders(list):
    """__path__; fairseq looks whether --user-dir is in it before it passes over a package that is imported already."""

    def __contains__(self, folder: object) -> bool:
        found = isinstance(folder, str) and os.path.realpath(folder) in map(os.path.realpath, self)
        if found and _fairseq_asks():
            register()
        return found


__path__ = _Folders(__path__)
if _fairseq_asks():
    register()
