"""Generate raw text in many languages from the embedded language, and put it into archives.

English is qab and German is qaa; every other language is qaa in an alphabet of its own, so that all say the same.
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
NOUNS = 6
VERBS = 10
LONGEST = 10  # words of a sentence
VOWELS = "aeiou"
CONSONANTS = "bcdfghjklmnpqrstvwxyz"
LATIN = (VOWELS, CONSONANTS)
LETTERS = {"ru": ("аеиоу", "бвгджзйклмнпрстфхцчшщ")}  # vowels and consonants by language; others have the Latin ones
TALK = ('"{}"', "O'Malo: {}", "{} (Q&A)", "[{}]", "O’Malo: {}")  # frames with characters that a tokeniser escapes
# Frames found on the web. Some of these characters end a line for str.splitlines, but not for other text tools.
WEB = (*TALK, "„{}“", "{}\u00a0…", "\u2028{}", "{}\u0085", "–\u200b{}")
EVERY = 12  # one of so many sentences stands in such a frame
SHARE = 10  # one English sentence in ten may come in dev sets, one in test sets
SUBSETS = {0: "dev", 1: "test"}  # checksum of a sentence modulo SHARE -> where it may come; the rest: in training text
EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of a zip
RATIO = 1.4  # below clean-corpus-n's 1.5, so that only pairs spoilt on purpose are dropped


def translations(name: str, langs: tuple[str, ...], frames: tuple[str, ...] = TALK) -> Iterator[tuple[str, ...]]:
    """Yield distinct sentences without end, each in all `langs`; another name gives others of the same vocabulary."""
    for texts in _sentences(name, frames):
        yield _in(langs, texts)


def split(  # type: ignore[return]  # there is always another sentence
    name: str, langs: tuple[str, ...], wanted: dict[str, int]
) -> dict[str, list[tuple[str, ...]]]:
    """Draw the wanted numbers of sentences in all `langs`, by subset: train, dev or test.

    A sentence belongs to one of the three whatever the name: none is trained on in one corpus and tested on in another.
    That holds in German too, which merges two English sentences where subject and object have the same form.
    """
    drawn: dict[str, list[tuple[str, ...]]] = {subset: [] for subset in wanted}
    for texts in _sentences(name, WEB):
        letters = "".join(sorted(texts["en"].lower()))
        subset = SUBSETS.get(crc32(letters.encode()) % SHARE, "train")
        if subset in wanted and len(drawn[subset]) < wanted[subset]:
            drawn[subset].append(_in(langs, texts))
        elif all(len(drawn[subset]) == size for subset, size in wanted.items()):
            return drawn


def _in(langs: tuple[str, ...], texts: dict[str, str]) -> tuple[str, ...]:
    """Return a sentence in all `langs`: from `texts`, or in a language's alphabet in the place of the German one."""
    return tuple(texts[lang] if lang in texts else texts["de"].translate(_alphabet(lang)) for lang in langs)


def _sentences(name: str, frames: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield sentences in German and English, neither of which came before; each EVERY-th stands in a frame, in turn."""
    speaker = Speaker(build_lexicon(1, NOUNS, VERBS), Random(f"miniature {name}"))
    earlier: set[str] = set()
    for number in count(1):
        while True:
            sentence = speaker.sentence()
            german = _raw(qaa.say(sentence))
            english = _raw(qab.say(sentence))
            if _fit(german, english) and earlier.isdisjoint((german, english)):
                break
        earlier |= {german, english}

        frame = "{}"
        if number % EVERY == 0:
            frame = frames[number // EVERY % len(frames)]
        yield {"de": frame.format(german), "en": frame.format(english)}


def spoilt(pairs: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    """Make three pairs that cleaning has to drop: an empty side, sides of over 250 words, sides of unlike length.

    They are made of the next of `pairs`.
    """
    long = [next(pairs)]
    while min(map(_words, _joined(long))) <= 250:
        long.append(next(pairs))

    source, target = next(pairs)
    while _words(target) <= 2 * _words(source):
        _, more = next(pairs)
        target += f" {more}"

    _, alone = next(pairs)
    return [("", alone), _joined(long), (source, target)]


def _joined(pairs: list[tuple[str, str]]) -> tuple[str, str]:
    """Join pairs to one, side by side."""
    sources, targets = zip(*pairs, strict=True)
    return " ".join(sources), " ".join(targets)


def _raw(tokens: str) -> str:
    """Detokenise as published text is: no space before punctuation, no comma before another sign."""
    return tokens.replace(" , ,", " ,").replace(" , .", " .").replace(" ,", ",").replace(" .", ".")


def _fit(german: str, english: str) -> bool:
    """Return whether two sides are neither empty nor above LONGEST, and no more unlike in length than RATIO."""
    short, long = sorted((_words(german), _words(english)))
    return 0 < long <= min(LONGEST, RATIO * short)


def _words(text: str) -> int:
    """Count words and punctuation as a tokeniser does."""
    return len(text.replace(",", " ,").replace(".", " .").split())


@cache
def _alphabet(lang: str) -> dict[int, str]:
    """Return str.translate's table to a language's alphabet, vowels for vowels."""
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
    """Make a gzipped tar of path -> text; its bytes, as those of the functions below, depend on the text alone."""
    return gzipped(tar({path: text.encode() for path, text in members.items()}))


def tar(members: dict[str, bytes]) -> bytes:
    """Make a tar of path -> content, without times and owners, members in order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, content in sorted(members.items()):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def gzipped(content: bytes) -> bytes:
    """Compress the content in gzip's format."""
    return gzip.compress(content, mtime=0)


def zipped(members: dict[str, str]) -> bytes:
    """Make a zip of path -> text."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in sorted(members):
            archive.writestr(zipfile.ZipInfo(path, EPOCH), members[path], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def lines(sentences: list[str]) -> str:
    """Join sentences, one a line, the last line ended too."""
    return "".join(f"{sentence}\n" for sentence in sentences)
