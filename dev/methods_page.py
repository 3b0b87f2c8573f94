"""Write the tables of docs/methods.md that follow from the registry of methods: python -m dev.methods_page [PAGE].

Most stand between two comments of the page, <!-- methods --> and <!-- /methods -->. The table of initialisations is
written by hand, but for its last column: which methods use each of them. A modifier is an addition to any method. A
model folds if its factors can be multiplied into the weights of a plain Transformer, for export.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

from deepnet_fairseq import text_table
from deepnet_fairseq.cli.methods import (
    METHOD_HEADER,
    MODIFIER_HEADER,
    OPTION_HEADER,
    method_row,
    modifier_rows,
    option_rows,
)
from deepnet_fairseq.core.initialisation import PROFILES
from deepnet_fairseq.core.methods import METHODS, get_method
from deepnet_fairseq.core.modifiers import MODIFIERS

FIRST_MARK, LAST_MARK = "<!-- methods -->\n", "<!-- /methods -->"


def table_of_code(header: list[str], rows: Iterable[list[str]]) -> str:
    """Return a table in Markdown whose rows have their first cell in backticks, for it is a name or a flag."""
    table = [header]
    for first, *rest in rows:
        table.append([f"`{first}`", *rest])
    return text_table.markdown(table)


def methods_page() -> str:
    """Return the text between the comments: tables of methods, modifiers and options, and why some do not fold."""
    table_of_methods: list[list[str]] = []
    reasons: list[str] = []  # items of a list in Markdown
    options: list[list[str]] = []  # rows: those of the methods, then those of the modifiers
    for name in sorted(METHODS):
        cells, why_not = method_row(name)
        table_of_methods.append(cells)
        if why_not:
            reasons.append(f"- `{name}`: {why_not}")
        options += option_rows(get_method(name))
    for modifier in MODIFIERS.values():
        options += option_rows(modifier)

    lines = [table_of_code(METHOD_HEADER, table_of_methods), ""]
    lines += ["Why some do not fold into a plain Transformer:", "", *reasons, ""]
    lines += [table_of_code(MODIFIER_HEADER, modifier_rows()), ""]
    lines.append(table_of_code(OPTION_HEADER, options))
    return "\n".join(lines)


def with_users(page: str) -> str:
    """Return a page with the last column of its table of initialisations filled: the methods that use each by default.

    page: the text of docs/methods.md. The first cell of a row names an initialisation, a key of PROFILES.
    """
    for profile in PROFILES:
        users = ", ".join(name for name in sorted(METHODS) if get_method(name).init_profiles[0] == profile)
        # a row's text up to its last cell, which is replaced
        page = re.sub(rf"^(\| `{profile}` \|.*\|) .* \|$", rf"\1 {users} |", page, flags=re.MULTILINE)
    return page


def write(page: Path) -> None:
    """Replace the text between the two comments of the file `page`, and fill its table of initialisations."""
    before, rest = page.read_text(encoding="utf-8").split(FIRST_MARK)
    after = rest.split(LAST_MARK)[1]
    rendered = f"{before}{FIRST_MARK}{methods_page()}\n{LAST_MARK}{after}"
    page.write_text(with_users(rendered), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/methods.md"))
