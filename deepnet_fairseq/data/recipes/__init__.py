"""Corpora of the papers as recipes: name -> how it is made."""

from __future__ import annotations

from ...errors import UserError
from .base import Options, Recipe
from .own_text import OwnText

RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (OwnText(),)}


def find(name: str) -> Recipe:
    """The recipe of that name; UserError, with the list of them, if there is none."""
    if name not in RECIPES:
        listed = "; ".join(f"{recipe.name} ({recipe.title})" for recipe in RECIPES.values())
        raise UserError(f"there is no recipe {name}; there are {listed}")
    return RECIPES[name]


__all__ = ["RECIPES", "Options", "Recipe", "find"]
