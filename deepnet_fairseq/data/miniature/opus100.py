"""OPUS-100: an archive for each pair that is asked for, of unequal sizes."""

from __future__ import annotations

import re

from ..recipes.opus100_archives import WITHOUT_TEST
from .archives import lines, tar_gz
from .text import split

SIZES = {"de-en": 3000, "en-fr": 1500, "en-ru": 750}  # sentence pairs to train on
SMALL = 150  # of the other pairs
HELD_OUT = 100  # of dev, and of test


def archive(url: str) -> bytes:
    """Bytes of opus-100-corpus-PAIR-v1.0.tar.gz; the training text has one pair more, with an empty side."""
    pair = re.search(r"/opus-100-corpus-(\w+-\w+)-v1\.0\.tar\.gz$", url)[1]
    langs = tuple(pair.split("-"))
    wanted = {"train": SIZES.get(pair, SMALL)}
    if pair not in WITHOUT_TEST:
        wanted |= {"dev": HELD_OUT, "test": HELD_OUT}
    members = {}
    for subset, rows in split(f"opus-100 {pair}", langs, wanted).items():
        if subset == "train":
            rows.insert(len(rows) // 2, ("", *rows[0][1:]))
        for side, lang in enumerate(langs):
            path = f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{subset}.{lang}"
            members[path] = lines([row[side] for row in rows])
    return tar_gz(members)
