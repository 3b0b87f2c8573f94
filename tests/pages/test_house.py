"""Tests of the rules on imports in the sources: the order of rooms, cycles, private names, fairseq.

A room is a folder of the package, or a single module that all rooms may use. The table of docs/house.md lists the
rooms; each may import from those above it in the table. Sources are parsed and not imported, which takes a few seconds.
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
TABLE_OF_ROOMS = (ROOT / "docs" / "house.md").read_text(encoding="utf-8").split("|---|---|\n")[1].split("\n\n")[0]
FIRST_CELLS = [row.split("|")[1] for row in TABLE_OF_ROOMS.splitlines()]
ROOMS = re.findall("`(.*?)`", " ".join(FIRST_CELLS))  # in the table's order
RANK = {room: rank for rank, room in enumerate([*ROOMS, "__main__"])}  # a room imports from rooms of lower rank alone


class Import(NamedTuple):
    """An import in the sources: the dotted module, the name that is taken from it, and whether it is in a function.

    The name is "" if the module itself is imported.
    """

    module: str
    name: str
    in_function: bool


def tracked(ending: str) -> list[Path]:
    """List the repository's files with this ending, including those that git does not track yet."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", f"*{ending}"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


@cache
def modules() -> dict[str, Path]:
    """Return dotted name -> file, for the Python files in the repository's folders.

    git is called when a test runs and not when it is collected, because a copy of the tree has no repository.
    """
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
def modules_of_package() -> set[str]:
    """Return the dotted names of the package's modules."""
    return {name for name in modules() if name.startswith(f"{PACKAGE}.")}


def origin_of(node: ast.ImportFrom, importer: str) -> str:
    """Return the dotted module of a statement `from MODULE import ..`, which may be relative to the importer."""
    if node.level == 0:  # absolute
        return node.module or ""
    package = importer.split(".")
    if modules()[importer].name != "__init__.py":
        package.pop()
    base = package[: len(package) + 1 - node.level]  # a dot is the package, each further one its parent
    return ".".join([*base, node.module or ""]).strip(".")


@cache
def imports(importer: str) -> list[Import]:
    """Return the imports of a module."""
    parsed = tree(modules()[importer])
    nodes_in_functions = set()
    for node in ast.walk(parsed):
        if isinstance(node, FUNCTIONS):
            nodes_in_functions.update(ast.walk(node))

    found = []
    for node in ast.walk(parsed):
        in_function = node in nodes_in_functions
        if isinstance(node, ast.Import):
            found += [Import(alias.name, "", in_function) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = origin_of(node, importer)
            for alias in node.names:
                is_module = f"{origin}.{alias.name}" in modules()
                if is_module:
                    found.append(Import(f"{origin}.{alias.name}", "", in_function))
                else:
                    found.append(Import(origin, alias.name, in_function))
    return found


def imports_of_package() -> list[tuple[str, str]]:
    """Return pairs (module of the package, module that it imports)."""
    found = []
    for name in modules_of_package():
        found += [(name, imported.module) for imported in imports(name)]
    return found


def room(module: str) -> str:
    """Return the room of a module of the package, "core" for "deepnet_fairseq.core.archs"; "" for other modules."""
    return module.split(".")[1] if module in modules_of_package() else ""


def import_graph() -> dict[str, set[str]]:
    """Return module -> modules that it imports, in functions too.

    Functions of the package's __init__.py are left out: the package is its public face, and `register` and `translate`
    import what they call.
    """
    graph = {}
    for name in modules():
        graph[name] = set()
        for imported in imports(name):
            of_public_face = imported.in_function and name == PACKAGE
            if not of_public_face:
                graph[name].add(imported.module)
        graph[name].discard(name)
    return graph


def test_no_modules_import_each_other_in_a_circle():
    """Modules that import none of the remaining ones are taken away, again and again. Only circles would remain."""
    remaining = import_graph()
    assert remaining

    while True:
        without_imports = [name for name, imported in remaining.items() if not imported & remaining.keys()]
        if not without_imports:
            break
        for name in without_imports:
            del remaining[name]

    assert remaining == {}


def test_no_private_name_is_imported():
    private = []
    for name in modules():
        for imported in imports(name):
            is_private = re.match("_[^_]", imported.name)
            if is_private and imported.module in modules():
                private.append((name, imported))

    assert modules()
    assert private == []


def test_rooms_import_from_rooms_above_them_in_the_table_alone():
    """Imports within functions count, too."""
    within_package = [pair for pair in imports_of_package() if pair[1] in modules_of_package()]

    wrong = []
    for importer, imported in within_package:
        if RANK[room(imported)] > RANK[room(importer)]:
            wrong.append((importer, imported))

    assert within_package
    assert wrong == []


def test_the_table_of_rooms_lists_every_room():
    rooms = {room(name) for name in modules_of_package()}

    assert rooms | {"__main__"} == RANK.keys()


def test_rooms_have_folders_one_level_deep():
    too_deep = []
    for name in modules_of_package():
        parts = modules()[name].relative_to(ROOT / PACKAGE).parts
        if len(parts) > 3:  # room, folder, file
            too_deep.append(name)

    assert modules_of_package()
    assert too_deep == []


def test_the_core_imports_neither_fairseq_nor_rooms_below_it_in_the_table():
    """The core and the single modules that all rooms may use import neither fairseq nor any other room."""
    single_modules = {room for room in ROOMS if modules()[f"{PACKAGE}.{room}"].name != "__init__.py"}
    base = single_modules | {"core"}
    others = set(ROOMS) - base

    of_base = [(importer, imported) for importer, imported in imports_of_package() if room(importer) in base]

    assert of_base
    assert [pair for pair in of_base if pair[1].split(".")[0] in FAIRSEQ] == []
    assert [pair for pair in of_base if room(pair[1]) in others] == []
