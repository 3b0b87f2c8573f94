"""Probes measure, in some updates, why a deep model trains or does not; importing a file with probes registers them."""

from . import branch_dependency, gradient_norm, half_precision, learned_scale, ln_input, model_update  # noqa: F401
from .base import PROBES, Probe, get_probes

__all__ = ["PROBES", "Probe", "get_probes"]
