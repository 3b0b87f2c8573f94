"""Plan many trainings: the batch that fits into memory, the hours, and the disk space of each.

A row is one training, in the file of `deepnet plan --rows` and in a table of a paper. Hours are its operations divided
by the FLOP/s of its GPUs, as given or assumed; the bytes of its checkpoints follow from the number of parameters.
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
from .setting import GIB, OPTIMIZERS, Parser, Setting, check_number, parse_setting

ASSUMED_RATE = {"cuda": 100.0, "cpu": 0.03}  # TFLOP/s: a third of an A100's peak; a core with narrow layers
# bytes of a parameter in a checkpoint: Adam's two moments, the float32 copy of a weight, the weight itself
MOMENTS, MASTER, HALF, SINGLE = 8, 4, 2, 4
FULL_CHECKPOINTS = 3  # with the optimiser's state, at a time: the last, the one before, and the one being written
GB = 1e9
EPOCHS = re.compile(r"(?:(?:last:)?\d{1,9}|\d{1,9}-\d{1,9})?")  # value of --epoch-weights
# flags of a row that this module reads, and their defaults; WORDS are of any text
NUMBERS = {
    "--kept": 1, "--stuck": 0, "--save-interval-updates": 0, "--distributed-world-size": 1, "--corpus-tokens": 0.0,
    "--max-update": 0.0, "--max-epoch": 0.0,
}  # fmt: skip
WORDS = {"--optimizer": OPTIMIZERS[0], "--epoch-weights": "", "--experiment": "", "--facts": "{}", "--free": ""}
SHOWN_NAME = 32  # most characters of a row's name in the table


@dataclass(frozen=True)
class Row:
    """Plan of one training and its files.

    name: of its run; option: its setting and memory; parameters: their number; updates: None if its end is unknown;
    hours: of training; peak: the most bytes on the disk while it trains; kept: bytes on the disk at its end; done:
    whether it is over already; stuck: if the paper's run diverged, number of updates after which this one is expected
    to end because it has learnt nothing, else 0.
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
        """Flags of fairseq-train that were chosen; "!" if the training does not fit into the GPU."""
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
        """Bytes of the smallest GPU into which the training fits."""
        return self.option.memory.peak / USABLE


def read_rows(lines: Iterable[str], rate: float | None = None) -> list[Row]:
    """Plan the training of each line, `NAME FLAGS`; FLAGS are fairseq-train's, and beside them

      --done               the training is over
      --vocab SIZE         of the vocabulary, as for `deepnet plan`
      --corpus-tokens N    target tokens of an epoch, for a training that ends after --max-epoch
      --kept N             how many files with weights stay (default 1; 0: nothing is saved)
      --free CHOICES       what may be chosen to fit into memory: "batch", "recompute", or both with a comma
      --stuck N            updates after which the training ends if the paper's diverged
      --experiment FOLDER, --facts JSON    the experiment's folder and the content of run.json, which tell whether the
                           paper's diverged

    rate: TFLOP/s of each GPU or process, None for ASSUMED_RATE. Raises a UserError, naming the row, for invalid flags.
    """
    return [_row(shlex.split(line), rate) for line in lines if line.strip()]


def _row(words: list[str], rate: float | None) -> Row:
    """Plan the training of a line, split into words; rate: as for `read_rows`."""
    name, *flags = words
    try:
        args, rest = _parse_own(flags)
        adam = args.optimizer in OPTIMIZERS
        rest += ["--gpus", str(args.distributed_world_size)]
        if adam:
            rest += ["--optimizer", args.optimizer]
        setting = parse_setting(rest, strict=False)
        free_batch = "batch" in args.free
        free_recompute = "recompute" in args.free
        option, parameters, operations = choose(setting, batch=free_batch, recompute=free_recompute, adam=adam)
    except UserError as error:
        raise UserError(name, str(error)) from None

    stuck = 0
    if args.stuck and diverged(args.experiment, json.loads(args.facts)):
        stuck = args.stuck

    ends = []  # numbers of updates, the smallest of which ends the training
    if args.max_update:
        ends.append(int(args.max_update))
    if args.max_epoch and args.corpus_tokens:
        ends.append(updates_of(setting, args.max_epoch, int(args.corpus_tokens)))
    if stuck:  # --stop-stuck counts from the first validation, which is at the first save
        ends.append(stuck + args.save_interval_updates)

    flops_per_second = (rate or ASSUMED_RATE[setting.device]) * TERA * setting.gpus
    peak, kept = _disk_bytes(setting, parameters, args)
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
    """Parse the flags that this module reads: return them, and the words of all others. UserError for invalid ones."""
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
        raise UserError(f"--epoch-weights {args.epoch_weights}", "write last:N or A-B")
    return args, rest


