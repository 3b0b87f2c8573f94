"""Miniatures in many languages: OPUS-100, one archive a pair; OPUS in the Moses format; the test sets of Table 3."""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations
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
            empty_side = ("", *rows[0][1:])
            rows.insert(len(rows) // 2, empty_side)
        for side, lang in enumerate(langs):
            path = f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{subset}.{lang}"
            members[path] = lines([row[side] for row in rows])
    return tar_gz(members)


def sizes(langs: tuple[str, str]) -> dict[str, int]:
    """Return corpus -> number of sentence pairs fit for training; no sentence pair is in two of them."""
    if "de" in langs:
        return dict(SIZES)
    return {corpus: size // LESS for corpus, size in SIZES.items()}


def opus(corpus: str, pair: str) -> bytes:
    """Make the bytes of CORPUS/.../PAIR.txt.zip, in the corpus' own codes."""
    our_codes = {theirs: ours for ours, theirs in OTHER_CODES.get(corpus, {}).items()}
    codes = pair.split("-")
    langs = tuple(our_codes.get(code, code) for code in codes)

    all_rows = _rows(langs)
    start = 0  # the corpora take their rows one after another, in the order of SIZES
    for other, size in sizes(langs).items():
        if other == corpus:
            break
        start += size
    rows = _unfit(langs, all_rows) + all_rows[start : start + sizes(langs)[corpus]]

    members = {}
    for side, code in enumerate(codes):
        members[f"{corpus}.{pair}.{code}"] = lines([row[side] for row in rows])
    return zipped(members)


@cache
def _rows(langs: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the pairs fit for training, of all corpora."""
    total = sum(sizes(langs).values())
    return split(f"opus {'-'.join(langs)}", langs, {"train": total})["train"]


def _unfit(langs: tuple[str, str], rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return pairs that mining lets through: empty and equal sides, menus, pairs of other corpora, test sentences."""
    source, target = rows[0]
    menu = (" ".join(row[0] for row in rows[:100]), " ".join(row[1] for row in rows[:100]))
    pairs = [("", target), (source, ""), (source, source), menu, (source, target)]
    if FLORES.keys() >= set(langs):
        tested = dict(zip(FLORES, _flores_rows()["test"][0], strict=True))  # language -> the first test sentence
        pairs.append(tuple(tested[lang] for lang in langs))
    return pairs


@cache
def _flores_rows() -> dict[str, list[tuple[str, ...]]]:
    """Return "dev" and "test" -> sentences in every language of FLORES, in its order."""
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
    text = {}  # by language
    for side, lang in enumerate(ZERO_SHOT_LANGUAGES):
        text[lang] = lines([row[side] for row in rows])

    members = {}
    for pair in combinations(ZERO_SHOT_LANGUAGES, 2):
        name = "-".join(pair)
        for lang in pair:
            members[f"opus-100-corpus/v1.0/zero-shot/{name}/opus.{name}-test.{lang}"] = text[lang]
    return tar_gz(members)


def wmt(name: str) -> bytes:
    """Make the bytes of a test set's archive, named as by sacreBLEU: the same sentences from and into English."""
    from sacrebleu.dataset import DATASETS

    others = [lang for lang, year in WMT.items() if year == name]
    langs = ("en", *others)
    rows = split(name, langs, {"test": 2 * HELD_OUT})["test"]
    members = {}

    def add(direction: tuple[str, str], direction_rows: list[tuple[str, ...]]) -> None:
        """Add the files of source and reference of one direction."""
        for member, lang in zip(DATASETS[name].langpairs["-".join(direction)], direction, strict=True):
            sentences = [escape(row[langs.index(lang)]) for row in direction_rows]
            members[member] = lines([f'<seg id="{i}">{sentence}</seg>' for i, sentence in enumerate(sentences, 1)])

    for lang in others:
        add(("en", lang), rows[:HELD_OUT])
        add((lang, "en"), rows[HELD_OUT:])
    return tar_gz(members)


def ted() -> bytes:
    """Make the bytes of ted_talks.tar.gz, the parts that are read.

    The text is tokenised, and every third language lacks every third sentence.
    """
    langs = tuple(TED_COLUMNS)
    table = ["\t".join(["talk_name", *TED_COLUMNS.values()])]
    for number, row in enumerate(split("ted", langs, {"test": HELD_OUT})["test"]):
        cells = [re.sub(r"([.,()])", r" \1 ", cell).strip() for cell in row]
        if number % 3 == 1:
            for side in range(2, len(cells), 3):
                cells[side] = TED_MISSING[number % 2]
        table.append("\t".join(["talk", *cells]))
    return tar_gz({TED_TEST: lines(table)})
