"""Plan many trainings: the batch that fits into memory, the hours, and the disk space of each.

A row is one training: a line `NAME FLAGS` of the file that `deepnet plan --rows` reads, and the row of a table in a
paper that this training reproduces. Hours are its operations divided by the FLOP/s of its GPUs, as given or assumed;
the bytes of its checkpoints follow from the number of parameters.
"""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from ...errors import UserError
from ...files import parse_json
from ...plugin.checkpoints.epoch_weights import check_epoch_weights
from ...text_table import render
from ...wording import counted
from .fit import USABLE, Option, choose
from .needs import TERA, updates_of
from .setting import GIB, OPTIMIZERS, Parser, Setting, check_number, parse_setting

ASSUMED_RATE = {"cuda": 100.0, "cpu": 0.03}  # TFLOP/s: a third of an A100's peak; a core with narrow layers
# bytes of a parameter in a checkpoint
MOMENTS = 8  # Adam's two, in float32
MASTER = 4  # the float32 copy of a weight in half precision
HALF = 2  # the weight itself in half precision
SINGLE = 4  # the weight itself in float32
FULL_CHECKPOINTS = 3  # most files with the optimiser's state at a time: the last two, and the one being written
GB = 1e9
# flags of a row that this module reads itself -> their defaults; values of NUMBERS are numbers, of TEXTS any text
NUMBERS = {
    "--kept": 1, "--stuck": 0, "--save-interval-updates": 0, "--distributed-world-size": 1, "--corpus-tokens": 0.0,
    "--max-update": 0.0, "--max-epoch": 0.0,
}  # fmt: skip
TEXTS = {"--optimizer": OPTIMIZERS[0], "--epoch-weights": "", "--experiment": "", "--facts": "{}", "--free": ""}
SHOWN_NAME = 32  # most characters of a row's name in the table


@dataclass(frozen=True)
class Row:
    """Plan of one training and its files.

    name: of its run; option: its setting and GPU memory; parameters: number of the model's; updates: number of all,
    None if the flags do not say where the training ends; hours: of training, 0 if `updates` is None; disk_peak: the
    most bytes on the disk while it trains; disk_kept: bytes on the disk at its end; done: whether it is over already.
    stuck: value of --stop-stuck, the number of updates after which a training ends if it has learnt nothing; above 0
    only if the paper's run diverged, so that this one is expected to end so.
    """

    name: str
    option: Option
    parameters: int
    updates: int | None
    hours: float
    disk_peak: float
    disk_kept: float
    done: bool
    stuck: int

    @property
    def flags(self) -> str:
        """Flags of fairseq-train to add to those of the row, in one text; "!" if the training does not fit.

        They are those of the chosen option, and --stop-stuck where the training is expected to diverge.
        """
        if not self.fits:
            return "!"
        if self.stuck:
            return f"{self.option.flags} --stop-stuck {self.stuck}"
        return self.option.flags

    @property
    def fits(self) -> bool:
        """True if the training fits into a GPU, or is on the CPU, whose memory is not known here."""
        return self.option.fits or self.option.setting.device == "cpu"

    @property
    def least_memory(self) -> float:
        """Bytes of memory of the smallest GPU into which the training fits, of which the share USABLE can be used."""
        return self.option.memory.peak / USABLE


def read_rows(lines: Iterable[str], rate: float | None = None) -> list[Row]:
    """Plan the training of each line `NAME FLAGS`; blank lines are skipped.

    FLAGS are fairseq-train's, of which those that change neither memory nor time are ignored, and beside them

      --done               the training is over
      --vocab SIZE         of the vocabulary, as for `deepnet plan`
      --corpus-tokens N    target tokens of an epoch, for a training that ends after --max-epoch
      --kept N             how many files with weights stay (default 1; 0: nothing is saved)
      --free CHOICES       what may be changed to fit into memory: "batch", "recompute", or both with a comma
      --stuck N            value of --stop-stuck for a training whose original in the paper diverged
      --experiment FOLDER, --facts JSON    the experiment's folder and entries of run.json, by which the paper's
                           training is found that may have diverged; see `diverged`

    rate: TFLOP/s of each GPU or process, None for ASSUMED_RATE. Raises a UserError, naming the row, for invalid flags.
    """
    return [_row(_split(line), rate) for line in lines if line.strip()]


