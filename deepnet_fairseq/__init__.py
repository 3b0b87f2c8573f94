"""deepnet_fairseq: very deep Transformers for translation and language models, as a fairseq plug-in (`--user-dir`).

Importing it does nothing, unless fairseq does: then it registers what fairseq-train is to know. From Python:
    register                                          for everything below that reads or trains with fairseq
    plugin.building.build, from_checkpoint            a model from flags, or from one of its checkpoints
    core.methods.Method, core.methods.register        a stabilisation method of one's own
    core.probes.Probe, tools.check.train_briefly      what training does, update by update, and a verdict on it
    tools.theory.growth                               the paper's bounds beside what one step changes
    tools.export.transformer, tools.averaging         a trained model as fairseq's own, the mean of several
What a user can mend is an errors.UserError, whose text is one line.
"""

from traceback import walk_stack

__version__ = "0.1.0"


def register() -> None:
    """fairseq gets what this package changes in it (plugin/patches.py), models, losses, optimisers and schedules.

    `--user-dir` calls it. Whoever imported the package before fairseq could calls it first. Idempotent.
    """
    from . import plugin

    plugin.silence()
    from .plugin import chunked_cross_entropy, models, patches  # noqa: F401
    from .plugin.optimisers import deepnet_adam, papers  # noqa: F401

    patches.apply()


# is it fairseq that imports?
_callers = (frame for frame, _ in walk_stack(None) if frame.f_code.co_name == "import_user_module")
if any(frame.f_globals["__name__"] == "fairseq.utils" for frame in _callers):
    register()
