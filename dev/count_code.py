"""Print the lines of code, comments and docstrings by room; a mirror, never a limit: python -m dev.count_code."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

from deepnet_fairseq.text_table import render

# A room is a folder of the package, or a folder beside the package.

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks", "dev", "examples", "results", "tests")  # beside the package
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)

# nodes of the syntax tree that may have a docstring
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def count(source: str) -> Counter[str]:
    """Count the lines of a module by kind: {"code": ..., "comment": ..., "docstring": ..., "blank": ...}.

    A line with code and a comment counts as code. source: the module's text.
    """
    number_of_lines = len(source.splitlines())
    kinds = dict.fromkeys(range(1, number_of_lines + 1), "blank")  # by number of the line
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        first_line, _column = token.start
        last_line, _column = token.end
        if token.type == tokenize.COMMENT and kinds[first_line] == "blank":
            kinds[first_line] = "comment"
        elif token.type not in NO_CODE:
            for line in range(first_line, last_line + 1):
                kinds[line] = "code"

    # for the tokens a docstring is a string, and so was counted as code
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            text = node.body[0]
            last = text.end_lineno or text.lineno  # ast.parse sets it; only its type allows None
            for line in range(text.lineno, last + 1):
                kinds[line] = "docstring"
    return Counter(kinds.values())


def rooms() -> dict[str, list[Path]]:
    """Return the Python files of each room by its name: first the package's rooms, then the FOLDERS beside it.

    Modules that lie directly in the package are one room, "(single modules)". Only the names of folders beside the
    package end with a slash.
    """
    files: dict[str, list[Path]] = {}
    package = ROOT / "deepnet_fairseq"
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        room = parts[0] if len(parts) > 1 else "(single modules)"
        files.setdefault(room, []).append(path)
    for folder in FOLDERS:
        files[f"{folder}/"] = sorted((ROOT / folder).rglob("*.py"))
    return files


def main() -> None:
    """Print a table: a line for each room, and the sum of the package."""
    kinds = ["code", "comment", "docstring", "blank"]
    table = [["room", "files", *kinds]]
    whole: Counter[str] = Counter()
    for room, paths in rooms().items():
        lines: Counter[str] = Counter()
        for path in paths:
            lines += count(path.read_text(encoding="utf-8"))
        table.append([room, str(len(paths)), *(f"{lines[kind]:,}" for kind in kinds)])
        if not room.endswith("/"):  # it belongs to the package
            whole += lines
    table.append(["the package", "", *(f"{whole[kind]:,}" for kind in kinds)])
    print(render(table))


if __name__ == "__main__":
    main()
