"""Moses' tokenisation and cleaning: by sacremoses, or by the Perl originals of a checkout of mosesdecoder."""

from __future__ import annotations

from pathlib import Path

from .base import Chain, Moses
from .perl import Perl
from .port import Port


def moses(checkout: Path | None) -> Moses:
    """The Perl originals in `checkout`, else the Python port; UserError if `checkout` is none."""
    return Port() if checkout is None else Perl(checkout)


__all__ = ["Chain", "Moses", "Perl", "Port", "moses"]
