"""Places of the package where a small mistake can be put in, and the source with the mistake.

A mistake is one of four kinds: a sign (`+` for `-`, `*` for `/`, a minus that is lost), a comparison (`<` for `<=`,
`==` for `!=`, `in` for `not in`), a call that is not made, and an index that is one too high. A mutant is the package
with one mistake: tests should fail on it. Places in a file are counted in bytes, as Python's syntax tree does.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "deepnet_fairseq"
# node of the syntax tree -> the operator that the mistake has in its place
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
    """One small mistake: in a file, the bytes from `start` to `end` become `after`."""

    path: str  # of the file, relative to the repository's root
    line: int  # where the piece of code with the mistake begins, counted from 1
    start: int
    end: int  # exclusive
    before: str  # the replaced source
    after: str

    def source(self, folder: Path) -> str:
        """Return the text of the file with the mistake in it. folder: the root of a tree without it."""
        source = (folder / self.path).read_bytes()
        return (source[: self.start] + self.after.encode() + source[self.end :]).decode()

    def __str__(self) -> str:
        """Show the place and the change in one line."""
        before = " ".join(self.before.split())
        after = " ".join(self.after.split())
        return f"{self.path}:{self.line}: `{before}` -> `{after}`"


class Source:
    """A Python file: its text, its syntax tree, and where the nodes of the tree stand in the text."""

    def __init__(self, root: Path, path: Path) -> None:
        """Read and parse the file `path`, which lies below the repository's `root`."""
        self.path = str(path.relative_to(root))
        self.text = path.read_bytes()
        self.tree = ast.parse(self.text)
        self._line_starts = [0]  # by line, the place of its first byte in the file
        for line in self.text.split(b"\n"):
            self._line_starts.append(self._line_starts[-1] + len(line) + 1)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Return where the source of a node starts and ends in the file, in bytes, the end exclusive."""
        start = self._line_starts[node.lineno - 1] + node.col_offset
        # ast.parse sets both ends; only their types allow None
        end_line = node.end_lineno or node.lineno
        end = self._line_starts[end_line - 1] + (node.end_col_offset or 0)
        return start, end

    def mutant(self, node: ast.expr | ast.stmt, start: int, end: int, after: str) -> Mutant:
        """Return the mutant that has the source `after` in place of the bytes from `start` to `end`.

        node: in whose source these bytes are; its line is that of the mistake.
        """
        before = self.text[start:end].decode()
        return Mutant(path=self.path, line=node.lineno, start=start, end=end, before=before, after=after)

    def text_of(self, node: ast.expr) -> str:
        """Return the source of a node as it stands in the file."""
        start, end = self.span(node)
        return self.text[start:end].decode()


def _nodes_to_skip(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes of a syntax tree in which no mistake is made: those within annotations and f-strings.

    A mistake in an annotation changes nothing that runs; and of what stands in an f-string, Python 3.11 gives no
    positions.
    """
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped.update(ast.walk(node))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
            skipped.update(ast.walk(node.returns))
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            skipped.update(ast.walk(node.annotation))
    return skipped


def _mutants_of_node(source: Source, node: ast.AST) -> Iterator[Mutant]:
    """Yield the mutants with a mistake at one node of the syntax tree of `source`; most nodes have none.

    Operands get parentheses: with another operator they might be grouped otherwise.
    """
    if isinstance(node, ast.BinOp) and type(node.op) in SIGNS:
        # folder / "name" with another sign is an error that any test would notice
        right_is_text = isinstance(node.right, ast.JoinedStr) or isinstance(getattr(node.right, "value", None), str)
        if not right_is_text:
            left = source.text_of(node.left)
            right = source.text_of(node.right)
            yield source.mutant(node, *source.span(node), f"({left}) {SIGNS[type(node.op)]} ({right})")

    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield source.mutant(node, *source.span(node), f"({source.text_of(node.operand)})")  # without its minus

    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        left = source.text_of(node.left)
        right = source.text_of(node.comparators[0])
        yield source.mutant(node, *source.span(node), f"({left}) {COMPARISONS[type(node.ops[0])]} ({right})")

    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):  # a call whose value nobody takes
        yield source.mutant(node, *source.span(node), "pass")

    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        index = node.slice.value
        if isinstance(index, int):
            yield source.mutant(node, *source.span(node.slice), str(index + 1))


def mutants_of_file(root: Path, path: Path) -> list[Mutant]:
    """Return all mutants of a Python file, in the order of its text. root: of the repository."""
    source = Source(root, path)
    skipped = _nodes_to_skip(source.tree)
    mutants: list[Mutant] = []
    for node in ast.walk(source.tree):
        if node not in skipped:
            mutants.extend(_mutants_of_node(source, node))
    return sorted(mutants, key=lambda mutant: (mutant.start, mutant.end))


def draw(root: Path, seed: int, count: int) -> list[Mutant]:
    """Draw `count` different mutants of the package, each in two steps: a room, then any of its mutants.

    A room is a folder of the package; the files beside these folders are one room, too. A room is the likelier the more
    lines it has. root: of the repository; the same seed draws the same mutants of the same files.
    """
    files_by_room: dict[str, list[Path]] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root / PACKAGE).parts
        room_name = parts[0] if len(parts) > 1 else ""
        files_by_room.setdefault(room_name, []).append(path)

    sizes = []  # lines of each room
    mutants: list[list[Mutant]] = []  # of each room
    for paths in files_by_room.values():
        lines = 0
        in_room: list[Mutant] = []
        for path in paths:
            lines += len(path.read_text(encoding="utf-8").splitlines())
            in_room += mutants_of_file(root, path)
        sizes.append(lines)
        mutants.append(in_room)

    generator = random.Random(seed)
    drawn: list[Mutant] = []
    while len(drawn) < count:
        [room] = generator.choices(mutants, weights=sizes)
        mutant = generator.choice(room)
        if mutant not in drawn:
            drawn.append(mutant)
    return drawn
