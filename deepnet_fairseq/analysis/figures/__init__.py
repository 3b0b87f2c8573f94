"""One file a figure of the DeepNet paper: every module figureN here offers draw(runs, path) -> summary."""

import importlib
import pkgutil

FIGURES = {
    int(module.name.removeprefix("figure")): importlib.import_module(f"{__name__}.{module.name}").draw
    for module in pkgutil.iter_modules(__path__)
    if module.name.startswith("figure")
}
