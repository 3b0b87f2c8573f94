"""Write the tables of docs/methods.md that follow from the registry: python -m dev.methods_page [PAGE]."""

from __future__ import annotations

import re
import sys
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

MARKS = "<!-- methods -->\n", "<!-- /methods -->"


def methods_page() -> str:
    """Return the tables: methods, why some do not fold, modifiers, options."""
    rows = [method_row(name) for name in sorted(METHODS)]
    owners = [*(get_method(cells[0]) for cells, _ in rows), *MODIFIERS.values()]
    tables = (
        [METHOD_HEADER, *(cells for cells, _ in rows)],
        [MODIFIER_HEADER, *modifier_rows()],
        [OPTION_HEADER, *(row for owner in owners for row in option_rows(owner))],
    )
    methods, modifiers, options = (
        text_table.markdown([header, *([f"`{first}`", *rest] for first, *rest in body)]) for header, *body in tables
    )
    reasons = [f"- `{cells[0]}`: {why}" for cells, why in rows if why]
    why = ["", "Why some do not fold into a plain Transformer:", "", *reasons, ""]
    return "\n".join([methods, *why, modifiers, "", options])


def with_users(page: str) -> str:
    """Fill the last column of the table of initialisations: the methods that use each profile by default."""
    for profile in PROFILES:
        users = ", ".join(name for name in sorted(METHODS) if get_method(name).init_profiles[0] == profile)
        page = re.sub(rf"^(\| `{profile}` \|.*\|) .* \|$", rf"\1 {users} |", page, flags=re.MULTILINE)
    return page


def write(page: Path) -> None:
    """Replace what stands between the marks of a page, and the last column of its table of initialisations."""
    before, rest = page.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    page.write_text(with_users(f"{before}{MARKS[0]}{methods_page()}\n{MARKS[1]}{after}"), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/methods.md"))
