"""Codes of languages and pairs of them: the one grammar that data, translations, scores and exports share.

A code holds ASCII letters and digits, with `_` or `-` between its parts: de, zho_Hans, es_419, zh-Hans, ca_valencia.
A pair or direction is two codes with a hyphen between. Where codes hold hyphens themselves, the parts of BCP 47 tell
which hyphen that is: "zh-Hans-en" can only be zh-Hans and en, for Hans is a script and starts no code.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from .errors import UserError

CODE = re.compile(r"[A-Za-z0-9]+(?:[_-][A-Za-z0-9]+)*")
LONGEST = 40  # characters of a code: the name of a file may hold three codes
# Language, then script, region or variant after a hyphen, as BCP 47 writes them; anything after an underscore.
TAG = re.compile(r"[a-z]{2,3}(?:_[A-Za-z0-9]+|-(?:[A-Z][a-z]{3}|[A-Z]{2}|[0-9]{3}|[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*")
SHORT = re.compile(r"[A-Za-z]{2,3}(?:[_-][A-Za-z0-9]+)*")  # a code whose first part has two or three letters


def check_code(what: str, code: str) -> str:
    """Return `code`; raise UserError if it is no code. what: flag, argument or file that names it, for the message."""
    if not CODE.fullmatch(code) or len(code) > LONGEST:
        raise UserError(
            f"{what} {code!r}",
            f"is no code of a language; write up to {LONGEST} letters and digits, with _ or - "
            "between, as de, zho_Hans or pt-BR",
        )
    return code


def check_pair(what: str, source: str, target: str) -> tuple[str, str]:
    """Return both codes; raise UserError if one is no code or if they are the same. what: as in check_code."""
    for code in (source, target):
        check_code(what, code)
    if source == target:
        raise UserError(f"{what} {source}-{target}", "is the same language twice; name two")
    return source, target


def possible_pairs(name: str, known: Collection[str] = (), words: bool = True) -> list[tuple[str, str]]:
    """Return the pairs of codes that `name` may stand for: none, one, or several if it is ambiguous.

    Only the best kind of pairs counts: pairs of two known codes; if there is none, pairs of two codes in the form of
    BCP 47; if there is none either, all others.
    known: codes that are in use, as those of dictionaries
    words: whether the codes of the last kind may begin otherwise than with two or three letters, as "english-german".
    False where a folder also holds files that are not named after a pair, as "my-notes.txt".
    """
    # each hyphen may be the one between the two codes
    parts = name.split("-")
    pairs = []
    for i in range(1, len(parts)):
        pair = "-".join(parts[:i]), "-".join(parts[i:])
        if all(CODE.fullmatch(code) and len(code) <= LONGEST for code in pair):
            pairs.append(pair)

    known_pairs = [pair for pair in pairs if set(pair) <= set(known)]
    bcp47_pairs = [pair for pair in pairs if all(map(TAG.fullmatch, pair))]
    other_pairs = pairs if words else [pair for pair in pairs if all(map(SHORT.fullmatch, pair))]
    return known_pairs or bcp47_pairs or other_pairs


def parse_pair(what: str, name: str, known: Collection[str] = ()) -> tuple[str, str]:
    """Return the two codes of `name`, "SRC-TGT".

    what: as in check_code; known: codes that are in use, as possible_pairs takes them. Raises UserError if `name` is no
    pair, the same language twice, or ambiguous.
    """
    pairs = possible_pairs(name, known)
    if not pairs:
        raise UserError(f"{what} {name!r}", "is no pair of languages; write two codes with a hyphen between, as de-en")
    if len(pairs) > 1:
        choices = " or ".join(" and ".join(pair) for pair in pairs)
        unambiguous = "-".join(code.replace("-", "_") for code in pairs[-1])
        raise UserError(f"{what} {name}", f"may be {choices}; write _ for - within a code, as {unambiguous}")
    return check_pair(what, *pairs[0])
