"""Recipes of the papers' corpora, by name."""

from __future__ import annotations

from ...errors import UserError
from .base import Options, Recipe
from .iwslt14 import Iwslt14
from .m2m102 import M2m102
from .multilingual import OwnText
from .opus100 import Opus100
from .wmt import Wmt14, Wmt14French, Wmt17

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe for recipe in (Iwslt14(), Wmt17(), Wmt14(), Wmt14French(), Opus100(), M2m102(), OwnText())
}


def find(name: str) -> Recipe:
    """Return the recipe called `name`; raise a UserError with the list of recipes if there is none."""
    if name not in RECIPES:
        listed = "; ".join(f"{recipe.name} ({recipe.title})" for recipe in RECIPES.values())
        raise UserError(f"recipe {name}", f"no such recipe; there are {listed}")
    return RECIPES[name]


__all__ = ["RECIPES", "Options", "Recipe", "find"]
