"""One file a figure of a paper; a figure's file offers draw(runs, path) -> summary.

figureN is Figure N of the DeepNet paper and goes by its number, the others go by their name. draw writes a PNG to path;
the summary is text, with what was measured beside what was read off the paper. It raises UserError, naming the run,
where one lacks what the figure needs.
"""

import importlib
import pkgutil

_DRAW = {
    name: module.draw
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__))
    if hasattr(module := importlib.import_module(f"{__name__}.{name}"), "draw")
}
FIGURES = {int(name.removeprefix("figure")): draw for name, draw in _DRAW.items() if name.startswith("figure")}
OTHERS = {name: draw for name, draw in _DRAW.items() if not name.startswith("figure")}
