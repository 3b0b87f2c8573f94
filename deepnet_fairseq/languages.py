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
LONGEST = 40  # characters of a code: names of files hold three
# Language, then script, region or variant after a hyphen, as BCP 47 writes them; anything after an underscore.
TAG = re.compile(r"[a-z]{2,3}(?:_[A-Za-z0-9]+|-(?:[A-Z][a-z]{3}|[A-Z]{2}|[0-9]{3}|[a-z0-9]{5,8}|[0-9][a-z0-9]{3}))*")
SHORT = re.compile(r"[A-Za-z]{2,3}(?:[_-][A-Za-z0-9]+)*")  # a code whose first part has two or three letters


def check_code(what: str, code: str) -> str:
    """Return `code`; raise UserError, beginning with `what` (a flag, an argument or a file), if it is none."""
    if not CODE.fullmatch(code) or len(code) > LONGEST:
        raise UserError(
            f"{what} {code!r}",
            f"is no code of a language; write up to {LONGEST} letters and digits, with _ or - "
            "between, as de, zho_Hans or pt-BR",
        )
    return code


def check_pair(what: str, source: str, target: str) -> tuple[str, str]:
    """Return both codes; raise UserError, beginning with `what`, if one is no code or if they are the same."""
    for code in (source, target):
        check_code(what, code)
    if source == target:
        raise UserError(f"{what} {source}-{target}", "is the same language twice; name two")
    return source, target


def readings(name: str, known: Collection[str] = (), words: bool = True) -> list[tuple[str, str]]:
    """Return the pairs of codes that `name` may stand for: none, one, or several if it is ambiguous.

    known: codes that are in use, as those of dictionaries; a reading of two of them goes before all others.
    words: accept codes that begin with more than three letters, as "english-german". Leave it out where other files
    lie beside those named after a pair, as "my-notes.txt".
    """
    parts = name.split("-")
    halves = [("-".join(parts[:i]), "-".join(parts[i:])) for i in range(1, len(parts))]
    pairs = [pair for pair in halves if all(CODE.fullmatch(code) and len(code) <= LONGEST for code in pair)]

    # the best kind of reading that there is: known codes, then codes in the form of BCP 47, then any
    known_pairs = [pair for pair in pairs if set(pair) <= set(known)]
    tags = [pair for pair in pairs if all(map(TAG.fullmatch, pair))]
    other = pairs if words else [pair for pair in pairs if all(map(SHORT.fullmatch, pair))]
    return known_pairs or tags or other


def parse_pair(what: str, name: str, known: Collection[str] = ()) -> tuple[str, str]:
    """Return the two codes of "SRC-TGT"; see `readings` for `known`.

    Raise UserError, beginning with `what`, if `name` is no pair, the same language twice, or ambiguous.
    """
    pairs = readings(name, known)
    if not pairs:
        raise UserError(f"{what} {name!r}", "is no pair of languages; write two codes with a hyphen between, as de-en")
    if len(pairs) > 1:
        choices = " or ".join(" and ".join(pair) for pair in pairs)
        raise UserError(
            f"{what} {name}",
            f"may be {choices}; write _ for - within a code, as "
            f"{'-'.join(code.replace('-', '_') for code in pairs[-1])}",
        )
    return check_pair(what, *pairs[0])
