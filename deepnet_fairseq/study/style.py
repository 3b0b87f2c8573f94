"""Styles under their former name, for the modules of the depth study."""

from .plots import PLAIN, Style, style_of

__all__ = ["PLAIN", "Style", "style_of"]
