"""Tables of text, aligned for the terminal or as Markdown; the first row is the header."""

import re
from collections.abc import Sequence

NUMBER = re.compile(r"(\\?[(<>~]=? ?)?[+−-]?\d[\d.,]*(e[+-]?\d+)?([ (%].*)?")  # with its bound, unit or interval


def render(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows, equally long, as aligned lines; numbers align right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(c.rjust(w) if _is_plain(c) else c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _is_plain(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").replace("-", "").isdigit()


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows, whose cells are Markdown, as a table; columns of numbers align right, but for the first."""
    header, *body = rows
    columns = [[row[i] for row in body if row[i] not in ("", "-", "–")] for i in range(len(header))]
    shares = [sum(map(bool, map(NUMBER.fullmatch, column))) / (len(column) or 1) for column in columns]
    rule = ["---:" if share >= 0.5 else "---" for share in shares]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---", *rule[1:]], *body))


def escape(text: str) -> str:
    """Return plain text as GitHub's Markdown of one line."""
    return re.sub(r"([\\`*_\[\]<>|&~$#])", r"\\\1", " ".join(text.split()))
