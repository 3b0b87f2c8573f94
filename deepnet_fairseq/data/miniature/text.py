"""Sentences of the embedded language as raw text, in as many languages as are asked for.

English is qab and German is qaa; every other language is qaa in an alphabet of its own, so that all say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from random import Random

from ..language import qaa, qab
from ..language.lexicon import build_lexicon
from ..language.meaning import Speaker

NOUNS, VERBS = 20, 10  # few enough for a narrow model to learn in some hundred updates
VOWELS, CONSONANTS = "aeiou", "bcdfghjklmnpqrstvwxyz"
LATIN = (VOWELS, CONSONANTS)
LETTERS = {"ru": ("аеиоу", "бвгджзйклмнпрстфхцчшщ")}  # vowels and consonants; the others have the Latin ones
TALK = ('"{}"', "O'Malo: {}", "{} (Q&A)", "[{}]", "O’Malo: {}")  # what a tokeniser escapes
# What the web holds. Some of these characters end a line for str.splitlines, though for no tool of the trade.
WEB = (*TALK, "„{}“", "{}\u00a0…", "\u2028{}", "{}\u0085", "–\u200b{}")
EVERY = 12  # this many sentences have one among them that stands in such a frame
RATIO = 1.4  # below clean-corpus-n's 1.5, so that only what is spoilt on purpose is dropped


def translations(name: str, langs: tuple[str, ...], frames: tuple[str, ...] = TALK) -> Iterator[tuple[str, ...]]:
    """Endless distinct sentences, each in all `langs`; another name draws others of the same vocabulary."""
    for number, texts in enumerate(_sentences(Random(f"miniature {name}"))):
        turn, rest = divmod(number + 1, EVERY)
        frame = "{}" if rest else frames[turn % len(frames)]
        yield tuple(frame.format(texts[lang] if lang in texts else _respelt(texts["de"], lang)) for lang in langs)


def _sentences(random: Random) -> Iterator[dict[str, str]]:
    """German and English, neither said before."""
    speaker = Speaker(build_lexicon(1, NOUNS, VERBS), random)
    seen: set[str] = set()
    while True:
        sentence = speaker.sentence()
        german, english = _raw(qaa.say(sentence)), _raw(qab.say(sentence))
        if _similar(german, english) and seen.isdisjoint((german, english)):
            seen |= {german, english}
            yield {"de": german, "en": english}


def spoilt(pairs: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    """Three pairs that cleaning has to drop: an empty side, sides of over 250 words, sides of unlike length."""
    long = [next(pairs)]
    while min(map(_words, _joined(long))) <= 250:
        long.append(next(pairs))
    source, target = next(pairs)
    while _words(target) <= 2 * _words(source):
        target += f" {next(pairs)[1]}"
    return [("", next(pairs)[1]), _joined(long), (source, target)]


def _joined(pairs: list[tuple[str, str]]) -> tuple[str, str]:
    return tuple(map(" ".join, zip(*pairs, strict=True)))


def _raw(tokens: str) -> str:
    """As published: no space before punctuation, no comma before another sign."""
    return tokens.replace(" , ,", " ,").replace(" , .", " .").replace(" ,", ",").replace(" .", ".")


def _similar(one: str, other: str) -> bool:
    lengths = _words(one), _words(other)
    return max(lengths) <= RATIO * min(lengths)


def _words(text: str) -> int:
    """Words and punctuation, as a tokeniser counts them."""
    return len(text.replace(",", " ,").replace(".", " .").split())


def _respelt(text: str, lang: str) -> str:
    return text.translate(_alphabet(lang))


@cache
def _alphabet(lang: str) -> dict[int, str]:
    """A letter for each letter, vowels for vowels; str.translate's table."""
    random = Random(f"alphabet {lang}")
    vowels, consonants = ("".join(random.sample(letters, len(letters))) for letters in LETTERS.get(lang, LATIN))
    small = dict(zip(VOWELS + CONSONANTS, vowels + consonants, strict=True))
    return str.maketrans(small | {letter.upper(): other.upper() for letter, other in small.items()})
