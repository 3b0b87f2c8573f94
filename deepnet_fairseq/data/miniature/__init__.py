"""Miniatures of the corpora: generated archives in the formats of the published ones, and a server for them.

All text is in the embedded artificial language (`data/language`). What a recipe downloads lies in a folder under
HOST/PATH of its address, with the checksums in SHA256SUMS, as on a mirror (`remote.download`).
"""

from .folder import build
from .server import serve

__all__ = ["build", "serve"]
