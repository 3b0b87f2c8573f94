"""Write files that appear under their name whole, or not at all; read JSON that somebody else may have written."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from .errors import UserError

# what Python raises where code expects other values than a file holds
WRONG_VALUES = (ValueError, KeyError, TypeError, AttributeError, OverflowError)


def split_paths(paths: str) -> list[str]:
    """Split a list of paths as fairseq.utils.split_paths does, by which fairseq reads its DATA and --path.

    The paths are separated by ":" (os.pathsep), or by "|" if one of them is a URL, as "s3://bucket/data".
    """
    return paths.split("|" if "://" in paths else os.pathsep)


def check_file(flag: str, path: Path, inputs: tuple[Path, ...] = ()) -> None:
    """Raise UserError if the file `path` cannot be written, or is one of the `inputs`.

    A command calls this before its work. flag: the flag or argument by which the user has given `path`; it begins the
    message.
    """
    if path.is_dir():
        raise UserError(f"{flag} {path}", "is a folder; name a file")
    if path.exists() and not path.is_file():
        raise UserError(f"{flag} {path}", "is no ordinary file; name another")
    if os.path.realpath(path) in map(os.path.realpath, inputs):  # unlike Path.resolve it accepts a link to itself
        raise UserError(f"{flag} {path}", "is one of the files to read; name another")
    _check_parent(flag, path)


def check_folder(flag: str, path: Path) -> None:
    """Raise UserError if the new folder `path` cannot be made; an empty folder may exist. flag: as in check_file."""
    is_empty_folder = path.is_dir() and not any(path.iterdir())
    if path.exists() and not is_empty_folder:
        raise UserError(f"{flag} {path}", "is there and not empty; name a new folder")
    _check_parent(flag, path)


def _check_parent(flag: str, path: Path) -> None:
    """Raise UserError if the folder of `path` does not exist or cannot be written to; flag: as in check_file."""
    parent = path.resolve().parent
    if not parent.is_dir():
        raise UserError(f"{flag} {path}", f"there is no folder {parent}; make it first")
    if not os.access(parent, os.W_OK):
        raise UserError(f"{flag} {path}", f"{parent} is not writable; name another place")


@contextmanager
def whole(path: Path, follow: bool = True):
    """Let a file or folder be written whole or not at all: yield a temporary path beside `path` to write it to.

    At the end of the context it is moved to `path`, where it replaces a file or an empty folder. If the context ends
    with an error, it is removed instead, and what was at `path` stays. Raises an OSError if it cannot be moved. follow:
    if `path` is a link, keep the link and replace what it points to; otherwise replace the link.
    """
    path = path.resolve() if follow else path
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        if path.is_dir():
            path.rmdir()  # empty, or this fails
        os.replace(part, path)
    finally:  # nothing is left at `part`, unless an error came
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)


def save_tensors(content: dict, path: Path) -> None:
    """Write `content` by torch.save, whole or not at all.

    Raises a UserError, naming the file, if torch cannot write it, as on a full disk.
    """
    import torch  # here, because the parser of the command line imports this file and must start fast

    with whole(path) as part:
        try:
            torch.save(content, part)
        except RuntimeError as error:  # what torch raises for a full disk
            first_line = str(error).splitlines()[0]
            raise UserError(path, f"could not be written ({first_line})") from error


def parse_json(text: str):
    """Return the value that a JSON text stands for.

    Raises a ValueError if it is no JSON, or nested so deeply that Python's parser gives up.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_json_object(line: str) -> dict:
    """Return the JSON object in a line of text; {} if the line is no JSON or another value."""
    try:
        value = parse_json(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def read_json_object(path: Path, mend: str) -> dict:
    """Return the JSON object in a UTF-8 file.

    Raises a UserError, naming the file, if it is missing or holds anything else; mend: what the user can do about it,
    the end of the message.
    """
    if not path.is_file():
        problem = "is no ordinary file" if path.exists() else "no such file"
        raise UserError(path, f"{problem}; {mend}")
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(path, f"is no JSON ({error}); {mend}") from error
    if not isinstance(content, dict):
        raise UserError(path, f"must hold one JSON object; {mend}")
    return content
