"""The text within the tags of WIT3's and WMT's files, exactly as fairseq's scripts take it out of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

HEADERS = ("<url>", "<talkid>", "<keywords>")
TITLES = re.compile("</?(?:title|description)>")
SEGMENT = "<seg id"
OPENING, CLOSING = re.compile(r'<seg id="[0-9]*">\s*'), re.compile(r"\s*</seg>\s*")


def training_lines(lines: Iterable[str]) -> Iterator[str]:
    """Sentences, titles and descriptions of the talks of a train.tags file (WIT3)."""
    for line in lines:
        if not any(tag in line for tag in HEADERS):
            yield TITLES.sub("", line)


def segments(lines: Iterable[str]) -> Iterator[str]:
    """Sentences of an XML or SGML file, to be tokenised: with typewriter apostrophes."""
    for line in lines:
        if SEGMENT in line:
            yield CLOSING.sub("", OPENING.sub("", line)).replace("’", "'")


def published_segments(lines: Iterable[str]) -> Iterator[str]:
    """The same sentences as published, as a reference: entities stay, as in sacreBLEU's copies of the test sets."""
    for line in lines:
        if SEGMENT in line:
            yield " ".join(CLOSING.sub("", OPENING.sub("", line)).split())
