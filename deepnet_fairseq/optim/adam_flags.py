"""The flags that fairseq gives its adam, for optimisers that take them too."""

from __future__ import annotations

import ast

from ..errors import UserError


def settings(cfg) -> dict:
    """lr, betas, eps and weight decay of an optimiser's config under torch's names."""
    return {
        "lr": cfg.lr[0],
        "betas": betas(cfg.adam_betas),
        "eps": cfg.adam_eps,
        "weight_decay": cfg.weight_decay,
    }


def betas(text: str) -> tuple[float, float]:
    """The words "(0.9, 0.98)" -> (0.9, 0.98); UserError for anything that is not two numbers in [0, 1)."""
    try:
        first, second = (float(value) for value in ast.literal_eval(str(text)))
    except (ValueError, SyntaxError, TypeError):
        first = second = 1.0
    if not 0 <= first < 1 or not 0 <= second < 1:
        raise UserError(f"--adam-betas {text}: give two numbers in [0, 1), as '(0.9, 0.98)'")
    return first, second
