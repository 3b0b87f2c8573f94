"""The flat configs of the three models: what their flags are, what is filled in, what is refused."""

from .check import check
from .fields import flag
from .filled import complete, namespace
from .models import (
    CONFIGS,
    DeepLanguageModelConfig,
    DeepMaskedLanguageModelConfig,
    DeepTransformerConfig,
    config_of,
)

__all__ = [
    "CONFIGS",
    "DeepLanguageModelConfig",
    "DeepMaskedLanguageModelConfig",
    "DeepTransformerConfig",
    "check",
    "complete",
    "config_of",
    "flag",
    "namespace",
]
