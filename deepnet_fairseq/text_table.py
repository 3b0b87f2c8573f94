"""Tables of text, aligned for the terminal or as Markdown. Rows hold equally many cells; the first is the header."""

import re
from collections.abc import Sequence

# a number; "<", "~", "(" or the like may precede it, a unit or an interval follow: "< 0.1", "12 (11 to 13)", "5%"
NUMBER = re.compile(r"(\\?[(<>~]=? ?)?[+−-]?\d[\d.,]*(e[+-]?\d+)?([ (%].*)?")


def render(rows: Sequence[Sequence[str]]) -> str:
    """Return the table as lines for the terminal; cells with numbers align right."""
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
    """Tell whether a cell holds digits alone, besides commas, points and hyphens."""
    return cell.replace(",", "").replace(".", "").replace("-", "").isdigit()


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows, whose cells are Markdown, as a table.

    Columns align right, except the first, if at least half of their cells that are not empty are numbers.
    """
    header, *body = rows
    rule = ["---"]
    for i in range(1, len(header)):
        cells = [row[i] for row in body if row[i] not in ("", "-", "–")]
        numbers = [cell for cell in cells if NUMBER.fullmatch(cell)]
        is_numeric = len(numbers) / (len(cells) or 1) >= 0.5
        rule.append("---:" if is_numeric else "---")
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *body))


def escape(text: str) -> str:
    """Return plain text, with its whitespace as single spaces, as GitHub's Markdown of one line."""
    return re.sub(r"([\\`*_\[\]<>|&~$#])", r"\\\1", " ".join(text.split()))
