"""Find outputs of fairseq-generate that are no free translations, because references were forced into the search.

--score-reference prints the references in place of translations, --prefix-size N begins each translation with the first
N pieces of its reference, and --constraints prescribes words. fairseq prints the result like a translation. Its log
holds the settings of the run; without the log only the text can tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from ...errors import UserError
from ...wording import counted

Logged = Callable[[re.Pattern], list[re.Match]]  # function from a pattern to its matches in fairseq's log
# settings in fairseq's log, as a dictionary or, before release 0.10, as an argparse.Namespace prints them
SCORE_REFERENCE = re.compile(r"\bscore_reference['\"]?[:=] ?(True|False)")
PREFIX_SIZE = re.compile(r"\bprefix_size['\"]?[:=] ?(\d+)")
CONSTRAINTS = re.compile(r"\bconstraints['\"]?[:=] ?['\"]?(\w+)")
ENOUGH = 20  # sentences; so many do not all begin with the first character of their reference by chance


def refuse_forced_references(file: Path, logged: Logged) -> None:
    """Raise a UserError if the log says --score-reference, with which nothing is translated.

    file: the output, for the message; logged: see Logged.
    """
    if _setting(SCORE_REFERENCE, logged) == "True":
        raise UserError(
            file, "holds the references themselves (--score-reference), no translations; generate again without it"
        )


def notes(file: Path, logged: Logged, translations: list[str], references: list[str]) -> list[str]:
    """Return a sentence for each sign that the search was given parts of the references, so that scores are too high.

    file: the output, which the sentences name; logged: see Logged. translations, references: a text for each sentence,
    the references as fairseq-generate printed them, or else raw ones.
    """
    found = []

    size = int(_setting(PREFIX_SIZE, logged) or 0)
    if size:
        found.append(
            f"{file}: each translation begins with {counted(size, 'piece')} of its reference (--prefix-size {size})"
        )
    if _setting(CONSTRAINTS, logged) in ("ordered", "unordered"):
        found.append(f"{file}: words of the translations were prescribed (--constraints)")
    if _setting(SCORE_REFERENCE, logged) is None:  # no log has the settings
        found += _notes_from_text(file, translations, references)
    return found


def _setting(pattern: re.Pattern, logged: Logged) -> str | None:
    """Return the value of a setting in the last run that the log holds; None if the log does not have the setting.

    pattern: its first group is the value.
    """
    matches = logged(pattern)
    return matches[-1][1] if matches else None


def _notes_from_text(file: Path, translations: list[str], references: list[str]) -> list[str]:
    """Return one sentence if all translations equal their references, or begin as they do; otherwise [].

    Only outputs without a log need this, because a log has the settings. file: the output, which the sentence names;
    translations, references: a text for each sentence of the test set.
    """
    # fairseq prints a word that its dictionary lacks as <<unk>> in a reference, but as <unk> in a translation
    as_forced = [reference.replace("<<unk>>", "<unk>") for reference in references]
    pairs = list(zip(translations, as_forced))
    log = "fairseq-generate's log, which would tell, is not with the output"
    if all(line == reference for line, reference in pairs):
        return [f"{file}: every translation equals its reference, as after --score-reference; {log}"]

    first_characters = {reference[:1] for _, reference in pairs}  # if all begin alike anyway, likeness says nothing
    alike = all(line[:1] == reference[:1] for line, reference in pairs)
    if alike and len(first_characters) > 1 and len(pairs) >= ENOUGH:
        return [f"{file}: every translation begins as its reference does, as after --prefix-size; {log}"]
    return []
