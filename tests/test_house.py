"""Rules of the house, read off the sources: sizes, rooms and their order, no crumb, no cycle, nothing private taken.

docs/house.md is the map of the rooms; nothing is imported here, so that this takes few seconds.
"""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .support.helpers import ROOT

PACKAGE = "deepnet_fairseq"
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
LINES, FUNCTION_LINES = 400, 60  # at most
CRUMB = 60
STAND_ALONE = {"methods", "probes", "recipes"}  # folders of which each file is found by what is in it
FAIRSEQ = {"fairseq", "fairseq_cli", "hydra", "omegaconf"}  # and what it brings
TABLE = (ROOT / "docs" / "house.md").read_text(encoding="utf-8").split("|---|---|\n")[1].split("\n\n")[0]
ROOMS = [room for row in TABLE.splitlines() for room in re.findall("`(.*?)`", row.split("|")[1])]  # lower ones first
HEIGHT = {room: height for height, room in enumerate([*ROOMS, "__main__"])}


class Import(NamedTuple):
    """module: where from, dotted; name: what of it, "" for a module; late: only when a function is called."""

    module: str
    name: str
    late: bool


def tracked(ending: str) -> list[Path]:
    """Files of the repository whose names end so, those that are still to be added among them."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"*{ending}"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in found if name and (ROOT / name).is_file()]


@cache
def modules() -> dict[str, Path]:
    """Dotted name -> file, of the package and its tests."""
    files = {path.relative_to(ROOT): path for path in tracked(".py")}
    dotted = {".".join(short.with_suffix("").parts): path for short, path in files.items() if len(short.parts) > 1}
    return {name.removesuffix(".__init__"): path for name, path in dotted.items()}


@cache
def tree(path: Path) -> ast.Module:
    """A Python file, parsed."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def inside() -> set[str]:
    """Names of the package's modules; nothing is asked of git before a test runs, for a copy of the tree has none."""
    return {name for name in modules() if name.startswith(f"{PACKAGE}.")}


@cache
def imports(importer: str) -> list[Import]:
    """What a module takes from others."""
    parsed, package = tree(modules()[importer]), importer.split(".")
    if modules()[importer].name != "__init__.py":
        package.pop()
    functions = (node for node in ast.walk(parsed) if isinstance(node, FUNCTIONS))
    inside = {node for function in functions for node in ast.walk(function)}
    found = []
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, "", node in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*base, node.module or ""]).strip(".")
            for name in (alias.name for alias in node.names):
                whole = f"{origin}.{name}" in modules()
                found.append(Import(f"{origin}.{name}" if whole else origin, "" if whole else name, node in inside))
    return found


def taken() -> list[tuple[str, str]]:
    """Module of the package, what it imports."""
    return [(name, found.module) for name in inside() for found in imports(name)]


def room(module: str) -> str:
    """The room of the package in which a module is, or the module itself where it has none; else ""."""
    return module.split(".")[1] if module in inside() else ""


def test_files_are_short():
    lines = {str(path): path.read_bytes().count(b"\n") for ending in (".py", ".sh") for path in tracked(ending)}
    assert {path: count for path, count in lines.items() if count > LINES} == {}


def test_functions_are_short():
    functions = (
        (path, node) for path in tracked(".py") for node in ast.walk(tree(path)) if isinstance(node, FUNCTIONS)
    )
    long = [f"{path}: {f.name}" for path, f in functions if f.end_lineno - f.lineno >= FUNCTION_LINES]
    assert long == []


def test_no_import_cycle():
    graph = {name: {taken.module for taken in imports(name) if not taken.late} - {name} for name in modules()}
    while done := [name for name, needed in graph.items() if not needed & graph.keys()]:
        for name in done:
            del graph[name]
    assert graph == {}  # what is left is a cycle or leads into one


def test_nothing_private_is_imported():
    private = [(name, taken) for name in modules() for taken in imports(name) if re.match("_[^_]", taken.name)]
    assert [(name, taken) for name, taken in private if taken.module in modules()] == []


def test_lower_rooms_do_not_import_higher_ones():
    """Inside functions neither; and the map has all rooms and no other, with rooms one level down at most."""
    within = [(name, module) for name, module in taken() if module in inside()]
    assert [(name, module) for name, module in within if HEIGHT[room(module)] > HEIGHT[room(name)]] == []
    assert {room(name) for name in inside()} | {"__main__"} == HEIGHT.keys()
    assert [name for name in inside() if len(modules()[name].relative_to(ROOT / PACKAGE).parts) > 3] == []


def test_the_core_stands_on_torch_alone():
    """Neither it nor the files that all rooms may use take anything of fairseq or data."""
    base = {room for room in ROOMS if modules()[f"{PACKAGE}.{room}"].name != "__init__.py"} | {"core"}
    found = [(name, module) for name, module in taken() if room(name) in base]
    assert [pair for pair in found if pair[1].split(".")[0] in FAIRSEQ or room(pair[1]) in set(ROOMS) - base] == []


def test_no_crumbs():
    """A file of fewer lines belongs in its only importer."""
    importers = {name: {user for user, module in taken() if module == name} for name in inside()}
    short = {name for name in inside() if modules()[name].read_bytes().count(b"\n") < CRUMB}
    alone = {name for name in short if modules()[name].name == "__init__.py" or name.split(".")[-2] in STAND_ALONE}
    assert {name: importers[name] for name in short - alone if len(importers[name] - {name}) == 1} == {}
