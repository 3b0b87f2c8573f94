"""Parallel text in two files, one sentence a line; reading it finds whatever would spoil a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from .lines import read_pairs


@dataclass(frozen=True)
class ParallelText:
    """Sentence pairs; source[i] translates to target[i]."""

    source: list[str]
    target: list[str]

    def __len__(self) -> int:
        return len(self.source)


def read_parallel(prefix: str, source_lang: str, target_lang: str, drop_empty: bool = False) -> ParallelText:
    """PREFIX.source_lang and PREFIX.target_lang, without white space around the lines.

    UserError for a missing file, bad UTF-8, unequal or empty lines.
    """
    paths = [Path(f"{prefix}.{lang}") for lang in (source_lang, target_lang)]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path}: no such file; a prefix P stands for P.SRC and P.TGT")
    pairs = [(source.strip(), target.strip()) for source, target in read_pairs(*paths)]
    empty = [number for number, pair in enumerate(pairs) if not all(pair)]
    if empty and not drop_empty:
        side = paths[bool(pairs[empty[0]][0])]
        raise UserError(
            f"{side}, line {empty[0] + 1}: empty ({len(empty):,} such pairs); remove them, or pass --drop-empty"
        )
    kept = [pair for pair in pairs if all(pair)]
    if not kept:
        raise UserError(f"{paths[0]}: no sentence in it")
    return ParallelText(*map(list, zip(*kept, strict=True)))
