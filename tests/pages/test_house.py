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
FIRST_CELLS = [row.split("|")[1] for row in TABLE.splitlines()]
ROOMS = re.findall("`(.*?)`", " ".join(FIRST_CELLS))  # lower ones first
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
    files = {}
    for path in tracked(".py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if len(parts) > 1:
            files[".".join(parts).removesuffix(".__init__")] = path
    return files


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
    parsed = tree(modules()[importer])
    package = importer.split(".")
    if modules()[importer].name != "__init__.py":
        package.pop()
    in_functions = set()
    for node in ast.walk(parsed):
        if isinstance(node, FUNCTIONS):
            in_functions.update(ast.walk(node))
    entries = []
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            entries += [Import(alias.name, "", node in in_functions) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*base, node.module or ""]).strip(".")
            for name in (alias.name for alias in node.names):
                whole = f"{origin}.{name}" in modules()
                entries.append(
                    Import(f"{origin}.{name}" if whole else origin, "" if whole else name, node in in_functions)
                )
    return entries


def pairs() -> list[tuple[str, str]]:
    """Pair each module of the package with the modules that it imports."""
    found = []
    for name in inside():
        found += [(name, imported.module) for imported in imports(name)]
    return found


def room(module: str) -> str:
    """Name the room of a module of the package, or the module itself if it is in none; "" for other modules."""
    return module.split(".")[1] if module in inside() else ""


def import_graph() -> dict[str, set[str]]:
    """Map each module to those it imports, without imports of the package itself by a function.

    The package itself is its public face: `register` and `translate` import what they call.
    """
    graph = {}
    for name in modules():
        graph[name] = set()
        for imported in imports(name):
            if not (imported.late and name == PACKAGE):
                graph[name].add(imported.module)
        graph[name].discard(name)
    return graph


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside functions count."""
    remaining = import_graph()
    assert remaining

    while True:
        ends = [name for name, needed in remaining.items() if not needed & remaining.keys()]
        if not ends:
            break
        for name in ends:
            del remaining[name]

    assert remaining == {}  # the remaining modules form a cycle or lead into one


def test_nothing_private_is_imported():
    private = []
    for name in modules():
        for imported in imports(name):
            if re.match("_[^_]", imported.name) and imported.module in modules():
                private.append((name, imported))

    assert modules()
    assert private == []


def test_lower_rooms_do_not_import_higher_ones():
    """Not inside functions either."""
    within = [(name, module) for name, module in pairs() if module in inside()]

    assert within
    assert [(name, module) for name, module in within if HEIGHT[room(module)] > HEIGHT[room(name)]] == []


def test_the_map_lists_every_room():
    assert {room(name) for name in inside()} | {"__main__"} == HEIGHT.keys()


def test_rooms_have_folders_one_level_deep():
    depths = {name: len(modules()[name].relative_to(ROOT / PACKAGE).parts) for name in inside()}

    assert depths
    assert [name for name, depth in depths.items() if depth > 3] == []


def test_the_core_stands_on_torch_alone():
    """The core, and the files that all rooms may use, import nothing of fairseq or of higher rooms."""
    files = {room for room in ROOMS if modules()[f"{PACKAGE}.{room}"].name != "__init__.py"}
    base = files | {"core"}
    higher = set(ROOMS) - base

    of_base = [(name, module) for name, module in pairs() if room(name) in base]

    assert of_base
    assert [pair for pair in of_base if pair[1].split(".")[0] in FAIRSEQ] == []
    assert [pair for pair in of_base if room(pair[1]) in higher] == []
