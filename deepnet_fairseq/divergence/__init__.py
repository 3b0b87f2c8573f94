"""A training whose numbers end: stopped with a report and a status of its own, or set back and slowed down.

watch.py notices, search.py finds where, report.py writes, advice.py says what to try, rollback.py sets back;
training.py puts them around fairseq's training. docs/divergence.md.
"""

from .event import STATUS, Diverged

__all__ = ["STATUS", "Diverged", "install"]


def install() -> None:
    """Patches fairseq's Trainer and training loop; may be called again."""
    from . import training

    training.install()
