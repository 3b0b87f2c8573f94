"""Plan many trainings, the rows of a table: the batch that fits into memory, hours and disk space.

Hours are operations over an assumed rate; the bytes of checkpoints follow from the parameters.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from ...errors import UserError
from ...text_table import render
from .fit import USABLE, Option, choose
from .needs import TERA, updates_of
from .setting import GIB, OPTIMIZERS, Parser, Setting, check_number, parse

ASSUMED = {"cuda": 100.0, "cpu": 0.03}  # TFLOP/s: a third of an A100's peak; a core with narrow layers
MOMENTS, MASTER, HALF, SINGLE = 8, 4, 2, 4  # bytes a parameter: Adam's, float32 copies, weights
WHOLE = 3  # checkpoints with all state at a time: the last, the one before, and the one that is being written
GB = 1e9
EPOCHS = re.compile(r"(?:(?:last:)?\d{1,9}|\d{1,9}-\d{1,9})?")
NUMBERS = {  # flags of a row that this module reads
    "--kept": 1, "--stuck": 0, "--save-interval-updates": 0, "--distributed-world-size": 1, "--corpus-tokens": 0.0,
    "--max-update": 0.0, "--max-epoch": 0.0,
}  # fmt: skip
WORDS = {"--optimizer": OPTIMIZERS[0], "--epoch-weights": "", "--experiment": "", "--facts": "{}", "--free": ""}
NAME = 32  # characters of a row's name that are shown


@dataclass(frozen=True)
class Row:
    """Row of the plan: one training and its files.

    name: of its run; option: its setting; updates: None if its end is unknown; hours; peak, kept: bytes on the disk,
    the most while it trains, and at its end; done: whether it is over already; stuck: if the paper's run diverged,
    number of updates after which this one is planned to end as stuck, else 0.
    """

    name: str
    option: Option
    parameters: int
    updates: int | None
    hours: float
    peak: float
    kept: float
    done: bool
    stuck: int

    @property
    def flags(self) -> str:
        """Flags of fairseq-train that were chosen, "!" if the training does not fit into the GPU."""
        stuck = f" --stop-stuck {self.stuck}" if self.stuck else ""
        return self.option.flags + stuck if self.fits else "!"

    @property
    def fits(self) -> bool:
        """True if the training fits into a GPU, or is on the CPU."""
        return self.option.fits or self.option.setting.device == "cpu"

    @property
    def least_memory(self) -> float:
        """Bytes of a GPU into which it fits."""
        return self.option.memory.peak / USABLE


def read(lines: Iterable[str], rate: float | None = None) -> list[Row]:
    """Read a row of each line: `NAME [--done] [--vocab SIZE] [--corpus-tokens N] [--kept N] WORDS of fairseq-train`.

    --corpus-tokens: target tokens of an epoch, for trainings that end by epochs; --kept: how many files with weights
    stay (default 1; 0: nothing is saved); --free: settings to choose, "batch,recompute" or one; --facts: run.json's,
    --experiment: its folder, to find the paper's cell; --stuck: updates after which a training ends whose cell diverged
    there. rate: TFLOP/s of each GPU or process. Raises a UserError, naming the row, for invalid flags.
    """
    return [_row(shlex.split(line), rate) for line in lines if line.strip()]


def _row(words: list[str], rate: float | None) -> Row:
    name, *words = words
    own = Parser(add_help=False, allow_abbrev=False)
    own.add_argument("--done", action="store_true")
    for flag, default in NUMBERS.items():
        own.add_argument(flag, type=type(default), default=default)
    for flag, word in WORDS.items():
        own.add_argument(flag, default=word)
    try:
        args, words = own.parse_known_args(words)
        for flag in NUMBERS:
            check_number(flag, getattr(args, flag[2:].replace("-", "_")), zero=True)
        if not EPOCHS.fullmatch(args.epoch_weights):
            raise UserError(f"--epoch-weights {args.epoch_weights}: write last:N or A-B")
        adam = args.optimizer in OPTIMIZERS
        words += ["--gpus", str(args.distributed_world_size), *(["--optimizer", args.optimizer] if adam else [])]
        setting = parse(words, strict=False)
        option, parameters, work = choose(setting, "batch" in args.free, "recompute" in args.free, adam)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    ends = [int(args.max_update)] if args.max_update else []
    if args.max_epoch and args.corpus_tokens:
        ends.append(updates_of(setting, args.max_epoch, int(args.corpus_tokens)))
    stuck = args.stuck if args.stuck and diverged(args.experiment, json.loads(args.facts)) else 0
    if stuck:  # it is first saved at the first validation
        ends.append(stuck + args.save_interval_updates)
    hours = min(ends, default=0) * work / ((rate or ASSUMED[setting.device]) * TERA * setting.gpus) / 3600
    disk = _disk(setting, parameters, args)
    return Row(name, option, parameters, min(ends, default=None), hours, *disk, args.done, stuck)


def diverged(experiment: str, facts: dict) -> bool:
    """Tell whether the paper's table has this row as diverged; facts: of the row's run.json."""
    from ...study.tables import TABLES

    cells = [
        table.rows.get(tuple(facts.get(key, "") for key in table.keys), {})
        for table in TABLES.values()
        if experiment in table.folders
    ]
    return any("diverged" in cell.values() for cell in cells)


def _disk(setting: Setting, parameters: int, args) -> tuple[float, float]:
    """Return the bytes on the disk: the most, and at the end."""
    if not args.kept:
        return 0.0, 0.0
    weights = parameters * (SINGLE if setting.precision == "fp32" else HALF)
    master = MASTER if setting.precision in ("fp16", "bf16") else 0
    whole = weights + parameters * (MOMENTS + master)
    match = args.epoch_weights.removeprefix("last:").split("-")
    epochs = 0 if not args.epoch_weights else int(match[-1]) - (int(match[0]) if len(match) == 2 else 0) + 1
    return WHOLE * whole + (epochs + 1) * weights, args.kept * weights


def as_text(rows: list[Row], rate: float | None = None, side_by_side: int = 1) -> str:
    """Format the plan of rows that are trained in this order, `side_by_side` at a time: a line each, and sums."""
    left, setting = [row for row in rows if not row.done], rows[0].option.setting
    hours, kept = sum(row.hours for row in left) / side_by_side, sum(row.kept for row in rows)
    most = kept + sum(sorted((row.peak for row in left), reverse=True)[:side_by_side])
    unit, limit = "process", ""
    if setting.device == "cuda":
        unit, limit = "GPU", f" of {setting.gpu_memory / GIB:.3g}, of which {1 - USABLE:.0%} stay free"
    peak = max(row.option.memory.peak for row in rows) / GIB
    count = f"{len(rows)} row{'s' * (len(rows) > 1)}"
    count += f", {len(rows) - len(left)} of them done" if len(left) < len(rows) else ""
    count += f", {side_by_side} at a time" if side_by_side > 1 else ""
    time = f"{_short(hours)} hours" + (f" ({hours / 24:.1f} days)" if hours >= 48 else "")
    speed = f"{rate or ASSUMED[setting.device]:g} TFLOP/s of each {unit}, {'as given' if rate else 'assumed'}"
    lines = [_table(rows, unit), "", f"{count}: {time} at {speed}"]
    lines += [
        f"memory: at most {peak:.1f} GiB{limit}",
        f"disk: at most {_short(most / GB)} GB, in the end {_short(kept / GB)} GB",
    ]
    if any(row.stuck for row in rows):
        lines.append("* diverged in the paper: ends when it has learnt nothing after so many updates (STOP_STUCK)")
    if any(row.flags == "!" for row in rows):
        lines.append("! does not fit, whatever is recomputed: larger or more GPUs")
    return "\n".join(lines)


def _table(rows: list[Row], unit: str) -> str:
    table = [["row", "size", f"tokens of a {unit}", "recomputed", "GiB", "updates", "hours", "GB"]]
    folder = os.path.commonpath([os.path.dirname(row.name) for row in rows])
    for row in rows:
        name, setting = os.path.relpath(row.name, folder or "."), row.option.setting
        table.append([
            name if len(name) <= NAME else f"{name[: NAME // 2]}…{name[1 - NAME // 2 :]}",
            f"{row.parameters / 1e6:,.1f} M", f"{setting.max_tokens:,} x {setting.update_freq}",
            ("yes" if setting.checkpoint_every else "no") + " ZeRO" * setting.zero,
            f"{row.option.memory.peak / GIB:.1f}" + "!" * (row.flags == "!"),
            ("?" if row.updates is None else f"{row.updates:,}") + "*" * bool(row.stuck),
            "done" if row.done else _short(row.hours), _short(row.peak / GB),
        ])  # fmt: skip
    return render(table)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"
