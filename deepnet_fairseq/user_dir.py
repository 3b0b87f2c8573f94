"""Methods in a folder of a user's own, outside the package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from .errors import UserError


def import_user_dir(folder: str | Path) -> None:
    """Import a folder whose modules register methods, as fairseq-train does for --user-dir.

    A folder with an __init__.py is imported as a package, of another one every Python file. Raises a UserError, naming
    the folder, if it has no Python files, if a file has the name of a module that is imported already, or if it has a
    syntax error. This package's own folder is left alone: its methods are registered anyway.
    """
    path = Path(folder).resolve()
    if path == Path(__file__).parent:
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
        package_folders = [str(path)] if file == package else None
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=package_folders)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except SyntaxError as error:
            raise UserError(f"--user-dir {folder}", f"{error.filename}, line {error.lineno}: {error.msg}") from error
