"""Every page's links: files, headings and pictures of this repository that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .support.helpers import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("*.md")]
pages = pytest.mark.parametrize("page", sorted(PAGES), ids=lambda path: str(path.relative_to(ROOT)))


def prose(text: str) -> str:
    """A page without its blocks of code, in which brackets are no links and # is a comment."""
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)


def targets(text: str) -> list[str]:
    """Where links and pictures lead, in Markdown or HTML."""
    spans = re.sub(r"(?<!\[)`[^`\n]*`", "", prose(text))
    return re.findall(r"\]\(<?([^)\s>]+)>?\)", spans) + re.findall(r"\b(?:href|src|srcset)=\"([^\"]+)\"", spans)


def anchors(text: str) -> set[str]:
    """What headings are linked by: lower case, blanks as hyphens, no other marks; the second of a name ends in -1."""
    found: list[str] = []
    for title in re.findall(r"^#+ +(.+?) *$", prose(text), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


def leads_nowhere(page: Path, target: str) -> bool:
    """A file that is not there, or a heading that the page has not got."""
    path, _, heading = target.partition("#")
    linked = page.parent / path if path else page
    return not linked.exists() or bool(heading) and heading not in anchors(linked.read_text())


@pages
def test_links_lead_somewhere(page):
    local = [target for target in targets(page.read_text()) if "://" not in target]
    assert not [target for target in local if leads_nowhere(page, target)]
