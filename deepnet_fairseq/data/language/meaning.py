"""Words of both artificial languages, drawn once from a seed, and random sentences in a form without a language.

Such a sentence consists of clauses, and a clause of a verb and its noun phrases; qaa.py and qab.py say it in a
language. A word has a stem in each language, to which the language adds its endings.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

# A syllable is an onset, a vowel and a coda; a sound that stands twice is drawn twice as often.
ONSETS = {"qaa": ("b", "d", "f", "g", "h", "k", "kl", "kr", "m", "n", "r", "s", "sht", "t", "tr", "v", "w", "z"),
          "qab": ("b", "c", "d", "f", "g", "j", "l", "m", "n", "p", "pr", "r", "s", "t", "v", "x")}  # fmt: skip
VOWELS = {"qaa": ("a", "e", "i", "o", "u", "au", "ei"), "qab": ("a", "e", "i", "o", "u", "ia", "io")}
CODAS = {"qaa": ("", "", "l", "n", "r", "s", "k", "nd"), "qab": ("", "", "", "n", "l")}
SPELLING = {  # sound of qaa -> its letters in qab; in a name they are replaced in this order
    "sht": "st", "kl": "cl", "kr": "cr", "au": "o", "ei": "e", "k": "c", "h": "j", "w": "u", "z": "s",
}  # fmt: skip
SEPARABLE = (("ab", "a"), ("auf", "e"), ("mit", "co"), ("vor", "pre"))  # verbs' separable prefix in qaa, prefix in qab
TENSES = ("present", "past", "perfect")


@dataclass(frozen=True)
class Word:
    """Word: a stem in each language."""

    qaa: str
    qab: str


@dataclass(frozen=True)
class Noun(Word):
    """Noun.

    gender: in qaa, "m", "f" or "n"
    plural: its ending in the plural in qaa
    animate: its noun class in qab, animate or inanimate
    """

    gender: str
    plural: str
    animate: bool


@dataclass(frozen=True)
class Verb(Word):
    """Verb.

    objects: how many it takes: 0, 1 (a direct object) or 2 (a direct and an indirect one)
    prefix: its separable prefix in qaa, "" if it has none
    """

    objects: int
    prefix: str


@dataclass(frozen=True)
class Preposition(Word):
    """Preposition; case: that of its noun phrase in qaa, "acc" (accusative) or "dat" (dative)."""

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
    """Draw a lexicon of the given numbers of nouns and verbs, with adjectives and adverbs in proportion.

    Each draw changes those after it, so their order, too, decides which lexicon a seed gives.
    """
    random = Random(f"lexicon {seed}")
    used: set[tuple[str, str]] = set()  # (language, stem)

    def word(lang: str, syllables: int) -> str:
        """Coin a stem that the language does not have yet."""
        stem = coin_word(random, lang, syllables)
        while (lang, stem) in used:
            if random.random() < 0.1:  # now and then try a longer one, for the short ones may all be used
                syllables += 1
            stem = coin_word(random, lang, syllables)
        used.add((lang, stem))
        return stem

    def pair(syllables: int) -> tuple[str, str]:
        """Coin a stem in qaa, and its translation in qab; return both."""
        return word("qaa", syllables), word("qab", syllables)

    def noun() -> Noun:
        stem, translation = pair(2)
        gender = random.choice("mfn")
        plural = random.choice(("en", "ar", "u"))
        return Noun(stem, translation, gender, plural, animate=random.random() < 0.4)

    def verb() -> Verb:
        stem, translation = pair(2)
        prefix = qab_prefix = ""
        if random.random() < 0.3:
            prefix, qab_prefix = random.choice(SEPARABLE)
        objects = random.choices((0, 1, 2), weights=(2, 5, 2))[0]
        return Verb(stem, qab_prefix + translation, objects, prefix)

    return Lexicon(
        nouns=tuple(noun() for _ in range(nouns)),
        verbs=tuple(verb() for _ in range(verbs)),
        adjectives=tuple(Word(*pair(2)) for _ in range(max(4, nouns // 3))),
        adverbs=tuple(Word(*pair(2)) for _ in range(max(4, nouns // 6))),
        prepositions=tuple(Preposition(*pair(1), case) for case in ("acc", "dat") * 3),  # three of each
        conjunctions=tuple(Word(*pair(1)) for _ in range(4)),
    )


def coin_word(random: Random, lang: str, syllables: int) -> str:
    """Draw a stem of so many syllables in the sounds of `lang`, qaa or qab."""
    stem = ""
    for _ in range(syllables):
        stem += random.choice(ONSETS[lang]) + random.choice(VOWELS[lang]) + random.choice(CODAS[lang])
    return stem


def respell(name: str) -> str:
    """Return a name of qaa, in lower case, spelled as in qab."""
    for sound, letters in SPELLING.items():
        name = name.replace(sound, letters)
    return name


@dataclass(frozen=True)
class NounPhrase:
    """Noun phrase.

    definite: whether it has the definite article
    plural: whether it is in the plural
    count: number that is said as a numeral if it is above 1; 1 for a singular, and for a plural without a numeral
    compound: the first part of a compound whose head is `noun`, or None
    relative: a relative clause whose subject is this phrase, or None
    """

    noun: Noun
    definite: bool
    plural: bool
    count: int = 1
    adjectives: tuple[Word, ...] = ()
    compound: Noun | None = None
    relative: Clause | None = None


@dataclass(frozen=True)
class Name:
    """Name of a person in qaa, which is always singular."""

    word: str
    plural = False


@dataclass(frozen=True)
class Pronoun:
    """Pronoun that refers to an earlier noun phrase."""

    referent: NounPhrase

    @property
    def plural(self) -> bool:
        """Whether the noun phrase that it refers to is plural."""
        return self.referent.plural


@dataclass(frozen=True)
class Clause:
    """Clause: a verb and its noun phrases.

    subject: None in a relative clause, where the noun phrase that it belongs to is the subject
    tense: one of TENSES
    direct, indirect: the objects, None if the verb does not take them
    place: (preposition, its noun phrase), or None
    topic: name of the field that is said first in a main clause of qaa: "subject", "direct", "indirect", "adverb" or
        "place"
    """

    subject: NounPhrase | Name | Pronoun | None
    verb: Verb
    tense: str
    negated: bool = False
    direct: NounPhrase | Name | None = None
    indirect: NounPhrase | Name | None = None
    adverb: Word | None = None
    place: tuple[Preposition, NounPhrase] | None = None
    topic: str = "subject"


@dataclass(frozen=True)
class Sentence:
    """Sentence: a main clause, and further clauses.

    rest: (conjunction, clause) of each further clause. After a subordinating conjunction it is a subordinate clause;
        None stands for "and", after which it is another main clause.
    """

    main: Clause
    rest: tuple[tuple[Word | None, Clause], ...] = ()


class Speaker:
    """Source of random sentences, whose lengths are like those in talks.

    They have 15 words in the mean, and one in 1,000 has more than 60; the probabilities in the methods give this. Each
    draw changes those after it, so their order, too, decides which sentences a seed gives.
    """

    def __init__(self, lexicon: Lexicon, random: Random):
        self.lexicon = lexicon
        self.random = random

    def sentence(self) -> Sentence:
        """Draw the next sentence: a main clause and up to four further clauses.

        The same lexicon and random state give the same sentences.
        """
        main = self._clause()
        rest = []
        previous = main
        while len(rest) < 4 and self._chance(0.4):
            conjunction = None  # "and"
            if self._chance(0.6):
                conjunction = self.random.choice(self.lexicon.conjunctions)
            pronoun = None  # for the subject of the clause before; half of those that are noun phrases get one
            if isinstance(previous.subject, NounPhrase) and self._chance(0.5):
                pronoun = Pronoun(previous.subject)
            clause = self._clause(pronoun)
            rest.append((conjunction, clause))
            previous = clause
        return Sentence(main, tuple(rest))

    def _clause(self, subject: Pronoun | None = None) -> Clause:
        """Draw a clause; subject: its subject, None to draw that too."""
        choice = self.random.choice
        verb = choice(self.lexicon.verbs)
        parts: dict[str, Any] = {}  # field of Clause -> its part, for those that the clause has
        parts["subject"] = subject or self._participant(relative=0.12)
        if verb.objects:
            parts["direct"] = self._participant(relative=0.08)
        if verb.objects == 2:
            parts["indirect"] = self._participant()
        if self._chance(0.35):
            parts["adverb"] = choice(self.lexicon.adverbs)
        if self._chance(0.3):
            parts["place"] = (choice(self.lexicon.prepositions), self._noun_phrase())

        topic = "subject"
        if self._chance(0.4):
            topic = choice(list(parts))
        return Clause(**parts, verb=verb, tense=choice(TENSES), negated=self._chance(0.12), topic=topic)

    def _participant(self, relative: float = 0.0) -> NounPhrase | Name:
        """Draw a name or a noun phrase; relative: probability that the noun phrase has a relative clause."""
        if self._chance(0.12):
            syllables = self.random.choice((2, 2, 3))
            return Name(coin_word(self.random, "qaa", syllables).capitalize())
        return self._noun_phrase(relative)

    def _noun_phrase(self, relative: float = 0.0) -> NounPhrase:
        """Draw a noun phrase; relative: probability that it has a relative clause."""
        choice = self.random.choice
        count = self.random.randint(2, 99) if self._chance(0.1) else 1
        noun = choice(self.lexicon.nouns)
        definite = self._chance(0.6)
        plural = count > 1 or self._chance(0.25)
        (number_of_adjectives,) = self.random.choices((0, 1, 2), weights=(6, 3, 1))
        adjectives = tuple(choice(self.lexicon.adjectives) for _ in range(number_of_adjectives))
        compound = choice(self.lexicon.nouns) if self._chance(0.1) else None
        clause = self._relative() if self._chance(relative) else None
        return NounPhrase(noun, definite, plural, count, adjectives, compound, clause)

    def _relative(self) -> Clause:
        """Draw a relative clause, of a verb with at most a direct object."""
        verb = self.random.choice([verb for verb in self.lexicon.verbs if verb.objects < 2])
        tense = self.random.choice(TENSES)
        direct = self._noun_phrase() if verb.objects else None
        return Clause(None, verb, tense, direct=direct)

    def _chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.random.random() < probability
