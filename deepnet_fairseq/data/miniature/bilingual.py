"""Miniatures in English, German and French: IWSLT-14's talks in WIT3's archive, WMT's archives as on statmt.org.

IWSLT's training files have the five tags <url>, <keywords>, <talkid>, <title> and <description> (a <speaker> line would
have come through fairseq's prepare-iwslt14.sh as text, and its data has none). Titles and descriptions are translated
like sentences; in XML & stands as &amp;.
"""

from __future__ import annotations

from itertools import islice
from xml.sax.saxutils import escape

from ..lines import Pairs
from ..recipes import wmt as published
from ..recipes.iwslt14 import TEST_SETS
from .text import TALK, WEB, gzipped, lines, spoilt, tar, tar_gz, translations

LANGS = {"de": "german", "en": "english"}
TALKS, TALK_SENTENCES = 120, 48  # a talk's title and description are two sentences more
SPOILT_TALKS = 20  # talks with three pairs that cleaning has to drop
TEST_TALKS, TEST_SENTENCES = 2, 30  # of each test set

SIZES = {  # archive of WMT -> number of pairs with each language, and their frames
    published.EUROPARL: (2000, TALK),
    published.COMMON_CRAWL: (1000, WEB),
    published.NEWS_COMMENTARY: (1000, TALK),
    published.UNITED_NATIONS: (500, TALK),
    published.NEWS_COMMENTARY_9: (500, TALK),
    published.GIGA_FREN: (1000, WEB),
}
SPOILT = 10  # times three pairs that cleaning has to drop, in each archive
HELD_OUT = 200  # sentences of newstest2013 and of newstest2014


def iwslt14() -> bytes:
    """Make the bytes of de-en.tgz."""
    pairs = translations("iwslt14", tuple(LANGS))
    tests = {name: [list(islice(pairs, 2 + TEST_SENTENCES)) for _ in range(TEST_TALKS)] for name in TEST_SETS}
    talks = [list(islice(pairs, 2 + TALK_SENTENCES)) for _ in range(TALKS)]  # title, description, sentences
    for talk in talks[:: TALKS // SPOILT_TALKS]:
        talk[4:4] = spoilt(pairs)
    members = {}
    for side, lang in enumerate(LANGS):
        tagged = [[*_head(talk, i, side), *(pair[side] for pair in talk[2:])] for i, talk in enumerate(talks, 1)]
        members[f"de-en/train.tags.de-en.{lang}"] = lines(sum(tagged, []))
        for name, documents in tests.items():
            members[f"de-en/IWSLT14.{name}.de-en.{lang}.xml"] = lines(_xml(name, documents, side))
    return tar_gz(members)


def _head(talk: Pairs, number: int, side: int) -> list[str]:
    title, description = (pair[side] for pair in talk[:2])
    return [
        f"<url>http://www.ted.com/talks/lang/{tuple(LANGS)[side]}/talk_{number}.html</url>",
        "<keywords>talks, language, invention</keywords>",
        f"<talkid>{number}</talkid>",
        f"<title>{title}</title>",
        f"<description>{description}</description>",
    ]


def _xml(name: str, talks: list[Pairs], side: int) -> list[str]:
    language = f'srclang="{LANGS["de"]}"' + (f' trglang="{LANGS["en"]}"' if side else "")
    kind = "refset" if side else "srcset"
    xml = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>"]
    xml += [f'<{kind} setid="iwslt2014-{name.split(".")[1]}" {language}>']
    for number, talk in enumerate(talks, 1):
        talk = [tuple(map(escape, pair)) for pair in talk]
        xml += [f'<doc docid="{number}" genre="lectures">', *_head(talk, number, side)]
        xml += [f'<seg id="{i}"> {pair[side]} </seg>' for i, pair in enumerate(talk[2:], 1)]
        xml += ["</doc>"]
    return [*xml, f"</{kind}>", "</mteval>"]


def wmt(name: str) -> bytes:
    """Make the bytes of an archive by its file name: lines, except newstest2014, which is SGML."""
    if name == published.NEWSTEST2013.name:
        return tar_gz(_plain("dev/newstest2013.{}", tuple(LANGS), _held_out(name, tuple(LANGS))))
    if name == published.NEWSTEST2014.name:
        return tar_gz(_sgml("deen", tuple(LANGS), name) | _sgml("fren", ("fr", "en"), f"{name} fr"))
    archive = next(file for file in SIZES if file.name == name)
    members: dict[str, str] = {}
    for langs, training in ((tuple(LANGS), published.GERMAN), (("fr", "en"), published.FRENCH)):
        if archive in training:
            members |= _plain(training[archive], langs, _training(training[archive], langs, *SIZES[archive]))
    if archive is published.GIGA_FREN:
        return tar({path: gzipped(text.encode()) for path, text in members.items()})
    return tar_gz(members)


def _training(member: str, langs: tuple[str, ...], size: int, frames: tuple[str, ...]) -> Pairs:
    source = translations(member.removesuffix(".{}"), langs, frames)
    pairs = list(islice(source, size))
    for start in range(0, size, size // SPOILT):
        pairs[start:start] = spoilt(source)
    return pairs


def _held_out(name: str, langs: tuple[str, ...]) -> Pairs:
    return list(islice(translations(name, langs), HELD_OUT))


def _plain(member: str, langs: tuple[str, ...], pairs: Pairs) -> dict[str, str]:
    return {member.format(lang): lines([pair[side] for pair in pairs]) for side, lang in enumerate(langs)}


def _sgml(pair: str, langs: tuple[str, ...], name: str) -> dict[str, str]:
    """Make newstest2014 of a pair ("deen"), as source and as reference in both languages."""
    members, pairs = {}, _held_out(name, langs)
    for side, lang in enumerate(langs):
        sentences = [f'<seg id="{i}">{escape(row[side])}</seg>' for i, row in enumerate(pairs, 1)]
        for kind in ("src", "ref"):
            head, doc = f'<{kind}set setid="newstest2014" srclang="any">', '<doc docid="1" genre="news"><p>'
            text = lines([head, doc, *sentences, "</p></doc>", f"</{kind}set>"])
            members[f"test-full/newstest2014-{pair}-{kind}.{lang}.sgm"] = text
    return members
