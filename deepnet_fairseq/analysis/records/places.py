"""Places of one machine in the texts of a run: those below the runs become relative, of others only the name stays."""

from __future__ import annotations

import re
from pathlib import Path

STEP = r"(?:[\w.@%+=-]|\\.)+"  # a name in a path, blanks escaped as a shell prints them
ABSOLUTE = re.compile(rf"(?<![\w./~*-])/({STEP}/)*({STEP})?/?")
HOME = re.compile(rf"~/({STEP}/)*({STEP})?/?")
ELSEWHERE = "..."


def relative(text: str, base: Path) -> str:
    """text with paths below `base` relative to it, others as ".../NAME"; addresses on the network stay."""
    start = str(base.resolve())
    for spelling in dict.fromkeys((start, re.sub(r"([^\w@%+=:,./-])", r"\\\1", start))):
        text = re.sub(re.escape(spelling) + r"/(?=[^\s/])", "", text)
    return HOME.sub(_name, ABSOLUTE.sub(_name, text))


def _name(match: re.Match) -> str:
    return f"{ELSEWHERE}/{match.group(2) or ''}" if match.group(1) or match.group(2) else match.group()


def relative_values(value, base: Path):
    """The same for each text in what a JSON file holds."""
    if isinstance(value, str):
        return relative(value, base)
    if isinstance(value, list):
        return [relative_values(item, base) for item in value]
    if isinstance(value, dict):
        return {key: relative_values(item, base) for key, item in value.items()}
    return value
