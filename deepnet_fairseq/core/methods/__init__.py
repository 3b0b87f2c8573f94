"""Methods, one file each: every module in this folder registers itself when the package is imported."""

import importlib
import pkgutil

from .base import METHODS, Method, Option, get_method, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Method", "Option", "get_method", "register"]
