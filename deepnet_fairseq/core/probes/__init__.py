"""Probes: hooks that measure why a deep model trains or does not. Each probe is a file here and registers itself."""

from . import branch_dependency, gradient_norm, half_precision, learned_scale, ln_input, model_update  # noqa: F401
from .base import PROBES, Probe, get_probes

__all__ = ["PROBES", "Probe", "get_probes"]
