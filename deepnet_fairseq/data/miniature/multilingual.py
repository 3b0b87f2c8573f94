"""Miniatures in many languages: OPUS-100, one archive a pair; OPUS in the Moses format; the test sets of Table 3."""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations, islice
from xml.sax.saxutils import escape

from ..recipes.evaluation import FLORES, FLORES_SPLITS, TED_COLUMNS, TED_MISSING, TED_TEST, WMT, ZERO_SHOT_LANGUAGES
from ..recipes.m2m102 import OTHER_CODES
from ..recipes.opus100 import ARCHIVES
from .text import lines, split, tar_gz, zipped

OPUS_100 = {"de-en": 3000, "en-fr": 2500, "en-ru": 2000}  # sentence pairs to train on
SMALL = 150  # sentence pairs of the other pairs
SIZES = {"CCMatrix": 2000, "CCAligned": 1000, "Tatoeba": 300}  # sentence pairs fit for training
LESS = 2  # divisor for pairs without German
HELD_OUT = 100  # of a dev and of a test set each


def opus100(pair: str) -> bytes:
    """Make the bytes of opus-100-corpus-PAIR-v1.0.tar.gz; the training text has one more pair, with an empty side."""
    langs = tuple(pair.split("-"))
    wanted = {"train": OPUS_100.get(pair, SMALL)}
    if ARCHIVES[pair].test:
        wanted |= {"dev": HELD_OUT, "test": HELD_OUT}
    members = {}
    for subset, rows in split(f"opus-100 {pair}", langs, wanted).items():
        if subset == "train":
            rows.insert(len(rows) // 2, ("", *rows[0][1:]))
        for side, lang in enumerate(langs):
            path = f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{subset}.{lang}"
            members[path] = lines([row[side] for row in rows])
    return tar_gz(members)


def sizes(langs: tuple[str, str]) -> dict[str, int]:
    """Return the number of pairs fit for training in each corpus; no pair is in two of them."""
    return {corpus: size // (1 if "de" in langs else LESS) for corpus, size in SIZES.items()}


def opus(corpus: str, pair: str) -> bytes:
    """Make the bytes of CORPUS/.../PAIR.txt.zip, in the corpus' own codes."""
    ours = {code: lang for lang, code in OTHER_CODES.get(corpus, {}).items()}
    codes = pair.split("-")
    langs = tuple(ours.get(code, code) for code in codes)
    rows = _rows(langs)
    end = sum(islice(sizes(langs).values(), list(SIZES).index(corpus) + 1))
    rows = _unfit(langs, rows) + rows[end - sizes(langs)[corpus] : end]
    return zipped({f"{corpus}.{pair}.{code}": lines([row[side] for row in rows]) for side, code in enumerate(codes)})


@cache
def _rows(langs: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the pairs fit for training, of all corpora."""
    return split(f"opus {'-'.join(langs)}", langs, {"train": sum(sizes(langs).values())})["train"]


def _unfit(langs: tuple[str, str], rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return pairs that mining lets through: empty and equal sides, menus, pairs of other corpora, test sentences."""
    (first, second), menu = rows[0], tuple(" ".join(row[side] for row in rows[:100]) for side in (0, 1))
    pairs = [("", second), (first, ""), (first, first), menu, (first, second)]
    if FLORES.keys() >= set(langs):
        known = dict(zip(FLORES, _flores_rows()["test"][0], strict=True))
        pairs.append(tuple(known[lang] for lang in langs))
    return pairs


@cache
def _flores_rows() -> dict[str, list[tuple[str, ...]]]:
    return split("flores", tuple(FLORES), {"dev": HELD_OUT, "test": HELD_OUT})


def flores() -> bytes:
    """Make the bytes of flores101_dataset.tar.gz: the same sentences in every language."""
    members = {}
    for subset, folder in zip(("dev", "test"), FLORES_SPLITS.values(), strict=True):
        for side, code in enumerate(FLORES.values()):
            text = lines([row[side] for row in _flores_rows()[subset]])
            members[f"flores101_dataset/{folder}/{code}.{folder}"] = text
    return tar_gz(members)


def zero_shot() -> bytes:
    """Make the bytes of opus-100-corpus-zeroshot-v1.0.tar.gz: the same sentences for every two of the languages."""
    rows = split("zero-shot", ZERO_SHOT_LANGUAGES, {"test": HELD_OUT})["test"]
    members = {}
    for pair in combinations(range(len(ZERO_SHOT_LANGUAGES)), 2):
        name = "-".join(ZERO_SHOT_LANGUAGES[side] for side in pair)
        for side in pair:
            path = f"opus-100-corpus/v1.0/zero-shot/{name}/opus.{name}-test.{ZERO_SHOT_LANGUAGES[side]}"
            members[path] = lines([row[side] for row in rows])
    return tar_gz(members)


def wmt(name: str) -> bytes:
    """Make the bytes of a test set's archive, named as by sacreBLEU: the same sentences from and into English."""
    from sacrebleu.dataset import DATASETS

    langs, members = ("en", *(lang for lang, year in WMT.items() if year == name)), {}
    rows = split(name, langs, {"test": 2 * HELD_OUT})["test"]
    for lang in langs[1:]:
        for direction, some in ((("en", lang), rows[:HELD_OUT]), ((lang, "en"), rows[HELD_OUT:])):
            for member, of in zip(DATASETS[name].langpairs["-".join(direction)], direction, strict=True):
                text = (escape(row[langs.index(of)]) for row in some)
                members[member] = lines([f'<seg id="{i}">{line}</seg>' for i, line in enumerate(text, 1)])
    return tar_gz(members)


def ted() -> bytes:
    """Make the bytes of ted_talks.tar.gz, the parts that are read: tokenised; each third language lacks each third
    sentence."""
    langs = tuple(TED_COLUMNS)
    table = ["\t".join(["talk_name", *TED_COLUMNS.values()])]
    for number, row in enumerate(split("ted", langs, {"test": HELD_OUT})["test"]):
        tokens = (re.sub(r"([.,()])", r" \1 ", cell).strip() for cell in row)
        missing = TED_MISSING[number % 2]
        cells = [missing if number % 3 == 1 and side % 3 == 2 else cell for side, cell in enumerate(tokens)]
        table.append("\t".join(["talk", *cells]))
    return tar_gz({TED_TEST: lines(table)})
