"""deepnet_fairseq: very deep Transformers for translation and language models, as a fairseq plug-in (`--user-dir`).

Importing it does nothing. `fairseq-train --user-dir deepnet_fairseq` calls `register` through models/registration.py;
whoever uses fairseq from Python, or has a `--user-dir` of their own, calls it first. From Python:
    register                                          for everything below that reads or trains with fairseq
    plugin.building.build, from_checkpoint            a model from flags, or from one of its checkpoints
    core.methods.Method, core.methods.register        a stabilisation method of one's own
    core.probes.Probe, tools.check.train_briefly      what training does, update by update, and a verdict on it
    translate                                         lines of text, by a checkpoint or an exported folder
    tools.export.transformer, tools.averaging         a trained model as fairseq's own, the mean of several
Mistakes that a user can mend raise errors.UserError, whose text is one line.
"""

__version__ = "0.1.0"


def register() -> None:
    """Register models, losses, optimisers and schedules with fairseq, and apply plugin/patches.py; idempotent."""
    from . import plugin

    plugin.silence()
    from .plugin import patches  # which imports all that registers itself

    patches.apply()


def translate(model, lines, **options) -> list:
    """Translate lines of text by a checkpoint or by a folder of `deepnet export`.

    model: path of the checkpoint or folder; lines: texts; options: as tools.translation.translate takes them. Return a
    text for each line; with nbest=N a list of N pairs (text, score) for each, the best first.
    """
    from .tools import translation

    return translation.translate(model, lines, **options)
