"""WMT English-German: the training corpora in archives as statmt.org has them, newstest2013 and newstest2014."""

from __future__ import annotations

from itertools import islice
from xml.sax.saxutils import escape

from .archives import lines, tar_gz
from .text import TALK, WEB, spoilt, translations

LANGS = ("de", "en")
TRAINING = {  # archive -> its member without the language, how many pairs, their frames
    "training-parallel-europarl-v7.tgz": ("training/europarl-v7.de-en", 2000, TALK),
    "training-parallel-commoncrawl.tgz": ("commoncrawl.de-en", 1000, WEB),
    "training-parallel-nc-v12.tgz": ("training/news-commentary-v12.de-en", 1000, TALK),
}
SPOILT = 10  # times three pairs for the cleaning to drop, in each
HELD_OUT = {"dev.tgz": ("newstest2013", "dev"), "test-full.tgz": ("newstest2014", "test-full")}
DOCUMENTS, SENTENCES = 10, 20  # of a held-out set


def archive(url: str) -> bytes:
    """Bytes of what lies at that address, by its file name."""
    name = url.rsplit("/", 1)[-1]
    return tar_gz(_training(*TRAINING[name]) if name in TRAINING else _held_out(*HELD_OUT[name]))


def _training(member: str, size: int, frames: tuple[str, ...]) -> dict[str, str]:
    source = translations(member, LANGS, frames)
    pairs = list(islice(source, size))
    for start in range(0, size, size // SPOILT):
        pairs[start:start] = spoilt(source)
    return {f"{member}.{lang}": lines([pair[side] for pair in pairs]) for side, lang in enumerate(LANGS)}


def _held_out(name: str, folder: str) -> dict[str, str]:
    """SGML for both directions, plain text as well for newstest2013, as in the archives of WMT."""
    pairs = list(islice(translations(name, LANGS), DOCUMENTS * SENTENCES))
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
        part = sentences[document * SENTENCES : (document + 1) * SENTENCES]
        found += [f'<seg id="{i}">{escape(sentence)}</seg>' for i, sentence in enumerate(part, 1)]
        found += ["</p>", "</doc>"]
    return [*found, f"</{tag}>"]
