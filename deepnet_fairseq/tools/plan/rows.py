"""Plan of many trainings: the rows of a table, their hours and their disk space.

Hours are operations over an assumed rate; the bytes of checkpoints follow from the parameters.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace

from ...core import archs
from ...errors import UserError
from ...text_table import render
from .needs import TERA, count, flops, updates_of
from .setting import OPTIMIZERS, Parser, Setting, check_number, parse

ASSUMED = {"cuda": 100.0, "cpu": 0.03}  # TFLOP/s: a third of an A100's peak; a core with narrow layers
MOMENTS, MASTER, HALF, SINGLE = 8, 4, 2, 4  # bytes a parameter: Adam's, float32 copies, weights
WHOLE = 3  # checkpoints with all state at a time: the last, the one before, and the one that is being written
GB = 1e9
EPOCHS = re.compile(r"(?:(?:last:)?\d{1,9}|\d{1,9}-\d{1,9})?")


@dataclass(frozen=True)
class Row:
    """One training and its files.

    name: of its run; layers: as "18L-18L"; updates: None where nothing says its end; hours; peak, kept: bytes on the
    disk at the most while it trains, and at its end; done: is it over already?
    """

    name: str
    layers: str
    parameters: int
    updates: int | None
    hours: float
    peak: float
    kept: float
    done: bool


def read(lines: Iterable[str], rate: float | None = None) -> list[Row]:
    """Return a row of each line: `NAME [--done] [--vocab SIZE] [--corpus-tokens N] [--kept N] WORDS of fairseq-train`.

    --corpus-tokens: target tokens of an epoch, for trainings that end by epochs; --kept: how many files with weights
    stay (default 1; 0: nothing is saved). rate: TFLOP/s of each GPU or process. UserError, naming the row, for flags
    that cannot be.
    """
    known: dict[str, SimpleNamespace] = {}  # operations do not depend on the method
    return [_row(shlex.split(line), rate, known) for line in lines if line.strip()]


def _row(words: list[str], rate: float | None, known: dict[str, SimpleNamespace]) -> Row:
    name, *words = words
    own = Parser(add_help=False, allow_abbrev=False)
    own.add_argument("--done", action="store_true")
    own.add_argument("--kept", type=int, default=1)
    for flag in ("--corpus-tokens", "--max-update", "--max-epoch"):
        own.add_argument(flag, type=float, default=0)
    own.add_argument("--distributed-world-size", type=int, default=1)
    own.add_argument("--optimizer", default=OPTIMIZERS[0])
    own.add_argument("--epoch-weights", default="")
    try:
        args, words = own.parse_known_args(words)
        flat = ["--optimizer", args.optimizer] if args.optimizer in OPTIMIZERS else []
        for flag in ("corpus_tokens", "max_update", "max_epoch", "kept"):
            check_number(f"--{flag.replace('_', '-')}", getattr(args, flag), zero=True)
        if not EPOCHS.fullmatch(args.epoch_weights):
            raise UserError(f"--epoch-weights {args.epoch_weights}: write last:N or A-B")
        setting = parse([*words, *flat, "--gpus", str(args.distributed_world_size)], strict=False)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    layers = "-".join(f"{getattr(setting.cfg, field)}L" for field in setting.layer_fields)
    updates = _updates(setting, args)
    key = repr((layers, {**vars(setting), "cfg": archs.depths(setting.cfg), "width": _width(setting)}))
    if key not in known:
        known[key] = flops(setting)
    tera = ASSUMED[setting.device] if rate is None else rate
    hours = (updates or 0) * known[key].step / (tera * TERA * setting.gpus) / 3600
    parameters = count(setting).total
    peak, kept = _disk(setting, parameters, args)
    return Row(name, layers, parameters, updates, hours, peak, kept, args.done)


def _width(setting: Setting) -> list:
    """Return the fields that distinguish the operations of two models of one depth."""
    fields = sorted(name for name in vars(setting.cfg) if name.endswith(("_dim", "_heads")))
    return [getattr(setting.cfg, name) for name in fields]


def _updates(setting: Setting, args) -> int | None:
    """Return the end by --max-update or --max-epoch, whichever comes first."""
    ends = [int(args.max_update)] * (args.max_update > 0)
    if args.max_epoch > 0 and args.corpus_tokens:
        ends.append(updates_of(setting, args.max_epoch, int(args.corpus_tokens)))
    return min(ends, default=None)


def _disk(setting: Setting, parameters: int, args) -> tuple[float, float]:
    """Return bytes at most, and at the end."""
    if not args.kept:
        return 0.0, 0.0
    weights = parameters * (SINGLE if setting.precision == "fp32" else HALF)
    master = MASTER if setting.precision in ("fp16", "bf16") else 0
    whole = weights + parameters * (MOMENTS + master)
    match = args.epoch_weights.removeprefix("last:").split("-")
    epochs = 0 if not args.epoch_weights else int(match[-1]) - (int(match[0]) if len(match) == 2 else 0) + 1
    return WHOLE * whole + (epochs + 1) * weights, args.kept * weights


def as_text(rows: list[Row], side_by_side: int = 1) -> str:
    """Return the plan of rows that are trained in this order, so many at a time: a line for each depth, and sums."""
    left = [row for row in rows if not row.done]
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((row.layers, row.updates), []).append(row)
    table = [["layers", "rows", "parameters", "updates", "hours a row", "GB while it trains", "GB kept"]]
    for (layers, updates), found in groups.items():
        largest = max(found, key=lambda row: row.parameters)
        table.append([
            layers, str(len(found)), _number(largest.parameters), "not known" if updates is None else f"{updates:,}",
            _short(largest.hours), _short(largest.peak / GB), _short(largest.kept / GB),
        ])  # fmt: skip
    hours, kept = sum(row.hours for row in left) / side_by_side, sum(row.kept for row in rows)
    most = kept + sum(sorted((row.peak for row in left), reverse=True)[:side_by_side])
    done = f", {len(rows) - len(left)} of them done" if len(left) < len(rows) else ""
    together = f", {side_by_side} at a time" if side_by_side > 1 else ""
    time = f"{_short(hours)} hours" + (f" ({hours / 24:.1f} days)" if hours >= 48 else "")
    disk = f"at most {_short(most / GB)} GB, in the end {_short(kept / GB)} GB"
    names = ", ".join(row.name for row in left[:3]) + (f", ..., {left[-1].name}" if len(left) > 3 else "")
    lines = [render(table), "", f"{len(rows)} row{'s' * (len(rows) > 1)}{done}{together}: {time}; on the disk {disk}"]
    return "\n".join([*lines, f"order: {names}"] if left else lines)


def _number(size: int) -> str:
    return f"{size / 1e9:.1f} B" if size >= 1e9 else f"{size / 1e6:.0f} M" if size >= 1e7 else f"{size / 1e6:.1f} M"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"
