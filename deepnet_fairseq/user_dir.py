"""Methods in a folder of a user's own, outside the package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from .errors import UserError


def import_user_dir(folder: str | Path) -> None:
    """Import a folder whose modules register methods: its package, or every file of a folder that is no package.

    fairseq-train imports the same folder by --user-dir. UserError, naming it, for a folder without Python files.
    """
    place = Path(folder).resolve()
    if place == Path(__file__).parent:
        return
    package = place / "__init__.py"
    files = [package] if package.is_file() else sorted(place.glob("*.py"))
    if not files:
        raise UserError(f"--user-dir {folder}", "no folder with Python files")
    for file in files:
        name = place.name if file == package else file.stem
        if name in sys.modules:
            if getattr(sys.modules[name], "__file__", None) != str(file):
                raise UserError(
                    f"--user-dir {folder}", f"a module of the name {name} is imported already; rename {file}"
                )
            continue
        places = [str(place)] if file == package else None
        spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except SyntaxError as error:
            raise UserError(f"--user-dir {folder}", f"{error.filename}, line {error.lineno}: {error.msg}") from error
