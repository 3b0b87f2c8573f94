"""Multiple-choice items, one JSON object a line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..data.lines import read_lines
from ..errors import UserError
from ..json_text import parse

ANSWER_CONTEXT = "Answer:"  # Brown et al. 2020, section 2.4


@dataclass(frozen=True)
class Item:
    """A context and the choices that may follow it.

    where: FILE:LINE; answer: number of the right choice from 0, None if it is not known; unconditional_context: what
    stands before a choice that is to be scored without its context.
    """

    where: str
    id: object
    context: str
    choices: tuple[str, ...]
    answer: int | None
    unconditional_context: str


def read_items(path: Path) -> list[Item]:
    """Those of a file, empty lines passed over; UserError naming file:line for one that is none."""
    items = [_item(f"{path}:{number}", line, number) for number, line in enumerate(read_lines(path), 1) if line.strip()]
    if not items:
        raise UserError(f"{path}: holds no item; give one JSON object a line")
    return items


def _item(where: str, line: str, number: int) -> Item:
    try:
        held = parse(line)
    except ValueError as error:
        raise UserError(f"{where}: is no JSON ({error}); give one object a line") from error
    if not isinstance(held, dict):
        raise UserError(f'{where}: is no object; give {{"context": "...", "choices": ["...", "..."]}}')
    if missing := {"context", "choices"} - held.keys():
        raise UserError(f'{where}: lacks "{min(missing)}"; give {{"context": "...", "choices": ["...", "..."]}}')
    choices = held["choices"]
    if not isinstance(choices, list) or len(choices) < 2:
        raise UserError(f'{where}: "choices" must be a list of two or more')
    texts = [_text(where, f"choice {i}", choice) for i, choice in enumerate(choices)]
    if empty := [i for i, choice in enumerate(texts) if not choice.strip()]:
        raise UserError(f"{where}: choice {empty[0]} is empty; the first is number 0")
    answer = held.get("answer")
    if answer is not None and (type(answer) is not int or not 0 <= answer < len(choices)):
        raise UserError(f'{where}: "answer" must be a number from 0 to {len(choices) - 1}')
    return Item(
        where=where,
        id=held.get("id", number),
        context=_text(where, '"context"', held["context"]),
        choices=tuple(texts),
        answer=answer,
        unconditional_context=_text(
            where, '"unconditional_context"', held.get("unconditional_context", ANSWER_CONTEXT)
        ),
    )


def _text(where: str, what: str, value: object) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: {what} must be text")
    try:
        value.encode()
    except UnicodeEncodeError:  # "\ud800" is JSON
        raise UserError(f"{where}: {what} holds half a surrogate pair; write the character itself") from None
    return value
