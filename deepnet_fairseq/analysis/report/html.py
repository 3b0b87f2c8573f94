"""A report as one HTML page that needs nothing else."""

from __future__ import annotations

import base64

from .document import Document, Grid, Text
from .html_elements import Html, element, joined
from .style_sheet import CSS


def html(document: Document, pictures: dict[str, bytes]) -> str:
    """The page, which refers to nothing but logs and papers. pictures: title -> PNG."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", document.title),
        element("style", Html(CSS)),
    )
    sections = [
        *_grid_section(document.overview),
        *(_picture(title, picture) for title, picture in pictures.items()),
        *(part for grid in document.grids for part in _grid_section(grid)),
        _environments(document),
        _notes(document),
        _commands(document),
    ]
    body = element("body", element("main", _header(document), *sections))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _header(document: Document) -> Html:
    source = element("p", "Beside ", element("a", document.source, href=document.link), ".", class_="source")
    banner = [element("p", document.banner, class_="banner", role="note")] if document.banner else []
    warnings = [
        element("p", element("strong", "Warning: "), warning, class_="warning", role="note")
        for warning in document.warnings
    ]
    return element("header", element("h1", document.title), source, *banner, *warnings)


def _section(name: str, title: str, *children: str) -> Html:
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def _grid_section(grid: Grid) -> list[Html]:
    titles = zip(grid.header, grid.of_words, strict=True)
    heads = [element("th", title, scope="col", class_="words" if words else None) for title, words in titles]
    head = element("thead", element("tr", *heads))
    body = element("tbody", *(_row(row, grid.of_words) for row in grid.rows))
    table = element("table", element("caption", element("span", grid.caption)), head, body)
    scroll = element("div", table, class_="scroll", tabindex="0", role="region", aria_label=grid.title)
    return [_section(grid.name, grid.title, scroll)] if grid.rows else []


def _row(row: list[Text], of_words: list[bool]) -> Html:
    first, *others = row
    cells = map(_cell, others, of_words[1:])
    return element("tr", element("th", _content(first), scope="row"), *cells)


def _cell(cell: Text, words: bool) -> Html:
    kinds = [cell.kind.replace(" ", "-")] * bool(cell.kind) + ["words"] * words
    return element("td", _content(cell), class_=" ".join(kinds) or None)


def _content(cell: Text) -> Html:
    if cell.kind == "environment":
        return element("a", cell.text, href=f"#environment-{cell.text}")
    parts = [element("a", cell.text, href=cell.link) if cell.link else element("span", cell.text, class_="value")]
    if cell.marks:
        letters = [element("a", letter, href=f"#environment-{letter}") for letter in cell.marks]
        parts.append(element("sup", *(part for letter in letters for part in (Html(" "), letter))))
    if cell.paper:
        parts.append(element("span", f"({cell.paper})", class_="paper"))
    return joined(*parts)


def _picture(title: str, picture: bytes) -> Html:
    source = f"data:image/png;base64,{base64.b64encode(picture).decode('ascii')}"
    image = element("img", src=source, alt=f"{title}; its numbers stand in the tables of this page")
    name = title.lower().replace(" ", "-")
    scroll = element("div", image, class_="scroll picture", tabindex="0", role="region", aria_label=title)
    return _section(name, title, element("figure", scroll))


def _environments(document: Document) -> Html:
    items = [
        element("li", element("b", letter), " ", text, id=f"environment-{letter}")
        for letter, text in document.footnotes.items()
    ]
    return _section("environments", "Trained with", element("ul", *items, class_="letters"))


def _commands(document: Document) -> Html:
    found = [
        element("details", element("summary", name), element("pre", element("code", command)))
        for name, command in document.commands.items()
    ]
    return _section("commands", "Commands", *found) if found else Html("")


def _notes(document: Document) -> Html:
    return _section("notes", "Notes", element("ul", *(element("li", note) for note in document.notes)))
