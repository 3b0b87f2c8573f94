"""Import methods from a folder of a user's own, outside the package."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from .errors import UserError


def import_user_dir(folder: str | Path) -> None:
    """Import a folder whose modules register methods: the --user-dir of the `deepnet` command.

    A folder with an __init__.py is imported as a package under the folder's name, as by fairseq-train. Of another
    folder every Python file is imported as a module of its own; fairseq-train would import none of them. What is
    imported already is not imported again.

    Raises a UserError, naming the folder, if it has no Python files, if a name is that of another module that is
    imported already, or if the import of a file fails; raises the error itself if import_error returns it unchanged.
    """
    path = Path(folder).resolve()
    if path == Path(__file__).parent:  # this package's own folder: its methods are registered anyway
        return
    package = path / "__init__.py"
    files = [package] if package.is_file() else sorted(path.glob("*.py"))
    if not files:
        raise UserError(f"--user-dir {folder}", "no folder with Python files")

    for file in files:
        name = path.name if file == package else file.stem
        if name in sys.modules:
            if getattr(sys.modules[name], "__file__", None) != str(file):  # a module of Python's own may have no file
                raise UserError(
                    f"--user-dir {folder}", f"a module of the name {name} is imported already; rename {file}"
                )
            continue

        package_folders = [str(path)] if file == package else None  # where its submodules are; None for a module
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=package_folders)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[name]
            refusal = import_error(folder, error)
            if refusal is error:
                raise
            raise refusal from error


def import_error(folder: str | Path, error: Exception) -> Exception:
    """Return what to raise for an error at the import of a user's folder: a UserError with file, line and error.

    Three kinds of errors are returned as they are: a UserError, one about a library that this package misses, and one
    to which no file of the folder has led. A syntax error is put down to the file that has it, wherever that is.
    """
    if isinstance(error, UserError):
        return error

    package = Path(__file__).parent
    places = []  # (file, line) of each call that led to the error, in the folder or in this package
    for frame in traceback.extract_tb(error.__traceback__):
        file = Path(frame.filename).resolve()
        if file.is_relative_to(Path(folder).resolve()) or file.is_relative_to(package):
            places.append((file, frame.lineno))
    in_folder = [place for place in places if not place[0].is_relative_to(package)]
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).exists():
        in_folder = [(Path(error.filename), error.lineno)]
    elif isinstance(error, ModuleNotFoundError) and places and places[-1] not in in_folder:
        return error
    if not in_folder:
        return error

    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())  # on one line
    file, line = in_folder[-1]
    return UserError(f"--user-dir {folder}", f"{file}, line {line}: {type(error).__name__}: {text}")
