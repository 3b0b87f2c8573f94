"""Methods in a folder of a user's own, outside the package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from .errors import UserError


def import_user_dir(folder: str | Path) -> None:
    """Import a folder whose modules register methods, as fairseq-train does for --user-dir.

    A folder with an __init__.py is imported as a package under the folder's name. Of another folder every Python file
    is imported as a module of its own; what is imported already is not imported again. Raises a UserError, naming the
    folder, if it has no Python files, if a name is that of another module that is imported already, or if a file has a
    syntax error.
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
            if getattr(sys.modules[name], "__file__", None) != str(file):
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
        except SyntaxError as error:
            raise UserError(f"--user-dir {folder}", f"{error.filename}, line {error.lineno}: {error.msg}") from error
