"""German and English: the talks of IWSLT-14 in WIT3's archive, and the archives of WMT as statmt.org has them.

IWSLT's training files have the five tags <url>, <keywords>, <talkid>, <title> and <description> (a <speaker> line would
have come through fairseq's prepare-iwslt14.sh as text, and its data has none). Titles and descriptions are translated
like sentences; in XML & stands as &amp;.
"""

from __future__ import annotations

from itertools import islice
from xml.sax.saxutils import escape

from .text import TALK, WEB, lines, spoilt, tar_gz, translations

Pairs = list[tuple[str, str]]
LANGS = {"de": "german", "en": "english"}
TEST_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
TALKS, TALK_SENTENCES = 120, 48  # a talk's title and description are two sentences more
SPOILT_TALKS = 20  # so many have three pairs for the cleaning to drop
TEST_TALKS, TEST_SENTENCES = 2, 30  # of each test set

TRAINING = {  # archive of WMT -> its member without the language, how many pairs, their frames
    "training-parallel-europarl-v7.tgz": ("training/europarl-v7.de-en", 2000, TALK),
    "training-parallel-commoncrawl.tgz": ("commoncrawl.de-en", 1000, WEB),
    "training-parallel-nc-v12.tgz": ("training/news-commentary-v12.de-en", 1000, TALK),
}
SPOILT = 10  # times three pairs for the cleaning to drop, in each
HELD_OUT = {"dev.tgz": ("newstest2013", "dev"), "test-full.tgz": ("newstest2014", "test-full")}
DOCUMENTS, DOCUMENT_SENTENCES = 10, 20  # of a held-out set


def iwslt14() -> bytes:
    """Bytes of de-en.tgz."""
    pairs = translations("iwslt14", tuple(LANGS))
    tests = {name: [list(islice(pairs, 2 + TEST_SENTENCES)) for _ in range(TEST_TALKS)] for name in TEST_SETS}
    talks = [list(islice(pairs, 2 + TALK_SENTENCES)) for _ in range(TALKS)]  # title, description, sentences
    for talk in talks[:: TALKS // SPOILT_TALKS]:
        talk[4:4] = spoilt(pairs)
    members = {"de-en/README": "A miniature of IWSLT 2014, German-English, in an artificial language.\n"}
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
    found = ['<?xml version="1.0" encoding="UTF-8"?>', "<mteval>"]
    found += [f'<{kind} setid="iwslt2014-{name.split(".")[1]}" {language}>']
    for number, talk in enumerate(talks, 1):
        talk = [tuple(map(escape, pair)) for pair in talk]
        found += [f'<doc docid="{number}" genre="lectures">', *_head(talk, number, side)]
        found += [f'<seg id="{i}"> {pair[side]} </seg>' for i, pair in enumerate(talk[2:], 1)]
        found += ["</doc>"]
    return [*found, f"</{kind}>", "</mteval>"]


def wmt(name: str) -> bytes:
    """Bytes of an archive by its file name."""
    return tar_gz(_training(*TRAINING[name]) if name in TRAINING else _held_out(*HELD_OUT[name]))


def _training(member: str, size: int, frames: tuple[str, ...]) -> dict[str, str]:
    source = translations(member, tuple(LANGS), frames)
    pairs = list(islice(source, size))
    for start in range(0, size, size // SPOILT):
        pairs[start:start] = spoilt(source)
    return {f"{member}.{lang}": lines([pair[side] for pair in pairs]) for side, lang in enumerate(LANGS)}


def _held_out(name: str, folder: str) -> dict[str, str]:
    """SGML for both directions, plain text as well for newstest2013, as in the archives of WMT."""
    pairs = list(islice(translations(name, tuple(LANGS)), DOCUMENTS * DOCUMENT_SENTENCES))
    direction = "deen-" if name == "newstest2014" else ""
    members = {}
    for side, lang in enumerate(LANGS):
        for kind in ("src", "ref"):
            text = lines(_sgm(name, kind, [pair[side] for pair in pairs], lang))
            members[f"{folder}/{name}-{direction}{kind}.{lang}.sgm"] = text
        if not direction:
            members[f"{folder}/{name}.{lang}"] = lines([pair[side] for pair in pairs])
    return members


def _sgm(name: str, kind: str, sentences: list[str], lang: str) -> list[str]:
    tag = f"{kind}set"
    found = [f'<{tag} setid="{name}" srclang="any"' + (f' trglang="{lang}">' if kind == "ref" else ">")]
    for document in range(DOCUMENTS):
        found += [f'<doc sysid="ref" docid="{name}/{document}" genre="news" origlang="{lang}">', "<p>"]
        part = sentences[document * DOCUMENT_SENTENCES : (document + 1) * DOCUMENT_SENTENCES]
        found += [f'<seg id="{i}">{escape(sentence)}</seg>' for i, sentence in enumerate(part, 1)]
        found += ["</p>", "</doc>"]
    return [*found, f"</{tag}>"]
