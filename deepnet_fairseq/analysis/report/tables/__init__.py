"""One file a table: every module here offers TABLE; `deepnet report --table NAME` finds it by its name."""

import importlib
import pkgutil

from ..table import Table

_modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
TABLES: dict[str, Table] = {table.name: table for table in sorted((m.TABLE for m in _modules), key=lambda t: t.name)}
