"""Tests that every link of a page leads to a file, heading or picture of this repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..support.helpers import ROOT

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("*.md")]
every_page = pytest.mark.parametrize("page", sorted(PAGES), ids=lambda path: str(path.relative_to(ROOT)))


def prose(text: str) -> str:
    """Return a page without its code blocks, where brackets are no links and # begins a comment."""
    return re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.DOTALL | re.MULTILINE)


def targets(text: str) -> list[str]:
    """Return the targets of links and pictures, in Markdown or HTML."""
    without_code = re.sub(r"(?<!\[)`[^`\n]*`", "", prose(text))
    in_markdown = re.findall(r"\]\(<?([^)\s>]+)>?\)", without_code)
    in_html = re.findall(r"\b(?:href|src|srcset)=\"([^\"]+)\"", without_code)
    return in_markdown + in_html


def anchors(text: str) -> set[str]:
    """Return the anchors of headings: lower case, hyphens for blanks, no other marks, -1 for a repeated one."""
    slugs: list[str] = []
    for title in re.findall(r"^#+ +(.+?) *$", prose(text), re.MULTILINE):
        # of a link in the heading its text is shown
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        slugs.append(f"{slug}-{slugs.count(slug)}" if slug in slugs else slug)
    return set(slugs)


def leads_nowhere(page: Path, target: str) -> bool:
    """Return whether a link's file or heading is missing."""
    path, _, heading = target.partition("#")
    linked = page.parent / path if path else page
    if not linked.exists():
        return True
    return heading != "" and heading not in anchors(linked.read_text())


def local_targets(page: Path) -> list[str]:
    """Return the targets of a page's links that are no addresses of the web."""
    return [target for target in targets(page.read_text()) if "://" not in target]


@every_page
def test_links_lead_to_a_file_or_heading(page):
    broken = [target for target in local_targets(page) if leads_nowhere(page, target)]

    assert broken == []


def test_links_of_the_readme_are_found():
    """test_links_lead_to_a_file_or_heading would accept a page whose links it does not recognise."""
    assert len(local_targets(ROOT / "README.md")) > 10
