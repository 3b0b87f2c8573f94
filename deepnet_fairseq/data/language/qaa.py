"""Say sentences in the source language, qaa: verb second or last, separable verbs, gender and case.

Cases are "nom" (nominative), "acc" (accusative) and "dat" (dative). A sentence is a list of words until `say` joins
them.
"""

from __future__ import annotations

from .meaning import Clause, Name, NounPhrase, Pronoun, Sentence, Verb

ENDINGS = {  # case -> gender, or pl for plural -> ending of determiners and adjectives
    "nom": {"m": "ok", "f": "a", "n": "em", "pl": "i"},
    "acc": {"m": "on", "f": "a", "n": "em", "pl": "i"},
    "dat": {"m": "ul", "f": "ur", "n": "ul", "pl": "im"},
}
# tense -> ending of a finite verb in [singular, plural]; "plural", a bool, is the index
AGREEMENT = {"present": ("et", "on"), "past": ("ite", "iton")}
UNITS = ("", "ein", "dva", "tri", "fir", "pem", "sek", "sib", "okt", "nen")  # numerals 1 to 9
CASES = {"subject": "nom", "direct": "acc", "indirect": "dat"}  # field of a clause -> case of what is in it
MIDDLE_FIELD = ("subject", "indirect", "direct", "adverb", "place")  # order of the fields behind or before the verb


def say(sentence: Sentence) -> str:
    """Return the sentence in qaa, with blanks between words and punctuation."""
    words = main_clause(sentence.main)
    for conjunction, clause in sentence.rest:
        if conjunction is None:
            words += [",", "und"] + main_clause(clause)
        else:
            words += [",", conjunction.qaa] + subordinate_clause(clause)
    first = words[0]
    words[0] = first[0].upper() + first[1:]  # str.capitalize would change the other letters too
    return " ".join([*words, "."])


def main_clause(clause: Clause) -> list[str]:
    """Return the words of a main clause.

    Their order is: the topic (the field that is said first), finite verb, other fields, negation, rest of the verb.
    """
    parts = _parts(clause)
    finite, remainder = _finite_and_remainder(clause.verb, clause.tense, clause.subject.plural)
    words = [*parts.pop(clause.topic), finite]
    words += _middle_field(parts)
    if clause.negated:
        words.append("nit")
    return words + remainder


def subordinate_clause(clause: Clause, plural: bool | None = None) -> list[str]:
    """Return the words of a subordinate clause: all fields, negation, the whole verb.

    plural: for a relative clause, whether its subject, the noun phrase that it belongs to, is plural; None for other
        clauses, which have a subject of their own
    """
    if plural is None:
        plural = clause.subject.plural
    finite, remainder = _finite_and_remainder(clause.verb, clause.tense, plural)
    words = _middle_field(_parts(clause))
    if clause.negated:
        words.append("nit")
    if clause.tense == "perfect":
        return [*words, *remainder, finite]
    return [*words, "".join(remainder) + finite]  # a separable prefix rejoins its verb


def _middle_field(parts: dict[str, list[str]]) -> list[str]:
    """Return the words of the given fields, in the order of MIDDLE_FIELD."""
    words = []
    for field in MIDDLE_FIELD:
        words += parts.get(field, [])
    return words


def _parts(clause: Clause) -> dict[str, list[str]]:
    """Return field of the clause, as "subject" -> its words, for those fields that are not empty."""
    parts = {}
    for field, case in CASES.items():
        thing = getattr(clause, field)
        if thing is not None:
            parts[field] = phrase(thing, case)
    if clause.adverb is not None:
        parts["adverb"] = [clause.adverb.qaa]
    if clause.place is not None:
        preposition, noun_phrase = clause.place
        parts["place"] = [preposition.qaa] + phrase(noun_phrase, preposition.case)
    return parts


def _finite_and_remainder(verb: Verb, tense: str, plural: bool) -> tuple[str, list[str]]:
    """Return (the finite verb, the remaining parts of the verb): a participle, a separable prefix, or nothing.

    plural: whether the subject is plural
    """
    if tense == "perfect":  # the auxiliary "hav", and a participle
        participle = f"{verb.prefix}bi{verb.qaa}t"
        return "hav" + AGREEMENT["present"][plural], [participle]
    remainder = [verb.prefix] if verb.prefix else []
    return verb.qaa + AGREEMENT[tense][plural], remainder


def phrase(thing: NounPhrase | Name | Pronoun, case: str) -> list[str]:
    """Return the words of a noun phrase, name or pronoun in a case: numeral, adjectives and so on in their order."""
    if isinstance(thing, Name):
        return [thing.word]
    if isinstance(thing, Pronoun):
        return ["es" + _ending(thing.referent, case)]  # he, she, it, they

    ending = _ending(thing, case)
    words = []
    if thing.definite:
        words.append("z" + ending)  # the
    elif not thing.plural:
        words.append("un" + ending)  # a
    if thing.count > 1:
        words.append(numeral(thing.count))
    words += [adjective.qaa + ending for adjective in thing.adjectives]

    stem = thing.noun.qaa
    if thing.compound is not None:
        stem = f"{thing.compound.qaa}s{stem}"
    plural_ending = thing.noun.plural if thing.plural else ""
    words.append(stem.capitalize() + plural_ending)
    if thing.relative is not None:
        pronoun = "z" + _ending(thing, "nom")  # who, which
        words += [",", pronoun, *subordinate_clause(thing.relative, thing.plural), ","]
    return words


def _ending(thing: NounPhrase, case: str) -> str:
    """Return the ending of determiners and adjectives of a noun phrase."""
    return ENDINGS[case]["pl" if thing.plural else thing.noun.gender]


def numeral(number: int) -> str:
    """Return a number from 1 to 99 as one word, units before tens: 23 is triunddvazig."""
    tens, units = divmod(number, 10)
    if not tens:
        return UNITS[units]
    units_word = f"{UNITS[units]}und" if units else ""
    return f"{units_word}{UNITS[tens]}zig"
