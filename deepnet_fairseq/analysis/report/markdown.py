"""A report as GitHub's Markdown."""

from __future__ import annotations

import re

from .document import Document, Grid, Text

SPECIAL = re.compile(r"([\\`*_\[\]<>|&~$#])")


def markdown(document: Document) -> str:
    """Ends in a line break."""
    parts = [f"# {escape(document.title)}", f"Beside {escape(document.source)}: <{document.link}>"]
    parts += [f"> **{escape(document.banner)}**"] if document.banner else []
    parts += [f"> **Warning:** {escape(warning)}" for warning in document.warnings]
    for grid in (document.overview, *document.grids):
        parts.append(f"## {escape(grid.title)}\n\n{escape(grid.caption)}\n\n{grid_text(grid)}")
    parts.append("## Notes\n\n" + "\n".join(f"- {escape(note)}" for note in document.notes))
    footnotes = [f"- <sup>{letter}</sup> {escape(text)}" for letter, text in document.footnotes.items()]
    parts.append("Trained with:\n\n" + "\n".join(footnotes))
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Plain text as Markdown of one line."""
    return SPECIAL.sub(r"\\\1", " ".join(text.split()))


def linked(text: str, to: str) -> str:
    """Markdown `text` as a link."""
    return f"[{text}]({to})" if re.fullmatch(r"[^\s()<>]+", to) else f"[{text}](<{to}>)"


def grid_text(grid: Grid) -> str:
    """The table alone."""
    aligned = ["---" if words else "---:" for words in grid.of_words]
    rows = [list(map(escape, grid.header)), aligned, *([_text(cell) for cell in row] for row in grid.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _text(cell: Text) -> str:
    text = escape(cell.text)
    if cell.link:
        text = linked(text, cell.link)
    marks = f"<sup>{', '.join(cell.marks)}</sup>" if cell.marks else ""
    return text + marks + (f" ({escape(cell.paper)})" if cell.paper else "")
