"""Generate miniatures of the corpora: small archives in the formats of the published ones, in the place of downloads.

The archives have the names and the files of the published ones, but all text is in the embedded artificial languages
(data/language). A miniature has the same bytes each time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ...files import whole
from ..download import RemoteFile
from . import bilingual, multilingual

# pattern of addresses -> function that returns the bytes of the archive; its arguments are the groups of the pattern
ARCHIVES = {
    r"/iwslt14/de-en\.tgz$": bilingual.iwslt14,
    r"statmt\.org/(wmt\d\d)/(?:translation-task/)?test(?:-filtered)?\.tgz$": multilingual.wmt,
    r"/ted_talks\.tar\.gz$": multilingual.ted,
    r"statmt\.org/.*/([^/]+\.(?:tgz|tar))$": bilingual.wmt,
    r"/opus-100-corpus-(\w+-\w+)-v1\.0\.tar\.gz$": multilingual.opus100,
    r"/OPUS-(\w+)/[^/]+/moses/(\w+-\w+)\.txt\.zip$": multilingual.opus,
    r"/flores101_dataset\.tar\.gz$": multilingual.flores,
    r"/opus-100-corpus-zeroshot-v1\.0\.tar\.gz$": multilingual.zero_shot,
}


def archive(url: str) -> bytes:
    """Return the bytes of the miniature of the archive that is published at an address.

    The first pattern of ARCHIVES that fits the address decides; StopIteration is raised if none does.
    """
    pattern = next(pattern for pattern in ARCHIVES if re.search(pattern, url))
    make = ARCHIVES[pattern]
    return make(*re.search(pattern, url).groups())


def write(files: Iterable[RemoteFile], folder: Path) -> dict[str, Path]:
    """Write miniatures of published files into `folder`, unless they exist; return name -> path.

    This is called in the place of download.fetch_all, which downloads the published files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = list(files)
    paths = {file.name: folder / file.name for file in files}
    for file in files:
        path = paths[file.name]
        if not path.exists():
            with whole(path) as part:  # a temporary name until it is written
                part.write_bytes(archive(file.urls[0]))
    return paths
