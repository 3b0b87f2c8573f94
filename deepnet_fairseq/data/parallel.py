"""Parallel text in two files, one sentence a line; reading it finds whatever would spoil a training run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError


@dataclass(frozen=True)
class ParallelText:
    """Sentence pairs; source[i] translates to target[i]."""

    source: list[str]
    target: list[str]

    def __len__(self) -> int:
        return len(self.source)

    def __add__(self, other: ParallelText) -> ParallelText:
        return ParallelText(self.source + other.source, self.target + other.target)


def read_parallel(prefix: str, source_lang: str, target_lang: str, drop_empty: bool = False) -> ParallelText:
    """PREFIX.source_lang and PREFIX.target_lang; UserError for a missing file, bad UTF-8, unequal or empty lines."""
    paths = [Path(f"{prefix}.{lang}") for lang in (source_lang, target_lang)]
    source, target = (_read_lines(path) for path in paths)
    if len(source) != len(target):
        raise UserError(
            f"{paths[0]} has {len(source):,} lines, {paths[1]} has {len(target):,}: each line must translate its twin"
        )
    empty = [i for i, pair in enumerate(zip(source, target, strict=True)) if not all(pair)]
    if empty and not drop_empty:
        side = paths[0] if not source[empty[0]] else paths[1]
        raise UserError(
            f"{side}, line {empty[0] + 1}: empty ({len(empty):,} such pairs); remove them, or pass --drop-empty"
        )
    kept = [pair for pair in zip(source, target, strict=True) if all(pair)]
    if not kept:
        raise UserError(f"{paths[0]}: no sentence in it")
    return ParallelText(*map(list, zip(*kept, strict=True)))


def _read_lines(path: Path) -> list[str]:
    """Lines without surrounding white space; only \\n ends a line, as for every other tool of the trade."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; a prefix P stands for P.SRC and P.TGT")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8; convert it, say with iconv -t UTF-8") from None
    lines = text.split("\n")
    return [line.strip() for line in (lines[:-1] if lines[-1] == "" else lines)]
