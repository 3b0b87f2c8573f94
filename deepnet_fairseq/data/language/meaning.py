"""Words of both artificial languages, drawn once from a seed, and random sentences in a form without a language.

Such a sentence consists of clauses, and a clause of a verb and its noun phrases; qaa.py and qab.py say it in a
language. A word has a stem in each language, to which the language adds its endings.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

# A syllable is an onset, a vowel and a coda; a sound that stands twice is drawn twice as often.
ONSETS = {"qaa": ("b", "d", "f", "g", "h", "k", "kl", "kr", "m", "n", "r", "s", "sht", "t", "tr", "v", "w", "z"),
          "qab": ("b", "c", "d", "f", "g", "j", "l", "m", "n", "p", "pr", "r", "s", "t", "v", "x")}  # fmt: skip
VOWELS = {"qaa": ("a", "e", "i", "o", "u", "au", "ei"), "qab": ("a", "e", "i", "o", "u", "ia", "io")}
CODAS = {"qaa": ("", "", "l", "n", "r", "s", "k", "nd"), "qab": ("", "", "", "n", "l")}
SPELLING = {  # sound of qaa -> its letters in qab; they are replaced in this order
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
    """Draw a lexicon of the given numbers of nouns and verbs, with adjectives and adverbs in proportion.

    The order of the draws decides which lexicon a seed gives.
    """
    random = Random(f"lexicon {seed}")
    used: set[tuple[str, str]] = set()

    def word(lang: str, syllables: int) -> str:
        """Coin a stem that the language does not have yet; it is longer if too many short ones are taken."""
        while (coined := (lang, coin_word(random, lang, syllables))) in used:
            syllables += random.random() < 0.1
        used.add(coined)
        return coined[1]

    def pair(syllables: int) -> tuple[str, str]:
        """Coin a stem in qaa, and its translation in qab."""
        return word("qaa", syllables), word("qab", syllables)

    def noun() -> Noun:
        stem, translation = pair(2)
        gender = random.choice("mfn")
        plural = random.choice(("en", "ar", "u"))
        return Noun(stem, translation, gender, plural, animate=random.random() < 0.4)

    def verb() -> Verb:
        stem, translation = pair(2)
        prefix, qab_prefix = random.choice(SEPARABLE) if random.random() < 0.3 else ("", "")
        objects = random.choices((0, 1, 2), weights=(2, 5, 2))[0]
        return Verb(stem, qab_prefix + translation, objects, prefix)

    return Lexicon(
        nouns=tuple(noun() for _ in range(nouns)),
        verbs=tuple(verb() for _ in range(verbs)),
        adjectives=tuple(Word(*pair(2)) for _ in range(max(4, nouns // 3))),
        adverbs=tuple(Word(*pair(2)) for _ in range(max(4, nouns // 6))),
        prepositions=tuple(Preposition(*pair(1), case) for case in ("acc", "dat") * 3),
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
    count: a count above 1 is said as a numeral; a plural of the count 1 has no numeral
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

    subject: None in a relative clause, where it is the relative pronoun
    tense: one of TENSES
    direct, indirect: the objects, None if the verb does not take them
    topic: the field whose part stands first in a main clause of qaa
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

    rest: (conjunction, clause) of each further clause: a subordinating conjunction, or None for "and", behind which
        there is another main clause
    """

    main: Clause
    rest: tuple[tuple[Word | None, Clause], ...] = ()


class Speaker:
    """Source of random sentences, whose lengths are like those in talks: 15 words in the mean, and up to about 60.

    The probabilities in its methods give these lengths. The order of the draws decides which sentences a seed gives.
    """

    def __init__(self, lexicon: Lexicon, random: Random):
        self.lexicon = lexicon
        self.random = random

    def sentence(self) -> Sentence:
        """Draw the next sentence; the same lexicon and random state give the same sentences."""
        main = self._clause()
        rest = []
        previous = main
        while len(rest) < 4 and self._chance(0.4):
            conjunction = self.random.choice(self.lexicon.conjunctions) if self._chance(0.6) else None
            pronoun = None  # for the subject of the clause before
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
        """Draw a name or a noun phrase; relative: probability that the noun phrase has a relative clause."""
        if self._chance(0.12):
            return Name(coin_word(self.random, "qaa", self.random.choice((2, 2, 3))).capitalize())
        return self._thing(relative)

    def _thing(self, relative: float = 0.0) -> NounPhrase:
        """Draw a noun phrase; relative: probability that it has a relative clause."""
        choice = self.random.choice
        adjectives = self.lexicon.adjectives
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
        """Draw a relative clause."""
        verb = self.random.choice([verb for verb in self.lexicon.verbs if verb.objects < 2])
        return Clause(None, verb, self.random.choice(TENSES), direct=self._thing() if verb.objects else None)

    def _chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self.random.random() < probability
