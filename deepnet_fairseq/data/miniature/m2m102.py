"""Pairs of OPUS in the Moses format, for whatever languages are asked for, and the test sets of many languages."""

from __future__ import annotations

import re
from itertools import combinations, islice

from .archives import lines, tar_gz, zipped
from .text import WEB, translations

SIZES = {"CCMatrix": 2000, "CCAligned": 1000, "Tatoeba": 300}  # sentence pairs
LESS = 2  # times fewer where German is not among the two
HELD_OUT = 100  # of Flores' dev and of its devtest
ZERO_SHOT = ("ar", "de", "fr", "nl", "ru", "zh")
FLORES = {"eng": "en", "deu": "de", "fra": "fr", "rus": "ru"}


def archive(url: str) -> bytes:
    """What lies at that address: Flores-101, the zero-shot test sets, or the zip of a pair in a corpus of OPUS."""
    if url.endswith("/flores101_dataset.tar.gz"):
        return tar_gz(_flores())
    if url.endswith("/opus-100-corpus-zeroshot-v1.0.tar.gz"):
        return tar_gz(_zero_shot())
    corpus, source, target = re.search(r"/OPUS-(\w+)/[^/]+/moses/(\w+)-(\w+)\.txt\.zip$", url).groups()
    return zipped(_opus(corpus, (source, target)))


def _opus(corpus: str, langs: tuple[str, str]) -> dict[str, str]:
    size = SIZES[corpus] // (1 if "de" in langs else LESS)
    pairs = list(islice(translations(f"{corpus} {'-'.join(langs)}", langs, WEB), size))
    name = f"{corpus}.{'-'.join(langs)}"
    texts = {f"{name}.{lang}": lines([pair[side] for pair in pairs]) for side, lang in enumerate(langs)}
    return texts | {"README": f"A miniature of {corpus}, in artificial languages.\n", "LICENSE": "CC0\n"}


def _flores() -> dict[str, str]:
    """The same sentences in every language."""
    sentences = list(islice(translations("flores", tuple(FLORES.values())), 2 * HELD_OUT))
    splits = {"dev": sentences[:HELD_OUT], "devtest": sentences[HELD_OUT:]}
    members = {"flores101_dataset/README": "A miniature of Flores-101, in artificial languages.\n"}
    for split, rows in splits.items():
        for side, lang in enumerate(FLORES):
            members[f"flores101_dataset/{split}/{lang}.{split}"] = lines([row[side] for row in rows])
    return members


def _zero_shot() -> dict[str, str]:
    """A test set of every two of the languages."""
    members = {}
    for langs in combinations(ZERO_SHOT, 2):
        pair = "-".join(langs)
        rows = list(islice(translations(f"zero-shot {pair}", langs, WEB), HELD_OUT))
        for side, lang in enumerate(langs):
            path = f"opus-100-corpus/v1.0/zero-shot/{pair}/opus.{pair}-test.{lang}"
            members[path] = lines([row[side] for row in rows])
    return members
