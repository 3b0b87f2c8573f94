"""deepnet_fairseq: very deep Transformers for translation and language models, as a fairseq plug-in (`--user-dir`).

Importing it registers models, losses, optimisers and schedules with fairseq, and patches it where it must. From Python:
    building.build, building.from_checkpoint          a model from flags, or from one of its checkpoints
    methods.Method, methods.register                  a stabilisation method of one's own
    probes.Probe, stability.short_training            what training does, update by update, and a verdict on it
    theory.growth                                     the paper's bounds beside what one step changes
    export.transformer, checkpoints.averaging         a trained model as fairseq's own, the mean of several
What a user can mend is an errors.UserError, whose text is one line.
"""

__version__ = "0.1.0"

from . import plugin

plugin.apply()

from .plugin import chunked_cross_entropy as _criterion  # noqa: E402, F401
from .plugin import models as _registration  # noqa: E402, F401
from .plugin.optimisers import deepnet_adam as _deepnet_adam  # noqa: E402, F401
from .plugin.optimisers import papers as _papers  # noqa: E402, F401
