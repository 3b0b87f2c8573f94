"""Miniatures in many languages: OPUS-100, one archive a pair; OPUS in the Moses format; the test sets of Table 3.

A row is a sentence as a tuple of its translations into several languages; a column has the text in one of these.
Members of an archive are the files in it: path -> text. text.split draws rows for "train", "dev" and "test".
"""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations
from xml.sax.saxutils import escape

from ..recipes.evaluation import FLORES, FLORES_SPLITS, TED_COLUMNS, TED_MISSING, TED_TEST, WMT, ZERO_SHOT_LANGUAGES
from ..recipes.m2m102 import OTHER_CODES
from ..recipes.opus100 import ARCHIVES
from .text import lines, split, tar_gz, zipped

OPUS_100 = {"de-en": 3000, "en-fr": 2500, "en-ru": 2000}  # language pair -> sentence pairs to train on
SMALL = 150  # sentence pairs to train on of other language pairs
SIZES = {"CCMatrix": 2000, "CCAligned": 1000, "Tatoeba": 300}  # corpus of OPUS -> sentence pairs that cleaning keeps
LESS = 2  # such sizes are divided by this for language pairs without German
HELD_OUT = 100  # sentences of each dev set, and of each test set


def opus100(pair: str) -> bytes:
    """Return the bytes of opus-100-corpus-PAIR-v1.0.tar.gz.

    One pair of its training text has an empty side, which a recipe has to drop.

    pair: PAIR, as "de-en"
    """
    langs = tuple(pair.split("-"))
    wanted = {"train": OPUS_100.get(pair, SMALL)}
    if ARCHIVES[pair].test:  # small languages have no dev and test sets
        wanted |= {"dev": HELD_OUT, "test": HELD_OUT}
    members = {}
    for subset, rows in split(f"opus-100 {pair}", langs, wanted).items():
        if subset == "train":
            without_source = ("", *rows[0][1:])
            rows.insert(len(rows) // 2, without_source)
        for column, lang in enumerate(langs):
            path = f"opus-100-corpus/v1.0/supervised/{pair}/opus.{pair}-{subset}.{lang}"
            members[path] = lines([row[column] for row in rows])
    return tar_gz(members)


def kept_sizes(langs: tuple[str, str]) -> dict[str, int]:
    """Return corpus of OPUS -> how many of its sentence pairs of two languages cleaning keeps."""
    if "de" in langs:
        return dict(SIZES)
    return {corpus: size // LESS for corpus, size in SIZES.items()}


def opus(corpus: str, pair: str) -> bytes:
    """Return the bytes of the archive of a corpus of OPUS for a language pair, PAIR.txt.zip.

    corpus: as in SIZES
    pair: in the corpus' own codes of languages, as "de-en"
    """
    # corpus' code -> ours, where they differ; CCMatrix has our codes
    our_codes = {theirs: ours for ours, theirs in OTHER_CODES.get(corpus, {}).items()}
    codes = pair.split("-")
    langs = tuple(our_codes.get(code, code) for code in codes)

    # The rows of the language pair are divided among the corpora, in the order of SIZES, so that none is in two.
    all_rows = _kept_rows(langs)
    start = 0
    for other, size in kept_sizes(langs).items():
        if other == corpus:
            break
        start += size
    rows = _dropped_rows(langs, all_rows) + all_rows[start : start + kept_sizes(langs)[corpus]]

    members = {}
    for column, code in enumerate(codes):
        members[f"{corpus}.{pair}.{code}"] = lines([row[column] for row in rows])
    return zipped(members)


@cache
def _kept_rows(langs: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the sentence pairs of two languages that cleaning keeps, of all corpora of OPUS together."""
    total = sum(kept_sizes(langs).values())
    return split(f"opus {'-'.join(langs)}", langs, {"train": total})["train"]


def _dropped_rows(langs: tuple[str, str], rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return sentence pairs that are found in mined text, and that cleaning has to drop.

    These are empty and equal sides, a menu (a very long sentence), a pair that another corpus has too, and a sentence
    of a test set.

    rows: those of _kept_rows, of which they are made
    """
    source, target = rows[0]
    # a hundred sentences together have more characters than m2m102.LONGEST
    menu = (" ".join(row[0] for row in rows[:100]), " ".join(row[1] for row in rows[:100]))
    dropped = [("", target), (source, ""), (source, source), menu, (source, target)]
    if set(langs) <= FLORES.keys():  # Flores-101 has both languages
        first_row = _flores_rows()["test"][0]
        test_sentence = dict(zip(FLORES, first_row, strict=True))  # language -> its sentence
        dropped.append(tuple(test_sentence[lang] for lang in langs))
    return dropped


@cache
def _flores_rows() -> dict[str, list[tuple[str, ...]]]:
    """Return "dev" and "test" -> rows with a column for every language of FLORES, in its order."""
    return split("flores", tuple(FLORES), {"dev": HELD_OUT, "test": HELD_OUT})


def flores() -> bytes:
    """Return the bytes of flores101_dataset.tar.gz: the same sentences in every language."""
    members = {}
    for subset, folder in zip(("dev", "test"), FLORES_SPLITS.values(), strict=True):  # folders "dev" and "devtest"
        for column, code in enumerate(FLORES.values()):
            text = lines([row[column] for row in _flores_rows()[subset]])
            members[f"flores101_dataset/{folder}/{code}.{folder}"] = text
    return tar_gz(members)


def zero_shot() -> bytes:
    """Return the bytes of opus-100-corpus-zeroshot-v1.0.tar.gz: the same sentences for every two of the languages."""
    rows = split("zero-shot", ZERO_SHOT_LANGUAGES, {"test": HELD_OUT})["test"]
    text = {}  # language -> its sentences, one a line
    for column, lang in enumerate(ZERO_SHOT_LANGUAGES):
        text[lang] = lines([row[column] for row in rows])

    members = {}
    for pair in combinations(ZERO_SHOT_LANGUAGES, 2):
        name = "-".join(pair)
        for lang in pair:
            members[f"opus-100-corpus/v1.0/zero-shot/{name}/opus.{name}-test.{lang}"] = text[lang]
    return tar_gz(members)


def wmt(name: str) -> bytes:
    """Return the bytes of the archive of a test set of WMT, called `name` by sacreBLEU.

    All directions from English have the same sentences, and all directions into English have others, because WMT's
    sentences are written in the source language.
    """
    from sacrebleu.dataset import DATASETS

    others = [lang for lang, test_set in WMT.items() if test_set == name]  # besides English
    langs = ("en", *others)
    rows = split(name, langs, {"test": 2 * HELD_OUT})["test"]  # the first half from English, the second into it
    members = {}

    def add(direction: tuple[str, str], direction_rows: list[tuple[str, ...]]) -> None:
        """Add the source and the reference of one direction to the members, in SGML."""
        paths = DATASETS[name].langpairs["-".join(direction)]
        for path, lang in zip(paths, direction, strict=True):
            sentences = [escape(row[langs.index(lang)]) for row in direction_rows]
            members[path] = lines([f'<seg id="{i}">{sentence}</seg>' for i, sentence in enumerate(sentences, 1)])

    for lang in others:
        add(("en", lang), rows[:HELD_OUT])
        add((lang, "en"), rows[HELD_OUT:])
    return tar_gz(members)


def ted() -> bytes:
    """Return the bytes of ted_talks.tar.gz, with its test set alone: a table with a column for each language.

    The text is tokenised. Some cells have no sentence, but one of the marks in TED_MISSING.
    """
    langs = tuple(TED_COLUMNS)
    table = ["\t".join(["talk_name", *TED_COLUMNS.values()])]
    for number, row in enumerate(split("ted", langs, {"test": HELD_OUT})["test"]):
        cells = [re.sub(r"([.,()])", r" \1 ", cell).strip() for cell in row]
        if number % 3 == 1:  # in every third row, every third language has no sentence
            for column in range(2, len(cells), 3):
                cells[column] = TED_MISSING[number % 2]  # the two marks take turns
        table.append("\t".join(["talk", *cells]))
    return tar_gz({TED_TEST: lines(table)})
