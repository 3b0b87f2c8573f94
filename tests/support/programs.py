"""Programs of results/, imported as modules so that a test can call their functions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_program(path: Path) -> ModuleType:
    """Import a program by its path, as a module of its file's name; it may import the files beside it by theirs.

    The module stays in sys.modules: a file beside it that imports it gets this very module, and not a second one.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
