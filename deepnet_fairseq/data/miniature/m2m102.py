"""Pairs of OPUS in the Moses format, Flores-101, and OPUS-100's zero-shot sets, for any languages asked for."""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations, islice

from ..multilingual.evaluation import FLORES_SPLITS, ZERO_SHOT_LANGUAGES
from ..multilingual.languages import FLORES
from .archives import lines, tar_gz, zipped
from .text import split

SIZES = {"CCMatrix": 2000, "CCAligned": 1000, "Tatoeba": 300}  # sentence pairs fit for training
LESS = 2  # times fewer where German is not among the two
HELD_OUT = 100  # of Flores' dev and devtest each, and of a zero-shot pair


def archive(url: str) -> bytes:
    """Bytes of what lies at that address: a zip of OPUS, Flores-101 or the zero-shot sets."""
    if url.endswith("/flores101_dataset.tar.gz"):
        return tar_gz(_flores())
    if url.endswith("/opus-100-corpus-zeroshot-v1.0.tar.gz"):
        return tar_gz(_zero_shot())
    corpus, source, target = re.search(r"/OPUS-(\w+)/[^/]+/moses/(\w+)-(\w+)\.txt\.zip$", url).groups()
    return zipped(_opus(corpus, (source, target)))


def sizes(langs: tuple[str, str]) -> dict[str, int]:
    """Sentence pairs fit for training, of each corpus; no pair is in two of them."""
    return {corpus: size // (1 if "de" in langs else LESS) for corpus, size in SIZES.items()}


def _opus(corpus: str, langs: tuple[str, str]) -> dict[str, str]:
    rows, pair = _rows(langs), "-".join(langs)
    end = sum(islice(sizes(langs).values(), list(SIZES).index(corpus) + 1))
    rows = _unfit(langs, rows) + rows[end - sizes(langs)[corpus] : end]
    texts = {f"{corpus}.{pair}.{lang}": lines([row[side] for row in rows]) for side, lang in enumerate(langs)}
    return texts | {"README": f"A miniature of {corpus}, in artificial languages.\n", "LICENSE": "CC0\n"}


@cache
def _rows(langs: tuple[str, str]) -> list[tuple[str, str]]:
    """What is fit for training, of all corpora."""
    return split(f"opus {'-'.join(langs)}", langs, {"train": sum(sizes(langs).values())})["train"]


def _unfit(langs: tuple[str, str], rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """What mining lets through: empty and equal sides, menus, pairs of other corpora, sentences of test sets."""
    (first, second), menu = rows[0], tuple(" ".join(row[side] for row in rows[:100]) for side in (0, 1))
    found = [("", second), (first, ""), (first, first), menu, (first, second)]
    if FLORES.keys() >= set(langs):
        known = dict(zip(FLORES, _flores_rows()["test"][0], strict=True))
        found.append(tuple(known[lang] for lang in langs))
    return found


@cache
def _flores_rows() -> dict[str, list[tuple[str, ...]]]:
    return split("flores", tuple(FLORES), {"dev": HELD_OUT, "test": HELD_OUT})


def _flores() -> dict[str, str]:
    """The same sentences in every language."""
    members = {"flores101_dataset/README": "A miniature of Flores-101, in artificial languages.\n"}
    for subset, folder in zip(("dev", "test"), FLORES_SPLITS.values(), strict=True):
        for side, code in enumerate(FLORES.values()):
            text = lines([row[side] for row in _flores_rows()[subset]])
            members[f"flores101_dataset/{folder}/{code}.{folder}"] = text
    return members


def _zero_shot() -> dict[str, str]:
    """The same sentences for every two of the languages."""
    rows = split("zero-shot", ZERO_SHOT_LANGUAGES, {"test": HELD_OUT})["test"]
    members = {}
    for pair in combinations(range(len(ZERO_SHOT_LANGUAGES)), 2):
        name = "-".join(ZERO_SHOT_LANGUAGES[side] for side in pair)
        for side in pair:
            path = f"opus-100-corpus/v1.0/zero-shot/{name}/opus.{name}-test.{ZERO_SHOT_LANGUAGES[side]}"
            members[path] = lines([row[side] for row in rows])
    return members
