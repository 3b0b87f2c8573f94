"""Plan many trainings, the rows of a table: the batch that fits into memory, hours and disk space.

Hours are operations over an assumed rate; the bytes of checkpoints follow from the parameters.
"""

from __future__ import annotations

import argparse
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

    name: of its run; option: its setting and memory; parameters: their number; updates: None if its end is unknown;
    hours: of training; peak: the most bytes on the disk while it trains; kept: bytes on the disk at its end; done:
    whether it is over already; stuck: if the paper's run diverged, number of updates after which this one is planned to
    end as stuck, else 0.
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
        if not self.fits:
            return "!"
        if self.stuck:
            return f"{self.option.flags} --stop-stuck {self.stuck}"
        return self.option.flags

    @property
    def fits(self) -> bool:
        """True if the training fits into a GPU, or is on the CPU."""
        return self.option.fits or self.option.setting.device == "cpu"

    @property
    def least_memory(self) -> float:
        """Bytes of a GPU into which it fits."""
        return self.option.memory.peak / USABLE


def read_rows(lines: Iterable[str], rate: float | None = None) -> list[Row]:
    """Read a row of each line: `NAME [--done] [--vocab SIZE] [--corpus-tokens N] [--kept N] WORDS of fairseq-train`.

    --corpus-tokens: target tokens of an epoch, for trainings that end by epochs; --kept: how many files with weights
    stay (default 1; 0: nothing is saved); --free: settings to choose, "batch,recompute" or one; --facts: run.json's,
    --experiment: its folder, to find the paper's cell; --stuck: updates after which a training ends whose cell diverged
    there. rate: TFLOP/s of each GPU or process. Raises a UserError, naming the row, for invalid flags.
    """
    return [_row(shlex.split(line), rate) for line in lines if line.strip()]


def _row(words: list[str], rate: float | None) -> Row:
    """Make the row of a line's words; rate: as for `read`."""
    name, *flags = words
    try:
        args, rest = _parse_own(flags)
        adam = args.optimizer in OPTIMIZERS
        rest += ["--gpus", str(args.distributed_world_size)]
        if adam:
            rest += ["--optimizer", args.optimizer]
        setting = parse(rest, strict=False)
        free_batch = "batch" in args.free
        free_recompute = "recompute" in args.free
        option, parameters, operations = choose(setting, batch=free_batch, recompute=free_recompute, adam=adam)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None

    stuck = 0
    if args.stuck and diverged(args.experiment, json.loads(args.facts)):
        stuck = args.stuck

    ends = []  # updates after which the training may end; the first one ends it
    if args.max_update:
        ends.append(int(args.max_update))
    if args.max_epoch and args.corpus_tokens:
        ends.append(updates_of(setting, args.max_epoch, int(args.corpus_tokens)))
    if stuck:  # it is first saved at the first validation
        ends.append(stuck + args.save_interval_updates)

    flops_per_second = (rate or ASSUMED[setting.device]) * TERA * setting.gpus
    peak, kept = _disk(setting, parameters, args)
    return Row(
        name=name,
        option=option,
        parameters=parameters,
        updates=min(ends, default=None),
        hours=min(ends, default=0) * operations / flops_per_second / 3600,
        peak=peak,
        kept=kept,
        done=args.done,
        stuck=stuck,
    )


