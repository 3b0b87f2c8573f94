"""Generate raw text in many languages from the embedded artificial language pair, qaa -> qab, and pack it in archives.

qab plays the part of English, and qaa that of German; every other language is qaa with other letters. So a sentence can
be said in every language.

A frame is a pattern with characters that tools have to treat well, as "({})"; one sentence in EVERY is put into one.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from itertools import count
from random import Random
from zlib import crc32

from ..language import qaa, qab
from ..language.meaning import Speaker, build_lexicon

# Few words and short sentences, so that a narrow model learns something in 300 updates of 1,000 tokens.
# Numbers of nouns and verbs
NOUNS = 6
VERBS = 10
LONGEST = 10  # words of a sentence, at most
# The longer side of a pair has at most so many times the words of the shorter one. It is below the 1.5 that recipes
# allow when they clean text, so that they drop only pairs that are spoilt on purpose.
RATIO = 1.4

VOWELS = "aeiou"
CONSONANTS = "bcdfghjklmnpqrstvwxyz"
LATIN = (VOWELS, CONSONANTS)
LETTERS = {"ru": ("аеиоу", "бвгджзйклмнпрстфхцчшщ")}  # language -> vowels and consonants; all others have LATIN

# Frames
TALK = ('"{}"', "O'Malo: {}", "{} (Q&A)", "[{}]", "O’Malo: {}")  # characters that a tokeniser escapes
# Characters found on the web. Some of them end a line for str.splitlines, but not for other text tools.
WEB = (*TALK, "„{}“", "{}\u00a0…", "\u2028{}", "{}\u0085", "–\u200b{}")
EVERY = 12  # one of so many sentences is in a frame

# One English sentence in 10 may occur in dev sets only, one in test sets only, and the others in training text only.
SHARE = 10
SUBSETS = {0: "dev", 1: "test"}  # checksum of a sentence modulo SHARE -> where it may occur; others: "train"
EPOCH = (1980, 1, 1, 0, 0, 0)  # date of files in a zip; there is no earlier one


def translations(name: str, langs: tuple[str, ...], frames: tuple[str, ...] = TALK) -> Iterator[tuple[str, ...]]:
    """Yield distinct sentences without end, each as a tuple of its translations into all `langs`.

    name: decides which sentences are drawn
    langs: languages of the translations
    frames: those into which some of the sentences are put, in turn
    """
    for texts in _sentences(name, frames):
        yield _in_languages(langs, texts)


def split(  # type: ignore[return]  # there is always another sentence
    name: str, langs: tuple[str, ...], wanted: dict[str, int]
) -> dict[str, list[tuple[str, ...]]]:
    """Draw sentences; return subset, "train", "dev" or "test" -> sentences, each a tuple of its translations.

    The English text of a sentence, with its frame, decides to which subset it belongs. So this is the same in all
    corpora: none is trained on in one and tested on in another. Some sentences are in a frame of WEB.

    name: of the corpus; it decides which sentences are drawn
    langs: languages of the translations
    wanted: subset -> how many sentences
    """
    drawn: dict[str, list[tuple[str, ...]]] = {subset: [] for subset in wanted}
    for texts in _sentences(name, frames=WEB):
        # Two English sentences that differ by the order of subject and object may have the same German translation, so
        # both must belong to the same subset. So the checksum is that of the sorted letters, which they share.
        letters = "".join(sorted(texts["en"].lower()))
        subset = SUBSETS.get(crc32(letters.encode()) % SHARE, "train")
        if subset in wanted and len(drawn[subset]) < wanted[subset]:
            drawn[subset].append(_in_languages(langs, texts))
        elif all(len(drawn[subset]) == size for subset, size in wanted.items()):
            return drawn


def _in_languages(langs: tuple[str, ...], texts: dict[str, str]) -> tuple[str, ...]:
    """Return a sentence in each of `langs`.

    texts: "de" and "en" -> the sentence in German and in English; other languages are German with other letters
    """
    translated = []
    for lang in langs:
        if lang in texts:
            translated.append(texts[lang])
        else:
            translated.append(texts["de"].translate(_letter_table(lang)))
    return tuple(translated)


def _sentences(name: str, frames: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield sentences without end, as {"de": German, "en": English}; neither text comes twice.

    name: seed of the sentences
    frames: one sentence in EVERY is put into one of them, which take turns
    """
    speaker = Speaker(build_lexicon(1, NOUNS, VERBS), Random(f"miniature {name}"))
    earlier: set[str] = set()
    for number in count(1):
        while True:  # until a sentence is fit and new
            sentence = speaker.sentence()
            german = _detokenised(qaa.say(sentence))
            english = _detokenised(qab.say(sentence))
            if _survives_cleaning(german, english) and earlier.isdisjoint((german, english)):
                break
        earlier |= {german, english}

        frame = "{}"
        if number % EVERY == 0:
            frame = frames[number // EVERY % len(frames)]
        yield {"de": frame.format(german), "en": frame.format(english)}


def spoilt(pairs: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    """Make three pairs that cleaning has to drop: an empty source, sides that are too long, sides of unlike length.

    Recipes allow at most 250 words, or fewer, and at most 1.5 times as many on one side. But wmt14_en_de allows 9 times
    as many, and keeps the last of the three.

    pairs: the next ones are taken from this iterator, and joined to make them
    """
    long = [next(pairs)]
    while min(map(_count_words, _joined(long))) <= 250:
        long.append(next(pairs))

    source, target = next(pairs)
    while _count_words(target) <= 2 * _count_words(source):
        _, more = next(pairs)
        target += f" {more}"

    _, target_of_empty = next(pairs)
    return [("", target_of_empty), _joined(long), (source, target)]


def _joined(pairs: list[tuple[str, str]]) -> tuple[str, str]:
    """Return one pair: all sources joined by blanks, and all targets."""
    sources, targets = zip(*pairs, strict=True)
    return " ".join(sources), " ".join(targets)


def _detokenised(tokens: str) -> str:
    """Return text as it is published: no blank before punctuation, and no comma before another comma or full stop."""
    one_sign = tokens.replace(" , ,", " ,").replace(" , .", " .")
    return one_sign.replace(" ,", ",").replace(" .", ".")


def _survives_cleaning(german: str, english: str) -> bool:
    """Return whether both sides have 1 to LONGEST words, and at most RATIO times as many on one side."""
    short, long = sorted((_count_words(german), _count_words(english)))  # words of the shorter and of the longer side
    return 0 < long <= min(LONGEST, RATIO * short)


def _count_words(text: str) -> int:
    """Return the number of words and punctuation marks, as a tokeniser divides the text."""
    return len(text.replace(",", " ,").replace(".", " .").split())


@cache
def _letter_table(lang: str) -> dict[int, str]:
    """Return a table for str.translate: German letter -> letter of a language, a vowel for a vowel.

    The letters are shuffled, with the language as the seed.
    """
    random = Random(f"alphabet {lang}")
    vowels, consonants = LETTERS.get(lang, LATIN)
    shuffled_vowels = random.sample(vowels, len(vowels))
    shuffled_consonants = random.sample(consonants, len(consonants))

    table = {}
    for letter, other in zip(VOWELS + CONSONANTS, shuffled_vowels + shuffled_consonants, strict=True):
        table[letter] = other
        table[letter.upper()] = other.upper()
    return str.maketrans(table)


def tar_gz(members: dict[str, str]) -> bytes:
    """Return the bytes of a gzipped tar; they depend on its members alone, not on the time. members: path -> text."""
    return gzipped(tar({path: text.encode() for path, text in members.items()}))


def tar(members: dict[str, bytes]) -> bytes:
    """Return the bytes of a tar, without times and owners, in the order of paths. members: path -> content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, content in sorted(members.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def gzipped(content: bytes) -> bytes:
    """Return the content compressed in gzip's format, without a time."""
    return gzip.compress(content, mtime=0)


def zipped(members: dict[str, str]) -> bytes:
    """Return the bytes of a zip, in the order of paths, with EPOCH as all times. members: path -> text."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(members):
            archive.writestr(zipfile.ZipInfo(path, EPOCH), members[path], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def lines(sentences: list[str]) -> str:
    """Return a text with one sentence a line, in which the last line has an end too."""
    return "".join(f"{sentence}\n" for sentence in sentences)
