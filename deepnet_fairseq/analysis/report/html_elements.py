"""HTML elements whose text is escaped by construction."""

from __future__ import annotations

from html import escape

VOID = {"meta", "img", "br"}


class Html(str):
    """Text that is markup already; any other text becomes it by being escaped."""


def element(tag: str, /, *children: str, **attributes: str | bool | None) -> Html:
    """<tag ...>children</tag>. An attribute None or False is left out; class_ is class, data_x is data-x."""
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    start = f"<{tag}{given}>"
    return Html(start if tag in VOID else f"{start}{joined(*children)}</{tag}>")


def joined(*children: str) -> Html:
    """One after another, what is no markup yet escaped."""
    return Html("".join(child if isinstance(child, Html) else escape(child, quote=False) for child in children))