def _parse_own(flags: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse the flags that this module reads; return the others too. Raises a UserError for invalid ones."""
    own = Parser(add_help=False, allow_abbrev=False)
    own.add_argument("--done", action="store_true")
    for flag, default in NUMBERS.items():
        own.add_argument(flag, type=type(default), default=default)
    for flag, word in WORDS.items():
        own.add_argument(flag, default=word)

    args, rest = own.parse_known_args(flags)
    for flag in NUMBERS:
        name = flag.removeprefix("--").replace("-", "_")
        check_number(flag, getattr(args, name), zero=True)
    if not EPOCHS.fullmatch(args.epoch_weights):
        raise UserError(f"--epoch-weights {args.epoch_weights}: write last:N or A-B")
    return args, rest


def diverged(experiment: str, facts: dict) -> bool:
    """Tell whether the paper's table has this row as diverged; facts: of the row's run.json."""
    from ...study.tables import TABLES

    for table in TABLES.values():
        if experiment in table.folders:
            place = tuple(facts.get(key, "") for key in table.keys)
            published = table.rows.get(place, {})
            if "diverged" in published.values():
                return True
    return False


def _disk(setting: Setting, parameters: int, args: argparse.Namespace) -> tuple[float, float]:
    """Return the bytes on the disk: the most while it trains, and at its end."""
    if not args.kept:
        return 0.0, 0.0
    weights = parameters * (SINGLE if setting.precision == "fp32" else HALF)
    master = MASTER if setting.precision in ("fp16", "bf16") else 0
    whole = weights + parameters * (MOMENTS + master)

    numbers = args.epoch_weights.removeprefix("last:").split("-")
    if not args.epoch_weights:
        epochs = 0
    elif len(numbers) == 2:  # A-B
        epochs = int(numbers[1]) - int(numbers[0]) + 1
    else:  # last:N, which keeps one to spare
        epochs = int(numbers[0]) + 1

    peak = WHOLE * whole + (epochs + 1) * weights  # 1: the file that is made of these, as the averaged model
    return peak, args.kept * weights


def as_text(rows: list[Row], rate: float | None = None, side_by_side: int = 1) -> str:
    """Format the plan of rows that are trained in this order, `side_by_side` at a time: a line each, and sums.

    rate: TFLOP/s that `read` was given.
    """
    left = [row for row in rows if not row.done]
    setting = rows[0].option.setting  # its device and memory stand for those of all rows
    unit = "GPU" if setting.device == "cuda" else "process"

    count = f"{len(rows)} row"
    if len(rows) > 1:
        count += "s"
    if len(left) < len(rows):
        count += f", {len(rows) - len(left)} of them done"
    if side_by_side > 1:
        count += f", {side_by_side} at a time"

    hours = sum(row.hours for row in left) / side_by_side
    time = f"{_short(hours)} hours"
    if hours >= 48:
        time += f" ({hours / 24:.1f} days)"
    speed = f"{rate or ASSUMED[setting.device]:g} TFLOP/s of each {unit}, {'as given' if rate else 'assumed'}"

    peak_memory = max(row.option.memory.peak for row in rows) / GIB
    limit = ""
    if setting.device == "cuda":
        limit = f" of {setting.gpu_memory / GIB:.3g}, of which {1 - USABLE:.0%} stay free"

    kept = sum(row.kept for row in rows)
    largest_first = sorted((row.peak for row in left), reverse=True)
    peak_disk = kept + sum(largest_first[:side_by_side])

    lines = [
        _table(rows, unit),
        "",
        f"{count}: {time} at {speed}",
        f"memory: at most {peak_memory:.1f} GiB{limit}",
        f"disk: at most {_short(peak_disk / GB)} GB, in the end {_short(kept / GB)} GB",
    ]
    if any(row.stuck for row in rows):
        lines.append("* diverged in the paper: ends when it has learnt nothing after so many updates (STOP_STUCK)")
    if not all(row.fits for row in rows):
        lines.append("! does not fit, whatever is recomputed: larger or more GPUs")
    return "\n".join(lines)


def _table(rows: list[Row], unit: str) -> str:
    """Format a line for each row, named below the folder that all have in common. unit: "GPU" or "process"."""
    table = [["row", "size", f"tokens of a {unit}", "recomputed", "GiB", "updates", "hours", "GB"]]
    folder = os.path.commonpath([os.path.dirname(row.name) for row in rows])
    for row in rows:
        setting = row.option.setting

        name = os.path.relpath(row.name, folder or ".")
        if len(name) > NAME:
            name = f"{name[: NAME // 2]}…{name[1 - NAME // 2 :]}"

        recomputed = "yes" if setting.checkpoint_every else "no"
        if setting.zero:
            recomputed += " ZeRO"

        memory = f"{row.option.memory.peak / GIB:.1f}"
        if not row.fits:
            memory += "!"

        updates = "?" if row.updates is None else f"{row.updates:,}"
        if row.stuck:
            updates += "*"

        table.append([
            name,
            f"{row.parameters / 1e6:,.1f} M",
            f"{setting.max_tokens:,} x {setting.update_freq}",
            recomputed,
            memory,
            updates,
            "done" if row.done else _short(row.hours),
            _short(row.peak / GB),
        ])  # fmt: skip
    return render(table)


def _short(value: float) -> str:
    """Format a number with two digits, or all of its digits in front of the point."""
    if value >= 10:
        return f"{value:,.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return f"{value:.2g}"
