"""Refuse settings that would run code: fairseq reads texts such as "(0.9, 0.98)" and "[(512, 3)] * 20" with eval().

A checkpoint or YAML file with the setting adam_betas: "__import__('os').system(...)" would run that command. Texts are
parsed here, and refused if they hold more than constants, containers and simple arithmetic.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from ..errors import UserError

# sections of fairseq's config whose settings are looked at
SECTIONS = ("model", "task", "criterion", "optimizer", "lr_scheduler", "scoring", "bpe", "tokenizer")
PLACES = {"data", "path", "dir", "file"}  # words in the names of settings whose value is a file or a folder
# syntax that runs code, or can take very long: 9**9**9, 9<<9999999999
RUNS = (
    ast.Call,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.NamedExpr,
    ast.Pow,
    ast.LShift,
)
LONGEST = 100_000  # the largest integer in a text with a product, which may make a list as long as it says


def check_plain(where: object, config: Mapping | argparse.Namespace | None) -> None:
    """Raise a UserError, naming `where` and the setting, if fairseq's eval of it would run code or take very long.

    where: the file or config, for the message; config: fairseq's whole config, or the Namespace of arguments in a
    checkpoint of an old release; None holds no settings.
    """
    if isinstance(config, Mapping):
        config = {section: config.get(section) for section in SECTIONS}
    for name, text in _texts(config):
        is_place = not PLACES.isdisjoint(name.split("_"))
        # without a bracket nothing is called, and without an operator nothing is computed
        if is_place or not any(sign in text for sign in "([{*<"):
            continue
        try:
            nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # eval() would raise the same
            continue

        runs_code = any(isinstance(node, RUNS) for node in nodes)
        multiplies = any(isinstance(node, ast.Mult) for node in nodes)
        integers = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, int)]
        too_long = multiplies and max(integers, default=0) > LONGEST
        if runs_code or too_long:
            shown = text if len(text) < 100 else f"{text[:100]}..."
            raise UserError(where, f"{name} {shown!r} is no plain value, as (0.9, 0.98) is; nothing of it was run")


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (name, value) of all settings in nested containers whose value is a text.

    value: a container or the value of a setting; name: the setting's, or the section's for a whole section. An entry of
    a list has the name of the list.
    """
    if isinstance(value, DictConfig | ListConfig):  # unresolved: a setting may refer to one that is not there yet
        value = OmegaConf.to_container(value, resolve=False)
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, name)
    elif isinstance(value, str):
        yield name, value
