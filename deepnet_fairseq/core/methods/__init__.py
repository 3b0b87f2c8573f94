"""Methods, one file each; importing the package imports all files, and each registers its method (base.py has none)."""

import importlib
import pkgutil

from .base import METHODS, Method, Option, get_method, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Method", "Option", "get_method", "register"]
