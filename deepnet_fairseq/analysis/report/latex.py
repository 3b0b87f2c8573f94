"""The overview of a report as a LaTeX table of booktabs."""

from __future__ import annotations

from .document import Document, Text

ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "±": r"$\pm$", "−": "$-$", "–": "--", "→": r"$\rightarrow$",
}  # fmt: skip
HEAD = "% needs \\usepackage{booktabs,graphicx} and \\usepackage[T1]{fontenc}"
WIDE = 7  # columns, from which the table is scaled to the page


def latex(document: Document) -> str:
    """A floating table, to be \\input; notes below it."""
    grid = document.overview
    aligned = "".join("l" if words else "r" for words in grid.of_words)
    lines = [HEAD, r"\begin{table}", r"\centering", rf"\caption{{{escape(_caption(document))}}}"]
    scale, end = (r"\resizebox{\textwidth}{!}{%" + "\n", "}") if len(grid.header) >= WIDE else ("", "")
    lines += [rf"{scale}\begin{{tabular}}{{{aligned}}}", r"\toprule"]
    lines += [_row(list(map(escape, grid.header))), r"\midrule"]
    lines += [_row([_text(cell) for cell in row]) for row in grid.rows]
    lines += [r"\bottomrule", rf"\end{{tabular}}{end}", "", r"\footnotesize"]
    footnotes = [rf"\textsuperscript{{{letter}}} {escape(text)}." for letter, text in document.footnotes.items()]
    below = [*map(escape, (f"Warning: {warning}." for warning in document.warnings)), *map(escape, document.notes)]
    return "\n".join([*lines, *(line + r"\par" for line in footnotes + below), r"\end{table}", ""])


def _caption(document: Document) -> str:
    banner = f" {document.banner}" if document.banner else ""
    return f"{document.title}. {document.overview.caption}; {document.source}.{banner}"


def escape(text: str) -> str:
    """Plain text as LaTeX of one line."""
    return "".join(ESCAPES.get(letter, letter) for letter in " ".join(text.split()))


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _text(cell: Text) -> str:
    marks = rf"\textsuperscript{{{','.join(cell.marks)}}}" if cell.marks else ""
    return escape(cell.text) + marks + (f" ({escape(cell.paper)})" if cell.paper else "")
