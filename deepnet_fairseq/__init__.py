"""deepnet_fairseq: very deep Transformers for translation and language models, as a fairseq plug-in (`--user-dir`)."""

__version__ = "0.1.0"

from . import compat

compat.apply()

from . import models as _registration  # noqa: E402, F401
from .criterions import chunked as _criterion  # noqa: E402, F401
from .optim import deepnet_adam as _deepnet_adam  # noqa: E402, F401
from .optim import radam as _radam  # noqa: E402, F401
from .optim import t_fixup_schedule as _schedule  # noqa: E402, F401
