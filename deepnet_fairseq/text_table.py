"""Tables of text, aligned for the terminal or as Markdown. Rows hold equally many cells; the first is the header."""

import re
from collections.abc import Sequence

# a number; "<", "~", "(" or the like may precede it, a unit or an interval follow: "< 0.1", "12 (11 to 13)", "5%"
NUMBER = re.compile(r"(\\?[(<>~]=? ?)?[+−-]?\d[\d.,]*(e[+-]?\d+)?([ (%].*)?")


def render(rows: Sequence[Sequence[str]]) -> str:
    """Return the table as lines for the terminal; cells that hold a plain number align right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = []
        for cell, width in zip(row, widths, strict=True):
            cells.append(cell.rjust(width) if _is_plain_number(cell) else cell.ljust(width))
        lines.append("  ".join(cells).rstrip())
    rule = "  ".join("-" * width for width in widths)
    return "\n".join([lines[0], rule, *lines[1:]])


def _is_plain_number(cell: str) -> bool:
    """Return whether a cell holds digits alone, besides commas, points and hyphens."""
    return cell.replace(",", "").replace(".", "").replace("-", "").isdigit()


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows, whose cells are Markdown, as a table.

    A column aligns right if at least half of its cells below the header, without those that are empty or a dash, are
    numbers. The first column aligns left.
    """
    header, *body = rows
    rule = ["---"]
    for i in range(1, len(header)):
        cells = [row[i] for row in body if row[i] not in ("", "-", "–")]
        numbers = [cell for cell in cells if NUMBER.fullmatch(cell)]
        is_numeric = bool(cells) and len(numbers) / len(cells) >= 0.5
        rule.append("---:" if is_numeric else "---")
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *body))


def escape(text: str) -> str:
    """Escape a plain text so that GitHub's Markdown shows it as it is; whitespace becomes single spaces."""
    one_line = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]<>|&~$#])", r"\\\1", one_line)
