"""Source language: verb second or last, separable verbs, gender and case."""

from __future__ import annotations

from .meaning import Clause, Name, NounPhrase, Pronoun, Sentence, Verb

ENDINGS = {  # endings of determiners and adjectives
    "nom": {"m": "ok", "f": "a", "n": "em", "pl": "i"},
    "acc": {"m": "on", "f": "a", "n": "em", "pl": "i"},
    "dat": {"m": "ul", "f": "ur", "n": "ul", "pl": "im"},
}
AGREEMENT = {"present": ("et", "on"), "past": ("ite", "iton")}  # singular, plural
UNITS = ("", "ein", "dva", "tri", "fir", "pem", "sek", "sib", "okt", "nen")
CASES = {"subject": "nom", "direct": "acc", "indirect": "dat"}
MIDDLE_FIELD = ("subject", "indirect", "direct", "adverb", "place")


def say(sentence: Sentence) -> str:
    """Say the sentence in qaa, tokenised."""
    words = main_clause(sentence.main)
    for conjunction, clause in sentence.rest:
        if conjunction is None:
            words += [",", "und"] + main_clause(clause)
        else:
            words += [",", conjunction.qaa] + subordinate_clause(clause)
    return " ".join([words[0][0].upper() + words[0][1:]] + words[1:] + ["."])


def main_clause(clause: Clause) -> list[str]:
    """Order a main clause: topic, finite verb, other parts, negation, remaining parts of the verb."""
    parts = _parts(clause)
    finite, remainder = _finite_and_remainder(clause.verb, clause.tense, clause.subject.plural)
    words = parts.pop(clause.topic) + [finite]
    words += [word for name in MIDDLE_FIELD for word in parts.get(name, ())]
    return words + ["nit"] * clause.negated + remainder


def subordinate_clause(clause: Clause, plural: bool | None = None) -> list[str]:
    """Order a subordinate clause: all parts, negation, the whole verb. plural: number of a relative clause's head."""
    parts = _parts(clause)
    plural = clause.subject.plural if plural is None else plural
    finite, remainder = _finite_and_remainder(clause.verb, clause.tense, plural)
    words = [word for name in MIDDLE_FIELD for word in parts.get(name, ())] + ["nit"] * clause.negated
    if clause.tense == "perfect":
        return words + remainder + [finite]
    return words + ["".join(remainder) + finite]  # a separable prefix rejoins its verb


def _parts(clause: Clause) -> dict[str, list[str]]:
    things = {name: getattr(clause, name) for name in CASES}
    parts = {name: phrase(thing, CASES[name]) for name, thing in things.items() if thing is not None}
    if clause.adverb is not None:
        parts["adverb"] = [clause.adverb.qaa]
    if clause.place is not None:
        preposition, thing = clause.place
        parts["place"] = [preposition.qaa] + phrase(thing, preposition.case)
    return parts


def _finite_and_remainder(verb: Verb, tense: str, plural: bool) -> tuple[str, list[str]]:
    if tense == "perfect":
        return "hav" + AGREEMENT["present"][plural], [f"{verb.prefix}bi{verb.qaa}t"]
    return verb.qaa + AGREEMENT[tense][plural], [verb.prefix] if verb.prefix else []


def phrase(thing: NounPhrase | Name | Pronoun, case: str) -> list[str]:
    """Say a noun phrase, name or pronoun in nom, acc or dat."""
    if isinstance(thing, Name):
        return [thing.word]
    if isinstance(thing, Pronoun):
        return ["es" + _ending(thing.referent, case)]
    ending = _ending(thing, case)
    words = ["z" + ending] if thing.definite else [] if thing.plural else ["un" + ending]
    if thing.count > 1:
        words.append(numeral(thing.count))
    words += [adjective.qaa + ending for adjective in thing.adjectives]
    noun = (thing.compound.qaa + "s" if thing.compound else "") + thing.noun.qaa
    words.append(noun.capitalize() + (thing.noun.plural if thing.plural else ""))
    if thing.relative is not None:
        words += [",", "z" + _ending(thing, "nom")] + subordinate_clause(thing.relative, thing.plural) + [","]
    return words


def _ending(thing: NounPhrase, case: str) -> str:
    return ENDINGS[case]["pl" if thing.plural else thing.noun.gender]


def numeral(number: int) -> str:
    """Spell a number as one word, units before tens: 23 is triunddvazig."""
    tens, units = divmod(number, 10)
    if not tens:
        return UNITS[units]
    return (UNITS[units] + "und" if units else "") + UNITS[tens] + "zig"
