"""Say sentences in the target language, qab: subject, verb, object; adjectives after nouns; two noun classes, no case.

The noun classes are animate and inanimate. A sentence is a list of words until `say` joins them. Where a pair holds a
singular and a plural form, "plural", a bool, is the index.
"""

from __future__ import annotations

from .meaning import Clause, Name, NounPhrase, Pronoun, Sentence, Verb, respell

ARTICLES = {  # (definite, animate) -> article in singular, plural
    (True, True): ("lo", "los"),
    (True, False): ("ta", "tas"),
    (False, True): ("nu", ""),
    (False, False): ("na", ""),
}
PRONOUNS = {True: ("elo", "elos"), False: ("eta", "etas")}  # animate -> pronoun in singular, plural
# tense -> ending of a verb in singular, plural
AGREEMENT = {"present": ("a", "an"), "past": ("ava", "avan"), "perfect": ("ada", "adan")}
UNITS = ("", "uno", "duo", "tre", "catro", "cinco", "ses", "sete", "oto", "nove")  # numerals 1 to 9


def say(sentence: Sentence) -> str:
    """Return the sentence in qab, with blanks between words and punctuation."""
    words = clause_words(sentence.main)
    for conjunction, clause in sentence.rest:
        if conjunction is None:
            words.append("e")  # and
        else:
            words += [",", conjunction.qab]
        words += clause_words(clause)
    first = words[0]
    words[0] = first[0].upper() + first[1:]  # str.capitalize would change the other letters too
    return " ".join([*words, "."])


def clause_words(clause: Clause, head: NounPhrase | None = None) -> list[str]:
    """Return the words of a clause: subject, negation, verb, direct object, indirect object, place, adverb.

    head: for a relative clause, the noun phrase that it belongs to, which is its subject and not said again; None for
        other clauses
    """
    subject = clause.subject or head  # a relative clause has no subject of its own
    words = [] if head else phrase(subject)
    if clause.negated:
        words.append("non")
    words.append(finite(clause.verb, clause.tense, subject.plural))
    if clause.direct is not None:
        words += phrase(clause.direct)
    if clause.indirect is not None:
        words += ["a"] + phrase(clause.indirect)  # to
    if clause.place is not None:
        preposition, noun_phrase = clause.place
        words += [preposition.qab] + phrase(noun_phrase)
    if clause.adverb is not None:
        words.append(clause.adverb.qab + "me")
    return words


def finite(verb: Verb, tense: str, plural: bool) -> str:
    """Return the verb with its ending for a tense, one of TENSES, and for a singular or plural subject."""
    return verb.qab + AGREEMENT[tense][plural]


def phrase(thing: NounPhrase | Name | Pronoun) -> list[str]:
    """Return the words of a noun phrase, name or pronoun: article, numeral, noun, adjectives and so on."""
    if isinstance(thing, Name):
        return [respell(thing.word.lower()).capitalize()]
    if isinstance(thing, Pronoun):
        return [PRONOUNS[thing.referent.noun.animate][thing.plural]]

    article = ARTICLES[thing.definite, thing.noun.animate][thing.plural]
    words = [article] if article else []
    if thing.count > 1:
        words += numeral(thing.count)

    plural_ending = "s" if thing.plural else ""
    words.append(thing.noun.qab + plural_ending)
    if thing.compound is not None:
        words += ["de", thing.compound.qab]  # of
    class_ending = "o" if thing.noun.animate else "e"
    words += [adjective.qab + class_ending + plural_ending for adjective in thing.adjectives]
    if thing.relative is not None:
        # who, which
        words += ["que"] + clause_words(thing.relative, head=thing)
    return words


def numeral(number: int) -> list[str]:
    """Return a number from 1 to 99 as up to two words, tens before units: 23 is duonta tre."""
    tens, units = divmod(number, 10)
    words = []
    if tens:
        words.append(UNITS[tens] + "nta")
    if units:
        words.append(UNITS[units])
    return words
