"""The validation losses in a fairseq-train log."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from ..json_text import WRONG_VALUES, parse

LINE = re.compile(r"\| INFO \| valid \| (\{.*\})")


@dataclass(frozen=True)
class Validation:
    """After updates[i], in epoch epochs[i] (from 1): losses[i], label-smoothed, bits per token."""

    updates: list[int]
    epochs: list[int]
    losses: list[float]

    @property
    def end(self) -> int:
        """Updates made at the last validation; 0 without one."""
        return self.updates[-1] if self.updates else 0

    @property
    def final(self) -> float:
        """Loss of the last validation, bits per token; NaN without one."""
        return self.losses[-1] if self.losses else math.nan

    @property
    def once_an_epoch(self) -> bool:
        """Does no epoch have two validations?"""
        return len(set(self.epochs)) == len(self.epochs)


def read_validation(path: Path) -> Validation:
    """The curve, where a resumed run replaces what it repeats; UserError if there is none."""
    if not path.is_file():
        raise UserError(f"{path}: no such log")
    found: dict[int, tuple[int, float]] = {}
    for match in LINE.finditer(path.read_text(encoding="utf-8", errors="replace")):
        try:
            row = parse(match.group(1))
            found[int(row["valid_num_updates"])] = (int(row["epoch"]), float(row["valid_loss"]))
        except WRONG_VALUES as error:
            raise UserError(f"{path}: a validation line lacks {error}; train with --log-format json") from error
    if not found:
        raise UserError(f"{path}: no validation loss in it (train with a validation set and --log-format json)")
    updates = sorted(found)
    return Validation(updates, [found[u][0] for u in updates], [found[u][1] for u in updates])
