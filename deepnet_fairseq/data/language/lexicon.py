"""The words of both languages, drawn once from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

ONSETS = {"qaa": ("b", "d", "f", "g", "h", "k", "kl", "kr", "m", "n", "r", "s", "sht", "t", "tr", "v", "w", "z"),
          "qab": ("b", "c", "d", "f", "g", "j", "l", "m", "n", "p", "pr", "r", "s", "t", "v", "x")}  # fmt: skip
VOWELS = {"qaa": ("a", "e", "i", "o", "u", "au", "ei"), "qab": ("a", "e", "i", "o", "u", "ia", "io")}
CODAS = {"qaa": ("", "", "l", "n", "r", "s", "k", "nd"), "qab": ("", "", "", "n", "l")}
SPELLING = (
    ("sht", "st"),
    ("kl", "cl"),
    ("kr", "cr"),
    ("au", "o"),
    ("ei", "e"),
    ("k", "c"),
    ("h", "j"),
    ("w", "u"),
    ("z", "s"),
)
SEPARABLE = (("ab", "a"), ("auf", "e"), ("mit", "co"), ("vor", "pre"))  # prefix in qaa, its trace in qab


@dataclass(frozen=True)
class Word:
    """A stem in each language."""

    qaa: str
    qab: str


@dataclass(frozen=True)
class Noun(Word):
    """gender: m, f, n, and plural suffix in qaa; animate: noun class in qab."""

    gender: str
    plural: str
    animate: bool


@dataclass(frozen=True)
class Verb(Word):
    """objects: 0, 1 (accusative) or 2 (and dative); prefix: separable in qaa, "" if none."""

    objects: int
    prefix: str


@dataclass(frozen=True)
class Preposition(Word):
    """case: what it governs in qaa, acc or dat."""

    case: str


@dataclass(frozen=True)
class Lexicon:
    """All words that sentences are made of, names apart."""

    nouns: tuple[Noun, ...]
    verbs: tuple[Verb, ...]
    adjectives: tuple[Word, ...]
    adverbs: tuple[Word, ...]
    prepositions: tuple[Preposition, ...]
    conjunctions: tuple[Word, ...]  # these send the verb of qaa to the end of its clause


def build_lexicon(seed: int, nouns: int, verbs: int) -> Lexicon:
    """A lexicon of the given numbers of nouns and verbs, and in proportion of adjectives and adverbs."""
    coin = _Coin(Random(f"lexicon {seed}"))
    random = coin.random
    return Lexicon(
        nouns=tuple(
            Noun(*coin.pair(2), random.choice("mfn"), random.choice(("en", "ar", "u")), random.random() < 0.4)
            for _ in range(nouns)
        ),
        verbs=tuple(_verb(coin, random) for _ in range(verbs)),
        adjectives=tuple(Word(*coin.pair(2)) for _ in range(max(4, nouns // 3))),
        adverbs=tuple(Word(*coin.pair(2)) for _ in range(max(4, nouns // 6))),
        prepositions=tuple(Preposition(*coin.pair(1), case) for case in ("acc", "dat") * 3),
        conjunctions=tuple(Word(*coin.pair(1)) for _ in range(4)),
    )


def _verb(coin: _Coin, random: Random) -> Verb:
    stem, translation = coin.pair(2)
    prefix, trace = random.choice(SEPARABLE) if random.random() < 0.3 else ("", "")
    return Verb(stem, trace + translation, random.choices((0, 1, 2), (2, 5, 2))[0], prefix)


class _Coin:
    """Coins words, never the same twice in a language."""

    def __init__(self, random: Random):
        self.random = random
        self.used = {"qaa": set(), "qab": set()}

    def pair(self, syllables: int) -> tuple[str, str]:
        return self._word("qaa", syllables), self._word("qab", syllables)

    def _word(self, lang: str, syllables: int) -> str:
        while (word := coin_word(self.random, lang, syllables)) in self.used[lang]:
            syllables += self.random.random() < 0.1
        self.used[lang].add(word)
        return word


def coin_word(random: Random, lang: str, syllables: int) -> str:
    """A stem of so many syllables in the sounds of qaa or qab."""
    return "".join(
        random.choice(ONSETS[lang]) + random.choice(VOWELS[lang]) + random.choice(CODAS[lang]) for _ in range(syllables)
    )


def respell(name: str) -> str:
    """A name of qaa in the spelling of qab."""
    for sound, letters in SPELLING:
        name = name.replace(sound, letters)
    return name
