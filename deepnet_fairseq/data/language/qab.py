"""Target language: subject, verb, object; adjectives after nouns; two noun classes, no case."""

from __future__ import annotations

from .meaning import Clause, Name, NounPhrase, Pronoun, Sentence, Verb, respell

ARTICLES = {  # (definite, animate) -> singular, plural
    (True, True): ("lo", "los"),
    (True, False): ("ta", "tas"),
    (False, True): ("nu", ""),
    (False, False): ("na", ""),
}
PRONOUNS = {True: ("elo", "elos"), False: ("eta", "etas")}
AGREEMENT = {"present": ("a", "an"), "past": ("ava", "avan"), "perfect": ("ada", "adan")}  # singular, plural
UNITS = ("", "uno", "duo", "tre", "catro", "cinco", "ses", "sete", "oto", "nove")


def say(sentence: Sentence) -> str:
    """Say the sentence in qab, tokenised."""
    words = clause_words(sentence.main)
    for conjunction, clause in sentence.rest:
        words += ["," if conjunction else "e"] + ([conjunction.qab] if conjunction else []) + clause_words(clause)
    return " ".join([words[0][0].upper() + words[0][1:]] + words[1:] + ["."])


def clause_words(clause: Clause, head: NounPhrase | None = None) -> list[str]:
    """Order a clause: subject, negation, verb, direct, indirect object, place, adverb. head: of a relative clause."""
    subject = clause.subject or head
    words = [] if head else phrase(subject)
    words += ["non"] * clause.negated + [finite(clause.verb, clause.tense, subject.plural)]
    if clause.direct is not None:
        words += phrase(clause.direct)
    if clause.indirect is not None:
        words += ["a"] + phrase(clause.indirect)
    if clause.place is not None:
        preposition, thing = clause.place
        words += [preposition.qab] + phrase(thing)
    return words + ([clause.adverb.qab + "me"] if clause.adverb else [])


def finite(verb: Verb, tense: str, plural: bool) -> str:
    """Conjugate the verb in one of TENSES, which qab forms by an ending."""
    return verb.qab + AGREEMENT[tense][plural]


def phrase(thing: NounPhrase | Name | Pronoun) -> list[str]:
    """Say a noun phrase, name or pronoun; there are no cases."""
    if isinstance(thing, Name):
        return [respell(thing.word.lower()).capitalize()]
    if isinstance(thing, Pronoun):
        return [PRONOUNS[thing.referent.noun.animate][thing.plural]]
    article = ARTICLES[thing.definite, thing.noun.animate][thing.plural]
    words = [article] if article else []
    if thing.count > 1:
        words += numeral(thing.count)
    words.append(thing.noun.qab + ("s" if thing.plural else ""))
    if thing.compound is not None:
        words += ["de", thing.compound.qab]
    ending = ("o" if thing.noun.animate else "e") + ("s" if thing.plural else "")
    words += [adjective.qab + ending for adjective in thing.adjectives]
    if thing.relative is not None:
        words += ["que"] + clause_words(thing.relative, head=thing)
    return words


def numeral(number: int) -> list[str]:
    """Spell a number in two words, tens before units: 23 is duonta tre."""
    tens, units = divmod(number, 10)
    return ([UNITS[tens] + "nta"] if tens else []) + ([UNITS[units]] if units else [])
