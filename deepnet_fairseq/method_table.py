"""What `deepnet methods` and docs/methods.md say of each method, measured on a built model where it can be."""

from __future__ import annotations

import torch

from .building import build
from .export.fold import obstacle
from .methods import get_method

HEADER = ["method", "a residual branch computes", "paper", "extra parameters", "last LN", "folds", "to train"]


def facts(name: str) -> dict:
    """What there is to say of a method; UserError for a name that none has.

    method, equation, paper; extra_parameters beside Post-LN at 6L-6L of width 512; norm; final_norm (a LayerNorm at the
    end of each stack?); obstacle to folding, None if there is none; train_flags; options with help and default.
    """
    method = get_method(name)
    with torch.device("meta"):
        model, base = (build(method=m, encoder_layers=6, decoder_layers=6, vocab=10) for m in (name, "post_ln"))
    sizes = [sum(p.numel() for p in m.parameters()) for m in (model, base)]
    return {
        "method": name,
        "equation": method.equation,
        "paper": method.paper,
        "extra_parameters": sizes[0] - sizes[1],
        "norm": model.encoder.layers[0].norm_place,
        "final_norm": model.encoder.layer_norm is not None,
        "obstacle": obstacle(model),
        "train_flags": list(method.train_flags),
        "options": {
            method.flag(key): {"default": option.default, "choices": list(option.choices), "help": option.help}
            for key, option in method.options.items()
        },
    }


def as_cells(row: dict) -> list[str]:
    """One line of the table under HEADER."""
    folds = "no" if row["obstacle"] else "yes"
    last = "yes" if row["final_norm"] else "no"
    extra = f"{row['extra_parameters']:+,}" if row["extra_parameters"] else "0"
    return [row["method"], row["equation"], row["paper"], extra, last, folds, " ".join(row["train_flags"])]


def markdown(rows: list[dict]) -> str:
    """The table, why methods do not fold, their options."""
    cells = [[f"`{first}`", *rest] for first, *rest in map(as_cells, rows)]
    reasons = [f"- `{row['method']}`: {row['obstacle']}" for row in rows if row["obstacle"]]
    options = [
        [f"`{flag}`", " / ".join(option["choices"]) or _kind(option["default"]), str(option["default"]), option["help"]]
        for row in rows
        for flag, option in row["options"].items()
    ]
    return "\n".join(
        [
            *_grid(HEADER, cells),
            "",
            "Why some do not fold into a plain Transformer:",
            "",
            *reasons,
            "",
            *_grid(["option", "values", "default", "meaning"], options),
        ]
    )


def _kind(default) -> str:
    return {bool: "flag", type(None): "text"}.get(type(default), "number")


def _grid(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]
