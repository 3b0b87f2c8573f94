"""Miniatures in English, German and French: IWSLT-14's talks in WIT3's archive, WMT's archives as on statmt.org.

IWSLT's training files have the five tags <url>, <keywords>, <talkid>, <title> and <description>. (There is no
<speaker>: fairseq's prepare-iwslt14.sh would have taken it for text, and its data has none.) Titles and descriptions
are translated like sentences; in XML & stands as &amp;.

Sides are numbered: 0 is the source, 1 the target. A talk is a list of pairs: title, description, and its sentences.
Members of an archive are the files in it: path -> text. Sentence pairs are drawn from iterators (text.translations),
and the order in which they are drawn decides what text a member gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from xml.sax.saxutils import escape

from ..lines import Pairs
from ..recipes import wmt as published
from ..recipes.iwslt14 import TEST_SETS
from .text import TALK, WEB, gzipped, lines, spoilt, tar, tar_gz, translations

LANGS = {"de": "german", "en": "english"}  # code -> name in XML
GERMAN_ENGLISH = tuple(LANGS)
FRENCH_ENGLISH = ("fr", "en")
TALKS = 120
TALK_SENTENCES = 48  # a talk's title and description are two sentences more
SPOILT_TALKS = 20  # talks with three pairs that cleaning has to drop
TEST_TALKS = 2  # of each test set
TEST_SENTENCES = 30  # of each of these talks, beside title and description

SIZES = {  # archive of WMT's training text -> (sentence pairs of each language pair, frames of text.py for them)
    published.EUROPARL: (2000, TALK),
    published.COMMON_CRAWL: (1000, WEB),
    published.NEWS_COMMENTARY: (1000, TALK),
    published.UNITED_NATIONS: (500, TALK),
    published.NEWS_COMMENTARY_9: (500, TALK),
    published.GIGA_FREN: (1000, WEB),
}
SPOILT = 10  # places in each training text with three pairs that cleaning has to drop
HELD_OUT = 200  # sentences of newstest2013, and of newstest2014


def iwslt14() -> bytes:
    """Return the bytes of IWSLT-14's de-en.tgz: training text as tagged lines, and test sets in XML."""
    pairs = translations("iwslt14", GERMAN_ENGLISH)
    tests = {}  # test set -> its talks
    for name in TEST_SETS:
        tests[name] = [_take_talk(pairs, TEST_SENTENCES) for _ in range(TEST_TALKS)]
    talks = [_take_talk(pairs, TALK_SENTENCES) for _ in range(TALKS)]  # to train on
    for talk in talks[:: TALKS // SPOILT_TALKS]:
        talk[4:4] = spoilt(pairs)  # inserted behind title, description and two sentences

    members = {}
    for side, lang in enumerate(LANGS):
        tagged = []
        for number, talk in enumerate(talks, 1):
            tagged += _head(talk, number, side)
            tagged += [pair[side] for pair in talk[2:]]
        members[f"de-en/train.tags.de-en.{lang}"] = lines(tagged)
        for name, test_talks in tests.items():
            members[f"de-en/IWSLT14.{name}.de-en.{lang}.xml"] = lines(_xml(name, test_talks, side))
    return tar_gz(members)


def _take_talk(pairs: Iterator[tuple[str, str]], sentences: int) -> Pairs:
    """Return a talk: a title, a description and so many sentences, the next ones of the iterator `pairs`."""
    return list(islice(pairs, 2 + sentences))


def _head(talk: Pairs, number: int, side: int) -> list[str]:
    """Return the tagged lines before the sentences of a talk, in the language of one side.

    number: of the talk
    side: 0 for German, 1 for English
    """
    title = talk[0][side]
    description = talk[1][side]
    return [
        f"<url>http://www.ted.com/talks/lang/{GERMAN_ENGLISH[side]}/talk_{number}.html</url>",
        "<keywords>talks, language, invention</keywords>",
        f"<talkid>{number}</talkid>",
        f"<title>{title}</title>",
        f"<description>{description}</description>",
    ]


def _xml(name: str, talks: list[Pairs], side: int) -> list[str]:
    """Return the lines of the XML file of one side of a test set.

    name: of the test set, one of TEST_SETS
    talks: the test set
    side: 0 for the German sources, 1 for the English references
    """
    if side == 0:
        kind = "srcset"
        language = f'srclang="{LANGS["de"]}"'
    else:
        kind = "refset"
        language = f'srclang="{LANGS["de"]}" trglang="{LANGS["en"]}"'

    xml = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>"]
    set_name = name.split(".")[1]  # "dev2010" of "TED.dev2010"
    xml.append(f'<{kind} setid="iwslt2014-{set_name}" {language}>')
    for number, talk in enumerate(talks, 1):
        escaped = [(escape(german), escape(english)) for german, english in talk]
        xml.append(f'<doc docid="{number}" genre="lectures">')
        xml += _head(escaped, number, side)
        xml += [f'<seg id="{i}"> {pair[side]} </seg>' for i, pair in enumerate(escaped[2:], 1)]
        xml.append("</doc>")
    xml += [f"</{kind}>", "</mteval>"]
    return xml


def wmt(name: str) -> bytes:
    """Return the bytes of an archive of WMT: newstest2013, newstest2014 (in SGML), or training text as plain lines.

    name: file name of the archive, as in recipes.wmt
    """
    if name == published.NEWSTEST2013.name:
        return tar_gz(_plain("dev/newstest2013.{}", GERMAN_ENGLISH, _held_out(name, GERMAN_ENGLISH)))
    if name == published.NEWSTEST2014.name:
        # the last argument decides what sentences are drawn: others for each language pair
        return tar_gz(_sgml("deen", GERMAN_ENGLISH, name) | _sgml("fren", FRENCH_ENGLISH, f"{name} fr"))

    archive = next(file for file in SIZES if file.name == name)
    size, frames = SIZES[archive]
    # training text; an archive may have text of both language pairs
    members: dict[str, str] = {}
    for langs, training in ((GERMAN_ENGLISH, published.GERMAN), (FRENCH_ENGLISH, published.FRENCH)):
        if archive in training:
            member = training[archive]
            members |= _plain(member, langs, _training(member, langs, size=size, frames=frames))

    if archive is published.GIGA_FREN:  # a plain tar of gzipped files
        return tar({path: gzipped(text.encode()) for path, text in members.items()})
    return tar_gz(members)


def _training(member: str, langs: tuple[str, ...], size: int, frames: tuple[str, ...]) -> Pairs:
    """Return training pairs, and between them, in SPOILT places, some that cleaning has to drop.

    member: path of their text in the archive, with {} for the language; it decides what sentences are drawn
    langs: source and target
    size: number of the other pairs
    frames: those into which some sentences are put, see text.py
    """
    drawn = translations(member.removesuffix(".{}"), langs, frames)
    pairs = list(islice(drawn, size))
    for start in range(0, size, size // SPOILT):
        pairs[start:start] = spoilt(drawn)  # inserts three
    return pairs


def _held_out(name: str, langs: tuple[str, ...]) -> Pairs:
    """Return the HELD_OUT pairs of a validation or test set; name: decides what sentences are drawn."""
    return list(islice(translations(name, langs), HELD_OUT))


def _plain(member: str, langs: tuple[str, ...], pairs: Pairs) -> dict[str, str]:
    """Return path -> text for both sides of `pairs`, as plain lines.

    member: path in the archive, with {} in the place of the language
    langs: source and target
    """
    return {member.format(lang): lines([pair[side] for pair in pairs]) for side, lang in enumerate(langs)}


def _sgml(pair: str, langs: tuple[str, ...], name: str) -> dict[str, str]:
    """Return path -> text of newstest2014 for a language pair, in SGML.

    Each language has the same sentences in two files: as source (src), and as reference of the other direction (ref).

    pair: as it is in the file names, "deen"
    langs: the two languages, as "de" and "en"
    name: decides what sentences are drawn
    """
    pairs = _held_out(name, langs)
    members = {}
    for side, lang in enumerate(langs):
        sentences = [f'<seg id="{i}">{escape(row[side])}</seg>' for i, row in enumerate(pairs, 1)]
        for kind in ("src", "ref"):
            text = [
                f'<{kind}set setid="newstest2014" srclang="any">',
                '<doc docid="1" genre="news"><p>',
                *sentences,
                "</p></doc>",
                f"</{kind}set>",
            ]
            members[f"test-full/newstest2014-{pair}-{kind}.{lang}.sgm"] = lines(text)
    return members
