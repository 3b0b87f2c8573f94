"""Count the lines and statements of code by room, without blank lines, comments and docstrings, beside their budgets.

    python scripts/count_code.py

Budgets are for whole rooms, so that nothing rewards long lines or short files. Statements are counted too: a room
whose lines fall while its statements do not has been compressed, not simplified. Shell, scripts of results/ and
benchmarks are printed as well, for moving code there does not remove it.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tokenize
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = {  # lines of code at most
    "core": 3000, "plugin": 2990, "data": 2600, "study": 1515, "tools": 3600, "cli": 700,
    "package and scripts": 15190, "benchmarks": 1000, "tests": 12500,
}  # fmt: skip
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Count(NamedTuple):
    """Size of some code."""

    lines: int = 0
    statements: int = 0

    def plus(self, other: Count) -> Count:
        """Add up two counts."""
        return Count(self.lines + other.lines, self.statements + other.statements)


def count_python(text: str) -> Count:
    """Count the lines of a Python file that hold code, and its statements."""
    tree = ast.parse(text)
    docstrings = [
        node.body[0] for node in ast.walk(tree) if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None
    ]
    documented = {line for one in docstrings for line in range(one.lineno, one.end_lineno + 1)}
    used = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            used |= set(range(token.start[0], token.end[0] + 1))
    statements = sum(isinstance(node, ast.stmt) for node in ast.walk(tree))
    return Count(len(used - documented), statements - len(docstrings))


def count_shell(text: str) -> Count:
    """Count the lines of a shell script that hold code."""
    return Count(sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines()))


def rooms_of(path: Path) -> list[str]:
    """Name the rooms that a file counts for; `path` is relative to the repository."""
    top, *rest = path.parts
    if path.suffix == ".sh":
        return ["shell"]
    if top == "deepnet_fairseq":
        room = rest[0].removesuffix(".py")
        return [room if room in BUDGETS else "package's own files", "package and scripts"]
    return {"scripts": ["package and scripts"], "results": ["results' scripts"]}.get(top, [top])


def count() -> dict[str, Count]:
    """Count all tracked code of the repository by room, the rooms with a budget first."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.sh"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    counts = dict.fromkeys(BUDGETS, Count())
    for name in map(Path, names):
        if (ROOT / name).is_file():
            text = (ROOT / name).read_text(encoding="utf-8")
            size = count_shell(text) if name.suffix == ".sh" else count_python(text)
            for room in rooms_of(name):
                counts[room] = counts.get(room, Count()).plus(size)
    return counts


def main() -> None:
    """Print a line for each room."""
    for room, size in count().items():
        budget = f"of {BUDGETS[room]:,}" if room in BUDGETS else ""
        over = "  OVER" if size.lines > BUDGETS.get(room, size.lines) else ""
        print(f"{room:22}{size.lines:8,} lines {budget:10}{size.statements:8,} statements{over}")


if __name__ == "__main__":
    main()
