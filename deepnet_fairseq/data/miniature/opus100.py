"""OPUS-100: three languages to and from English, of unequal size, and the zero-shot test sets between them.

Folders and files go by the pair in alphabetical order (de-en, but en-fr). an-en has a training set alone, as the
smallest of the published pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from .archives import lines, tar_gz
from .text import WEB, translations

LANGS = ("an", "de", "en", "fr", "ru")
ROOT = "opus-100-corpus/v1.0"
SIZES = {"de-en": 3000, "en-fr": 1500, "en-ru": 750, "an-en": 150}  # training pairs
HELD_OUT = 100  # of dev and of test
WITHOUT_TEST = ("an-en",)
ZERO_SHOT = ("de-fr", "de-ru", "fr-ru")


def archive(url: str) -> bytes:
    """opus-100-corpus-v1.0.tar.gz, at whatever address."""
    sentences = translations("opus-100", LANGS, WEB)  # one stream: no sentence comes in two pairs or splits
    members = {}
    for pair, size in SIZES.items():
        splits = {"dev": HELD_OUT, "test": HELD_OUT, "train": size}
        members |= _pair("supervised", pair, {"train": size} if pair in WITHOUT_TEST else splits, sentences)
    for pair in ZERO_SHOT:
        members |= _pair("zero-shot", pair, {"test": HELD_OUT}, sentences)
    return tar_gz(members)


def _pair(kind: str, pair: str, splits: dict[str, int], sentences: Iterator[tuple[str, ...]]) -> dict[str, str]:
    members = {}
    for split, size in splits.items():
        rows = list(islice(sentences, size))
        for lang in pair.split("-"):
            path = f"{ROOT}/{kind}/{pair}/opus.{pair}-{split}.{lang}"
            members[path] = lines([row[LANGS.index(lang)] for row in rows])
    return members
