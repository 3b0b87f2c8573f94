"""Places of the package where a small mistake can be put in, and the source with the mistake.

A mistake is one of four kinds: a sign (`+` for `-`, `*` for `/`, a minus that is lost), a comparison (`<` for `<=`,
`==` for `!=`, `in` for `not in`), a call that is not made, and an index that is one too high.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "deepnet_fairseq"
SIGNS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"}
COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}


@dataclass(frozen=True)
class Mutant:
    """One small mistake: in `path`, the bytes from `start` to `end` become `after`.

    path: relative to the repository's root; line: of the mistake, from 1; before: the replaced source.
    """

    path: str
    line: int
    start: int
    end: int
    before: str
    after: str

    def source(self, folder: Path) -> str:
        """Return the text of the file in `folder` with the mistake in it."""
        source = (folder / self.path).read_bytes()
        return (source[: self.start] + self.after.encode() + source[self.end :]).decode()

    def __str__(self) -> str:
        """Show the place and the change in one line."""
        before = " ".join(self.before.split())
        after = " ".join(self.after.split())
        return f"{self.path}:{self.line}: `{before}` -> `{after}`"


class Source:
    """A file's text, by the positions of its syntax tree."""

    def __init__(self, root: Path, path: Path) -> None:
        """Read and parse `path`, a Python file below `root`."""
        self.path = str(path.relative_to(root))
        self.text = path.read_bytes()
        self.tree = ast.parse(self.text)
        self._starts = [0]
        for line in self.text.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return where a node's text starts and ends, in bytes."""
        start = self._starts[node.lineno - 1] + node.col_offset
        end = self._starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return start, end

    def replaced(self, node: ast.expr | ast.stmt, start: int, end: int, after: str) -> Mutant:
        """Return the mutant that has `after` in place of the bytes from `start` to `end`, which are of `node`."""
        before = self.text[start:end].decode()
        return Mutant(path=self.path, line=node.lineno, start=start, end=end, before=before, after=after)

    def text_of(self, node: ast.expr) -> str:
        """Return a node's source."""
        start, end = self.span(node)
        return self.text[start:end].decode()


def _skipped(tree: ast.Module) -> set[ast.AST]:
    """Return all nodes within annotations, where a mistake changes nothing that runs, and within f-strings.

    Python 3.11 gives no positions for what stands in an f-string.
    """
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(ast.walk(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            inside.update(ast.walk(node.returns))
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            inside.update(ast.walk(node.annotation))
    return inside


def _mutants_of_node(source: Source, node: ast.AST) -> Iterator[Mutant]:
    """Yield the mistakes that can be made at one node."""
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        is_path = isinstance(node.right, ast.JoinedStr) or isinstance(getattr(node.right, "value", None), str)
        if not is_path:  # folder / "name" with another sign is an error that any test would notice
            left = source.text_of(node.left)
            right = source.text_of(node.right)
            yield source.replaced(node, *source.span(node), f"({left}) {SIGNS[type(node.op)]} ({right})")

    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield source.replaced(node, *source.span(node), f"({source.text_of(node.operand)})")

    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        left = source.text_of(node.left)
        right = source.text_of(node.comparators[0])
        yield source.replaced(node, *source.span(node), f"({left}) {COMPARISONS[type(node.ops[0])]} ({right})")

    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield source.replaced(node, *source.span(node), "pass")

    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        index = node.slice.value
        if isinstance(index, int):
            yield source.replaced(node, *source.span(node.slice), str(index + 1))


def mutants_of_file(root: Path, path: Path) -> list[Mutant]:
    """List all mistakes that can be made in a file, in the order of the text."""
    source = Source(root, path)
    skipped = _skipped(source.tree)
    mutants: list[Mutant] = []
    for node in ast.walk(source.tree):
        if node not in skipped:
            mutants.extend(_mutants_of_node(source, node))
    return sorted(mutants, key=lambda mutant: (mutant.start, mutant.end))


def draw(root: Path, seed: int, count: int) -> list[Mutant]:
    """Draw `count` mutants of the package: a room by its lines of text, then any mistake in the room.

    A room is a folder of the package; files beside the rooms are a room of their own.
    """
    rooms: dict[str, list[Path]] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root / PACKAGE).parts
        rooms.setdefault(parts[0] if len(parts) > 1 else "", []).append(path)

    sizes = []
    mutants: list[list[Mutant]] = []  # of each room
    for paths in rooms.values():
        sizes.append(sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths))
        mutants.append([mutant for path in paths for mutant in mutants_of_file(root, path)])

    generator = random.Random(seed)
    drawn: list[Mutant] = []
    while len(drawn) < count:
        [room] = generator.choices(mutants, weights=sizes)
        mutant = generator.choice(room)
        if mutant not in drawn:
            drawn.append(mutant)
    return drawn