def _split(line: str) -> list[str]:
    """Split a line into words as a shell would; UserError, naming the row, for a quote that is not closed."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UserError(line.split()[0], f"{str(error).lower()}; quote its flags as for a shell") from None


def _row(words: list[str], rate: float | None) -> Row:
    """Plan the training of a line.

    words: the line's, the name of the row and its flags as `read_rows` describes them; rate: as for `read_rows`.
    """
    name, *flags = words
    try:
        args, other_flags = _parse_row_flags(flags)
        adam = args.optimizer in OPTIMIZERS
        other_flags += ["--gpus", str(args.distributed_world_size)]
        if adam:  # the plan of any other optimiser is that of the default one
            other_flags += ["--optimizer", args.optimizer]
        setting = parse_setting(other_flags, strict=False)
        free_batch = "batch" in args.free
        free_recompute = "recompute" in args.free
        option, parameters, operations = choose(setting, batch=free_batch, recompute=free_recompute, adam=adam)
    except UserError as error:
        raise UserError(name, str(error)) from None

    stuck = 0
    if args.stuck and diverged(args.experiment, args.facts):
        stuck = args.stuck

    ends = []  # numbers of updates, the smallest of which ends the training
    if args.max_update:
        ends.append(int(args.max_update))
    if args.max_epoch and args.corpus_tokens:
        ends.append(updates_of(setting, args.max_epoch, int(args.corpus_tokens)))
    if stuck:  # --stop-stuck counts from the first validation, which is at the first save
        ends.append(stuck + args.save_interval_updates)

    flops_per_second = (rate or ASSUMED_RATE[setting.device]) * TERA * setting.gpus
    seconds = min(ends, default=0) * operations / flops_per_second
    disk_peak, disk_kept = _disk_bytes(setting, parameters, args)
    return Row(
        name=name,
        option=option,
        parameters=parameters,
        updates=min(ends, default=None),
        hours=seconds / 3600,
        disk_peak=disk_peak,
        disk_kept=disk_kept,
        done=args.done,
        stuck=stuck,
    )


def _parse_row_flags(flags: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse --done and the flags in NUMBERS and TEXTS; return their values, and the words of all other flags.

    UserError for a value of NUMBERS that is no number from 0 on, for an --epoch-weights that fairseq-train would
    refuse, and for --facts that are no JSON object; `facts` in the result is that object.
    """
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--done", action="store_true")
    for flag, number in NUMBERS.items():
        parser.add_argument(flag, type=type(number), default=number)
    for flag, text in TEXTS.items():
        parser.add_argument(flag, default=text)

    args, other_flags = parser.parse_known_args(flags)
    for flag in NUMBERS:
        name = flag.removeprefix("--").replace("-", "_")
        check_number(flag, getattr(args, name), zero=True)
    check_epoch_weights(args.epoch_weights or None)

    try:
        facts = parse_json(args.facts)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        raise UserError(f"--facts {args.facts}", "must be a JSON object of entries of run.json")
    args.facts = facts
    return args, other_flags


def diverged(experiment: str, facts: dict) -> bool:
    """Tell whether the paper reports that its own training of this row diverged.

    experiment: folder of the experiment, by which the paper's table is found (study.tables), "" for none; facts:
    entries of the training's run.json, by which its row in the table is found, with the paper's corpus as "corpus".
    """
    from ...study.tables import TABLES

    for table in TABLES.values():
        if experiment in table.folders:
            row_key = tuple(facts.get(key) for key in table.keys)  # None, as in no row, for a fact that is not given
            published = table.rows.get(row_key, {})  # head of a column -> published number, or "diverged"
            if "diverged" in published.values():
                return True
    return False


