"""Tests of the house rules on the sources: rooms' order, import cycles, private names, docstrings.

docs/house.md is the map of the rooms. The package is not imported, so this takes a few seconds.
"""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..support.helpers import ROOT

PACKAGE = "deepnet_fairseq"
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
FAIRSEQ = {"fairseq", "fairseq_cli", "hydra", "omegaconf"}  # fairseq and its dependencies
TABLE = (ROOT / "docs" / "house.md").read_text(encoding="utf-8").split("|---|---|\n")[1].split("\n\n")[0]
ROOMS = [room for row in TABLE.splitlines() for room in re.findall("`(.*?)`", row.split("|")[1])]  # lower ones first
HEIGHT = {room: height for height, room in enumerate([*ROOMS, "__main__"])}


class Import(NamedTuple):
    """Import statement: dotted module, name taken from it ("" for the module), whether a function call makes it."""

    module: str
    name: str
    late: bool


def tracked(ending: str) -> list[Path]:
    """List the repository's files with this ending, including those that git does not track yet."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"*{ending}"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


@cache
def modules() -> dict[str, Path]:
    """Map dotted names to files, for all Python files in folders."""
    files = {path.relative_to(ROOT): path for path in tracked(".py")}
    dotted = {".".join(short.with_suffix("").parts): path for short, path in files.items() if len(short.parts) > 1}
    return {name.removesuffix(".__init__"): path for name, path in dotted.items()}


@cache
def tree(path: Path) -> ast.Module:
    """Parse a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def inside() -> set[str]:
    """Name the package's modules; git is called when a test runs, because a copy of the tree has no repository."""
    return {name for name in modules() if name.startswith(f"{PACKAGE}.")}


@cache
def imports(importer: str) -> list[Import]:
    """List the imports of a module."""
    parsed, package = tree(modules()[importer]), importer.split(".")
    if modules()[importer].name != "__init__.py":
        package.pop()
    functions = (node for node in ast.walk(parsed) if isinstance(node, FUNCTIONS))
    inside = {node for function in functions for node in ast.walk(function)}
    entries = []
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            entries += [Import(alias.name, "", node in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*base, node.module or ""]).strip(".")
            for name in (alias.name for alias in node.names):
                whole = f"{origin}.{name}" in modules()
                entries.append(Import(f"{origin}.{name}" if whole else origin, "" if whole else name, node in inside))
    return entries


def taken() -> list[tuple[str, str]]:
    """Pair each module of the package with the modules that it imports."""
    return [(name, imported.module) for name in inside() for imported in imports(name)]


def room(module: str) -> str:
    """Name the room of a module of the package, or the module itself if it is in none; "" for other modules."""
    return module.split(".")[1] if module in inside() else ""


def test_no_import_cycle():
    """No modules import each other in a circle, imports inside functions and of the package itself counted.

    The package itself is its public face: `register` and `translate` import what they call.
    """
    graph = {}
    for name in modules():
        graph[name] = {taken.module for taken in imports(name) if not (taken.late and name == PACKAGE)} - {name}
    while done := [name for name, needed in graph.items() if not needed & graph.keys()]:
        for name in done:
            del graph[name]
    assert graph == {}  # the remaining modules form a cycle or lead into one


def test_nothing_private_is_imported():
    private = [(name, taken) for name in modules() for taken in imports(name) if re.match("_[^_]", taken.name)]
    assert [(name, taken) for name, taken in private if taken.module in modules()] == []


def test_lower_rooms_do_not_import_higher_ones():
    """Lower rooms never import higher ones, inside functions either; the map lists every room, one level deep."""
    within = [(name, module) for name, module in taken() if module in inside()]
    assert [(name, module) for name, module in within if HEIGHT[room(module)] > HEIGHT[room(name)]] == []
    assert {room(name) for name in inside()} | {"__main__"} == HEIGHT.keys()
    assert [name for name in inside() if len(modules()[name].relative_to(ROOT / PACKAGE).parts) > 3] == []


def test_the_core_stands_on_torch_alone():
    """The core, and the files that all rooms may use, import nothing of fairseq or of higher rooms."""
    base = {room for room in ROOMS if modules()[f"{PACKAGE}.{room}"].name != "__init__.py"} | {"core"}
    pairs = [(name, module) for name, module in taken() if room(name) in base]
    assert [pair for pair in pairs if pair[1].split(".")[0] in FAIRSEQ or room(pair[1]) in set(ROOMS) - base] == []
