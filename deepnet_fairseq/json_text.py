"""JSON that somebody else may have written: one kind of error whatever is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

from .errors import UserError

WRONG_VALUES = (ValueError, KeyError, TypeError, AttributeError, OverflowError)  # of reading values of another type


def parse(text: str):
    """The value; ValueError if there is none, also for one nested so deeply that Python's parser gives up."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_object(path: Path, mend: str) -> dict:
    """The object in a UTF-8 file; UserError, naming it, with the way out `mend`, for a file that holds none."""
    if not path.is_file():
        raise UserError(f"{path}: {'is no ordinary file' if path.exists() else 'no such file'}; {mend}")
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: is no JSON ({error}); {mend}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold one JSON object; {mend}")
    return content