def _disk_bytes(setting: Setting, parameters: int, args: argparse.Namespace) -> tuple[float, float]:
    """Return the bytes on the disk of a training: the most while it runs, and at its end.

    parameters: number of the model's; args: with the values of --kept and --epoch-weights, from _parse_row_flags.
    """
    if not args.kept:  # nothing is saved
        return 0.0, 0.0
    weights = parameters * (SINGLE if setting.precision == "fp32" else HALF)
    master = MASTER if setting.precision in ("fp16", "bf16") else 0  # fp32 and memory-efficient precisions have none
    full_checkpoint = weights + parameters * (MOMENTS + master)  # with the optimiser's state

    # files with the weights of single epochs, which are there to be averaged
    numbers = args.epoch_weights.removeprefix("last:").split("-")
    if not args.epoch_weights:
        epoch_files = 0
    elif len(numbers) == 2:  # A-B
        epoch_files = int(numbers[1]) - int(numbers[0]) + 1
    else:  # last:N, where the newest file is written before the oldest is removed
        epoch_files = int(numbers[0]) + 1

    averaged = weights  # the file with the averaged model
    peak = FULL_CHECKPOINTS * full_checkpoint + epoch_files * weights + averaged
    return peak, args.kept * weights


def disk_of_all(rows: list[Row], side_by_side: int = 1) -> tuple[float, float]:
    """Return the bytes on the disk of all rows: the most while they are trained, and in the end.

    side_by_side: how many trainings run at a time.
    """
    kept = sum(row.disk_kept for row in rows)
    largest_first = sorted((row.disk_peak for row in rows if not row.done), reverse=True)
    # at worst the trainings with the largest files run last, beside all that the others have left
    return kept + sum(largest_first[:side_by_side]), kept


def as_text(rows: list[Row], rate: float | None = None, side_by_side: int = 1) -> str:
    """Format the plan of rows that are trained in this order: a table with a line for each, and sums below it.

    rate: TFLOP/s that `read_rows` was given, None if it was assumed; side_by_side: how many trainings run at a time.
    """
    still_to_train = [row for row in rows if not row.done]
    setting = rows[0].option.setting  # its device and memory stand for those of all rows
    unit = "GPU" if setting.device == "cuda" else "process"

    count = counted(len(rows), "row")
    if len(still_to_train) < len(rows):
        count += f", {len(rows) - len(still_to_train)} of them done"
    at_a_time = max(1, min(side_by_side, len(still_to_train)))
    if at_a_time > 1:
        count += f", {at_a_time} at a time"

    hours = sum(row.hours for row in still_to_train) / at_a_time
    time = f"{_short(hours)} hours"
    if hours >= 48:
        time += f" ({hours / 24:.1f} days)"
    speed = f"{rate or ASSUMED_RATE[setting.device]:g} TFLOP/s of each {unit}, {'as given' if rate else 'assumed'}"

    peak_memory = max(row.option.memory.peak for row in rows) / GIB
    limit = ""
    if setting.device == "cuda":
        limit = f" of {setting.gpu_memory / GIB:.3g}, of which {1 - USABLE:.0%} stay free"

    disk_peak, disk_kept = disk_of_all(rows, side_by_side)
    lines = [
        _table(rows, unit),
        "",
        f"{count}: {time} at {speed}",
        f"memory: at most {peak_memory:.1f} GiB{limit}",
        f"disk: at most {_short(disk_peak / GB)} GB, in the end {_short(disk_kept / GB)} GB",
    ]
    if any(row.stuck for row in rows):
        lines.append("* diverged in the paper: expected to end here, when it has learnt nothing (--stop-stuck)")
    if not all(row.fits for row in rows):
        lines.append("! does not fit by what may be changed (--free): take larger or more GPUs")
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
        if len(name) > SHOWN_NAME:  # its two ends, and a character that stands for the middle
            half = SHOWN_NAME // 2
            name = f"{name[:half]}…{name[1 - half :]}"

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
            _short(row.disk_peak / GB),
        ])  # fmt: skip
    return render(table)


def _short(value: float) -> str:
    """Format a number with about two significant digits, and as a whole number from 10 on."""
    if value >= 10:
        return f"{value:,.0f}"
    if value >= 1:
        return f"{value:.1f}"
    return f"{value:.2g}"
