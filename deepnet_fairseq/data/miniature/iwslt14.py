"""IWSLT-14 German-English: talks between lines of tags, test sets in XML, as in WIT3's archive.

The training files have the five tags <url>, <keywords>, <talkid>, <title> and <description> (a <speaker> line would
have come through fairseq's prepare-iwslt14.sh as text, and its data has none). Titles and descriptions are translated
like sentences; in XML & stands as &amp;.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from xml.sax.saxutils import escape

from .archives import lines, tar_gz
from .text import spoilt, translations

LANGS = {"de": "german", "en": "english"}
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
TALKS, SENTENCES = 120, 48  # a talk's title and description are two sentences more
SPOILT_TALKS = 20  # so many have three pairs for the cleaning to drop
TEST_TALKS, TEST_SENTENCES = 2, 30  # of each test set


def archive(url: str) -> bytes:
    """Bytes of de-en.tgz, at whatever address."""
    pairs = translations("iwslt14", tuple(LANGS))
    tests = {name: [_talk(pairs, TEST_SENTENCES) for _ in range(TEST_TALKS)] for name in TEST_SETS}
    talks = [_talk(pairs, SENTENCES) for _ in range(TALKS)]
    for talk in talks[:: TALKS // SPOILT_TALKS]:
        talk[4:4] = spoilt(pairs)
    members = {"de-en/README": "A miniature of IWSLT 2014, German-English, in an artificial language.\n"}
    for side, lang in enumerate(LANGS):
        members[f"de-en/train.tags.de-en.{lang}"] = lines(
            [line for number, talk in enumerate(talks, 1) for line in _tagged(talk, number, side)]
        )
        for name, documents in tests.items():
            members[f"de-en/IWSLT14.{name}.de-en.{lang}.xml"] = lines(_xml(name, documents, side))
    return tar_gz(members)


def _talk(pairs: Iterator[tuple[str, str]], sentences: int) -> list[tuple[str, str]]:
    """Title, description, sentences."""
    return list(islice(pairs, sentences + 2))


def _head(talk: list[tuple[str, str]], number: int, side: int) -> list[str]:
    title, description = (pair[side] for pair in talk[:2])
    return [
        f"<url>http://www.ted.com/talks/lang/{tuple(LANGS)[side]}/talk_{number}.html</url>",
        "<keywords>talks, language, invention</keywords>",
        f"<talkid>{number}</talkid>",
        f"<title>{title}</title>",
        f"<description>{description}</description>",
    ]


def _tagged(talk: list[tuple[str, str]], number: int, side: int) -> list[str]:
    return _head(talk, number, side) + [pair[side] for pair in talk[2:]]


def _xml(name: str, talks: list[list[tuple[str, str]]], side: int) -> list[str]:
    language = f'srclang="{LANGS["de"]}"' + (f' trglang="{LANGS["en"]}"' if side else "")
    kind = "refset" if side else "srcset"
    found = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>"]
    found += [f'<{kind} setid="iwslt2014-{name.split(".")[1]}" {language}>']
    for number, talk in enumerate(talks, 1):
        talk = [tuple(map(escape, pair)) for pair in talk]
        found += [f'<doc docid="{number}" genre="lectures">', *_head(talk, number, side)]
        found += [f'<seg id="{i}"> {pair[side]} </seg>' for i, pair in enumerate(talk[2:], 1)]
        found += ["</doc>"]
    return [*found, f"</{kind}>", "</mteval>"]
