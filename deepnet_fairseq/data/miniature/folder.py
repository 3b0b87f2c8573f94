"""A mirror of what a recipe downloads, filled with a miniature."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from ...atomic_output import whole
from ...errors import UserError
from ..recipes import RECIPES, Options
from . import iwslt14, m2m102, opus100, wmt
from .archives import lines

Archive = Callable[[str], bytes]  # address -> content
MINIATURES: dict[str, Archive] = {
    "iwslt14_de_en": iwslt14.archive,
    "wmt17_en_de": wmt.archive,
    "wmt14_en_de": wmt.archive,
    "opus100": opus100.archive,
    "m2m102": m2m102.archive,
}


def build(recipe: str, folder: Path, pairs: tuple[str, ...] | None = None) -> None:
    """FOLDER/HOST/PATH for every address of the recipe's files, and FOLDER/SHA256SUMS; the same bytes each time.

    pairs: as in `deepnet prepare --pairs`. UserError for a recipe that downloads nothing, or an
    unknown one, and for pairs that it does not have.
    """
    if recipe not in MINIATURES:
        raise UserError(f"serve-miniature {recipe}: no such miniature; there are {', '.join(MINIATURES)}")
    sums = {}
    options = Options(dest=folder, downloads=folder, miniature=True, pairs=pairs)
    RECIPES[recipe].check(options)
    for file in RECIPES[recipe].files(options):
        content = MINIATURES[recipe](file.urls[0])
        for url in file.urls:
            parts = urlsplit(url)
            path = f"{parts.netloc}{parts.path}"
            _write(folder / path, content)
            sums[path] = hashlib.sha256(content).hexdigest()
    _write(folder / "SHA256SUMS", lines([f"{sums[path]}  {path}" for path in sorted(sums)]).encode())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as part:
        part.write_bytes(content)
