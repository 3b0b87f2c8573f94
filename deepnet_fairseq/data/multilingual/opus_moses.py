"""A pair's archives in the corpora of OPUS, in the Moses format: a zip with a file for each language."""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from pathlib import Path

from ...errors import UserError
from ..archive import stream_lines
from ..download import RemoteFile, fetch_all, say
from ..lines import align
from .pair_text import Sentences, one_line, parse_pair

SITE = "https://object.pouta.csc.fi"
VERSIONS = {"CCMatrix": "v1", "CCAligned": "v1", "Tatoeba": "v2023-04-12"}


def archive_of(corpus: str, pair: str) -> RemoteFile:
    """pair: in the order of the alphabet, as OPUS has it. No checksums are published: the first download's is kept."""
    url = f"{SITE}/OPUS-{corpus}/{VERSIONS[corpus]}/moses/{pair}.txt.zip"
    return RemoteFile(f"{corpus}.{pair}.zip", (url,))


class Archives:
    """Those of one pair, fetched when they are first read; a corpus that does not have the pair is passed over."""

    def __init__(self, pair: str, downloads: Path, miniature: bool):
        self.pair, self.downloads, self.miniature = pair, downloads, miniature

    @cached_property
    def paths(self) -> dict[str, Path]:
        """corpus -> archive. UserError if no corpus has the pair."""
        paths = {}
        for corpus in VERSIONS:
            file = archive_of(corpus, self.pair)
            try:
                paths[corpus] = fetch_all([file], self.downloads, self.miniature)[file.name]
            except UserError as error:
                if ": 404 " not in str(error):
                    raise
                say(f"{corpus} does not have {self.pair}: passed over")
        if not paths:
            raise UserError(f"--pairs {self.pair}: none of {', '.join(VERSIONS)} has it; leave it out")
        return paths

    def read(self) -> Sentences:
        """The sentence pairs of all archives, as they are; UserError where languages have not as many lines."""
        for corpus, path in self.paths.items():
            members = tuple(f"{corpus}.{self.pair}.{lang}" for lang in parse_pair(self.pair))
            source, target = (map(one_line, stream_lines(path, member)) for member in members)
            yield from align(source, target, members, empty="keep")

    def lines(self) -> int:
        """Sentence pairs of all archives together."""
        lang = parse_pair(self.pair)[0]
        members = (stream_lines(path, f"{corpus}.{self.pair}.{lang}") for corpus, path in self.paths.items())
        return sum(1 for _ in chain.from_iterable(members))

    def remove(self) -> None:
        """Deletes what was fetched; the next reading fetches anew."""
        for corpus in VERSIONS:
            (self.downloads / archive_of(corpus, self.pair).name).unlink(missing_ok=True)
        self.__dict__.pop("paths", None)
