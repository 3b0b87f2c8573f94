"""Files that appear under their name whole, or not at all; JSON that somebody else may have written."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from .errors import UserError

WRONG_VALUES = (ValueError, KeyError, TypeError, AttributeError, OverflowError)  # of reading values of another type


def check_file(flag: str, path: Path, inputs: tuple[Path, ...] = ()) -> None:
    """Raise UserError, before the work is done, if `path` cannot be written, or is one of the `inputs`."""
    if path.is_dir():
        raise UserError(f"{flag} {path}", "is a folder; name a file")
    if path.exists() and not path.is_file():
        raise UserError(f"{flag} {path}", "is no ordinary file; name another")
    if os.path.realpath(path) in map(os.path.realpath, inputs):  # which a link to itself does not trouble
        raise UserError(f"{flag} {path}", "is one of the files to read; name another")
    _check_parent(flag, path)


def check_folder(flag: str, path: Path) -> None:
    """Raise UserError, before the work is done, if no new folder can be made; an empty one counts as new."""
    if (path.exists() and not path.is_dir()) or (path.is_dir() and any(path.iterdir())):
        raise UserError(f"{flag} {path}", "is there and not empty; name a new folder")
    _check_parent(flag, path)


def _check_parent(flag: str, path: Path) -> None:
    parent = path.resolve().parent
    if not parent.is_dir():
        raise UserError(f"{flag} {path}", f"there is no folder {parent}; make it first")
    if not os.access(parent, os.W_OK):
        raise UserError(f"{flag} {path}", f"{parent} is not writable; name another place")


@contextmanager
def whole(path: Path, follow: bool = True):
    """Give a neighbouring path to write a file or folder to, which takes the name `path` if all went well.

    Else it is removed, and what was at `path` is as it was. OSError if the disk does not take it. follow: if `path` is
    a link it stays, and what it points to is replaced; else the link is.
    """
    path = path.resolve() if follow else path
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        if path.is_dir():
            path.rmdir()  # empty, or this fails
        os.replace(part, path)
    finally:
        shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)


def save(content: dict, path: Path) -> None:
    """torch.save, whole; UserError, naming the file, if torch cannot write it, as on a full disk."""
    import torch  # the parser of the command line needs the rest without it

    with whole(path) as part:
        try:
            torch.save(content, part)
        except RuntimeError as error:  # torch's word for a full disk
            raise UserError(path, f"could not be written ({str(error).splitlines()[0]})") from error


def parse(text: str):
    """The value; ValueError if there is none, also for one nested so deeply that Python's parser gives up."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_row(line: str) -> dict:
    """The object in a line; an empty one if it holds none."""
    try:
        value = parse(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def read_object(path: Path, mend: str) -> dict:
    """The object in a UTF-8 file; UserError, naming it, with the way out `mend`, for a file that holds none."""
    if not path.is_file():
        raise UserError(path, f"{'is no ordinary file' if path.exists() else 'no such file'}; {mend}")
    try:
        content = parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(path, f"is no JSON ({error}); {mend}") from error
    if not isinstance(content, dict):
        raise UserError(path, f"must hold one JSON object; {mend}")
    return content
