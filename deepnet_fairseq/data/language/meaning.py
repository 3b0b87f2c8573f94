"""Words of both languages, drawn once from a seed, and random sentences as meanings, independent of language.

A clause is a verb and its noun phrases.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

ONSETS = {"qaa": ("b", "d", "f", "g", "h", "k", "kl", "kr", "m", "n", "r", "s", "sht", "t", "tr", "v", "w", "z"),
          "qab": ("b", "c", "d", "f", "g", "j", "l", "m", "n", "p", "pr", "r", "s", "t", "v", "x")}  # fmt: skip
VOWELS = {"qaa": ("a", "e", "i", "o", "u", "au", "ei"), "qab": ("a", "e", "i", "o", "u", "ia", "io")}
CODAS = {"qaa": ("", "", "l", "n", "r", "s", "k", "nd"), "qab": ("", "", "", "n", "l")}
SPELLING = {  # in order
    "sht": "st", "kl": "cl", "kr": "cr", "au": "o", "ei": "e", "k": "c", "h": "j", "w": "u", "z": "s",
}  # fmt: skip
SEPARABLE = (("ab", "a"), ("auf", "e"), ("mit", "co"), ("vor", "pre"))  # prefix in qaa, and its counterpart in qab
TENSES = ("present", "past", "perfect")


@dataclass(frozen=True)
class Word:
    """Word: a stem in each language."""

    qaa: str
    qab: str


@dataclass(frozen=True)
class Noun(Word):
    """Noun with its gender (m, f, n) and plural suffix in qaa, and its noun class, animate or not, in qab."""

    gender: str
    plural: str
    animate: bool


@dataclass(frozen=True)
class Verb(Word):
    """Verb with its number of objects, 0, 1 (accusative) or 2 (and dative), and its separable prefix in qaa, or ""."""

    objects: int
    prefix: str


@dataclass(frozen=True)
class Preposition(Word):
    """Preposition with the case that it governs in qaa, acc or dat."""

    case: str


@dataclass(frozen=True)
class Lexicon:
    """Lexicon of all words that sentences are made of, except names."""

    nouns: tuple[Noun, ...]
    verbs: tuple[Verb, ...]
    adjectives: tuple[Word, ...]
    adverbs: tuple[Word, ...]
    prepositions: tuple[Preposition, ...]
    conjunctions: tuple[Word, ...]  # these send the verb of qaa to the end of its clause


def build_lexicon(seed: int, nouns: int, verbs: int) -> Lexicon:
    """Draw a lexicon of the given numbers of nouns and verbs, with adjectives and adverbs in proportion."""
    random = Random(f"lexicon {seed}")
    used: set[tuple[str, str]] = set()

    def word(lang: str, syllables: int) -> str:
        """Coin a word that the language does not have yet."""
        while (coined := (lang, coin_word(random, lang, syllables))) in used:
            syllables += random.random() < 0.1
        used.add(coined)
        return coined[1]

    def pair(syllables: int) -> tuple[str, str]:
        return word("qaa", syllables), word("qab", syllables)

    def verb() -> Verb:
        stem, translation = pair(2)
        prefix, trace = random.choice(SEPARABLE) if random.random() < 0.3 else ("", "")
        return Verb(stem, trace + translation, random.choices((0, 1, 2), (2, 5, 2))[0], prefix)

    return Lexicon(
        nouns=tuple(
            Noun(*pair(2), random.choice("mfn"), random.choice(("en", "ar", "u")), random.random() < 0.4)
            for _ in range(nouns)
        ),
        verbs=tuple(verb() for _ in range(verbs)),
        adjectives=tuple(Word(*pair(2)) for _ in range(max(4, nouns // 3))),
        adverbs=tuple(Word(*pair(2)) for _ in range(max(4, nouns // 6))),
        prepositions=tuple(Preposition(*pair(1), case) for case in ("acc", "dat") * 3),
        conjunctions=tuple(Word(*pair(1)) for _ in range(4)),
    )


def coin_word(random: Random, lang: str, syllables: int) -> str:
    """Draw a stem of so many syllables in the sounds of qaa or qab."""
    return "".join(
        random.choice(ONSETS[lang]) + random.choice(VOWELS[lang]) + random.choice(CODAS[lang]) for _ in range(syllables)
    )


def respell(name: str) -> str:
    """Spell a name of qaa as in qab; the sounds are replaced in order."""
    for sound, letters in SPELLING.items():
        name = name.replace(sound, letters)
    return name


@dataclass(frozen=True)
class NounPhrase:
    """Noun phrase; count > 1 is spelled out as a numeral, a plural without count is not."""

    noun: Noun
    definite: bool
    plural: bool
    count: int = 1
    adjectives: tuple[Word, ...] = ()
    compound: Noun | None = None  # the first part of a compound whose head is `noun`
    relative: Clause | None = None  # its subject is this phrase


@dataclass(frozen=True)
class Name:
    """Name of a person: singular, and animate and masculine where a language distinguishes."""

    word: str
    plural = False


@dataclass(frozen=True)
class Pronoun:
    """Pronoun that refers to an earlier noun phrase."""

    referent: NounPhrase

    @property
    def plural(self) -> bool:
        """Return the number of the noun phrase that it refers to."""
        return self.referent.plural


@dataclass(frozen=True)
class Clause:
    """Clause: a verb and its noun phrases; objects that the verb does not take are None."""

    subject: NounPhrase | Name | Pronoun | None  # None: the relative pronoun
    verb: Verb
    tense: str
    negated: bool = False
    direct: NounPhrase | Name | None = None
    indirect: NounPhrase | Name | None = None
    adverb: Word | None = None
    place: tuple[Preposition, NounPhrase] | None = None
    topic: str = "subject"  # first part of a main clause in qaa


@dataclass(frozen=True)
class Sentence:
    """Sentence: a main clause; each further clause follows "and" (conjunction None) or a subordinating conjunction."""

    main: Clause
    rest: tuple[tuple[Word | None, Clause], ...] = ()


class Speaker:
    """Source of random sentences as long as those of talks: mean about 15 words, a long tail up to about 60."""

    def __init__(self, lexicon: Lexicon, random: Random):
        self.lexicon, self.random = lexicon, random

    def sentence(self) -> Sentence:
        """Draw the next sentence; the same lexicon and random state give the same sentences."""
        main = self._clause()
        rest, before = [], main
        while len(rest) < 4 and self._chance(0.4):
            conjunction = self.random.choice(self.lexicon.conjunctions) if self._chance(0.6) else None
            taken_up = before.subject if isinstance(before.subject, NounPhrase) and self._chance(0.5) else None
            before = self._clause(Pronoun(taken_up) if taken_up else None)
            rest.append((conjunction, before))
        return Sentence(main, tuple(rest))

    def _clause(self, subject: Pronoun | None = None) -> Clause:
        choice = self.random.choice
        verb = choice(self.lexicon.verbs)
        parts = {
            "subject": subject or self._participant(relative=0.12),
            "direct": self._participant(relative=0.08) if verb.objects else None,
            "indirect": self._participant() if verb.objects == 2 else None,
            "adverb": choice(self.lexicon.adverbs) if self._chance(0.35) else None,
            "place": (choice(self.lexicon.prepositions), self._thing()) if self._chance(0.3) else None,
        }
        topic = choice([name for name, part in parts.items() if part]) if self._chance(0.4) else "subject"
        return Clause(**parts, verb=verb, tense=choice(TENSES), negated=self._chance(0.12), topic=topic)

    def _participant(self, relative: float = 0.0) -> NounPhrase | Name:
        if self._chance(0.12):
            return Name(coin_word(self.random, "qaa", self.random.choice((2, 2, 3))).capitalize())
        return self._thing(relative)

    def _thing(self, relative: float = 0.0) -> NounPhrase:
        choice, adjectives = self.random.choice, self.lexicon.adjectives
        count = self.random.randint(2, 99) if self._chance(0.1) else 1
        return NounPhrase(
            noun=choice(self.lexicon.nouns),
            definite=self._chance(0.6),
            plural=count > 1 or self._chance(0.25),
            count=count,
            adjectives=tuple(choice(adjectives) for _ in range(self.random.choices((0, 1, 2), (6, 3, 1))[0])),
            compound=choice(self.lexicon.nouns) if self._chance(0.1) else None,
            relative=self._relative() if self._chance(relative) else None,
        )

    def _relative(self) -> Clause:
        verb = self.random.choice([verb for verb in self.lexicon.verbs if verb.objects < 2])
        return Clause(None, verb, self.random.choice(TENSES), direct=self._thing() if verb.objects else None)

    def _chance(self, probability: float) -> bool:
        return self.random.random() < probability
