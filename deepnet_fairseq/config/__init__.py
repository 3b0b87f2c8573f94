"""The flat configs of the three models: what their flags are, what is filled in, what is refused."""

from .check import check, complete, namespace
from .fields import CONFIGS, config_of, flag

__all__ = ["CONFIGS", "check", "complete", "config_of", "flag", "namespace"]