def diverged(experiment: str, facts: dict) -> bool:
    """Tell whether a paper's table says that this training diverged.

    experiment: folder of the experiment, by which the table is found; facts: content of run.json, by which its row is.
    """
    from ...study.tables import TABLES

    for table in TABLES.values():
        if experiment in table.folders:
            place = tuple(facts.get(key, "") for key in table.keys)
            published = table.rows.get(place, {})
            if "diverged" in published.values():
                return True
    return False


def _disk_bytes(setting: Setting, parameters: int, args: argparse.Namespace) -> tuple[float, float]:
    """Return the bytes on the disk of a training: the most while it runs, and at its end.

    parameters: their number; args: --kept and --epoch-weights, as _parse_own returns them.
    """
    if not args.kept:
        return 0.0, 0.0
    weights = parameters * (SINGLE if setting.precision == "fp32" else HALF)
    master = MASTER if setting.precision in ("fp16", "bf16") else 0
    full = weights + parameters * (MOMENTS + master)  # a checkpoint with the optimiser's state

    numbers = args.epoch_weights.removeprefix("last:").split("-")
    if not args.epoch_weights:  # no files with the weights of single epochs
        epochs = 0
    elif len(numbers) == 2:  # A-B
        epochs = int(numbers[1]) - int(numbers[0]) + 1
    else:  # last:N, which keeps one to spare
        epochs = int(numbers[0]) + 1

    peak = FULL_CHECKPOINTS * full + (epochs + 1) * weights  # 1: the averaged model
    return peak, args.kept * weights


def as_text(rows: list[Row], rate: float | None = None, side_by_side: int = 1) -> str:
    """Format the plan of rows that are trained in this order, `side_by_side` at a time: a line for each, and sums.

    rate: TFLOP/s that `read_rows` was given, None if it was assumed.
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
    speed = f"{rate or ASSUMED_RATE[setting.device]:g} TFLOP/s of each {unit}, {'as given' if rate else 'assumed'}"

    peak_memory = max(row.option.memory.peak for row in rows) / GIB
    limit = ""
    if setting.device == "cuda":
        limit = f" of {setting.gpu_memory / GIB:.3g}, of which {1 - USABLE:.0%} stay free"

    kept = sum(row.kept for row in rows)
    largest_first = sorted((row.peak for row in left), reverse=True)
    peak_disk = kept + sum(largest_first[:side_by_side])  # at worst the largest train last, beside all that is kept

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
    """Format a table with a line for each row, whose name is relative to the folder that all have in common.

    unit: "GPU" or "process".
    """
    table = [["row", "size", f"tokens of a {unit}", "recomputed", "GiB", "updates", "hours", "GB"]]
    folder = os.path.commonpath([os.path.dirname(row.name) for row in rows])
    for row in rows:
        setting = row.option.setting

        name = os.path.relpath(row.name, folder or ".")
        if len(name) > SHOWN_NAME:
            name = f"{name[: SHOWN_NAME // 2]}…{name[1 - SHOWN_NAME // 2 :]}"

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
    """Format a number with two significant digits, or as a whole number from 10 on."""
    if value >= 10:
        return f"{value:,.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return f"{value:.2g}"
