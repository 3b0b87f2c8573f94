"""Commands that tell whether a training will hold, and how well they can."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..errors import UserError


def check(args) -> None:
    """will this fairseq-train command train? The first updates, watched, and a verdict

    Takes every flag of fairseq-train: DATA and those of the run to come. Leaves no file behind. The exit status is 3
    where the verdict is "diverging".
    """
    from ..stability.report import as_dict, text
    from ..stability.short_training import train_briefly
    from ..stability.verdict import DIVERGING, LATEST, judge

    if args.updates < 2 * LATEST:
        raise UserError(f"--updates {args.updates}: give at least {2 * LATEST}")
    if args.compress_warmup is not None and args.compress_warmup < 1:
        raise UserError(f"--compress-warmup {args.compress_warmup}: must be at least 1")
    if args.seconds <= 0:
        raise UserError(f"--seconds {args.seconds:g}: must be more than 0")
    flags = args.rest[1:] if args.rest[:1] == ["fairseq-train"] else args.rest
    training = train_briefly(flags, args.updates, args.compress_warmup, args.seconds, _progress)
    if sys.stderr.isatty():
        print(end="\r" + " " * 40 + "\r", file=sys.stderr)
    print(json.dumps(as_dict(training)) if args.json else text(training))
    if judge(training).kind == DIVERGING:
        sys.exit(3)


def _progress(update: int, loss: float) -> None:
    if sys.stderr.isatty():
        print(f"\rupdate {update + 1}, loss {loss:.2f} ", end="", file=sys.stderr, flush=True)


def calibration(args) -> None:
    """verdicts of check beside what the trainings did"""
    from ..analysis.calibration import cells_of, confusion

    print(confusion(cells_of(Path(args.runs))))


def add(command) -> None:
    """Registers `deepnet check` and `calibration` and their flags; command: as parser() gives it."""
    sub = command("check", check)
    sub.add_argument("--updates", type=int, default=40, help="how many to watch (default 40)")
    sub.add_argument("--seconds", type=float, default=60, help="stop earlier after so long (default 60)")
    sub.add_argument("--compress-warmup", type=int, metavar="K", help="reach the peak learning rate after K updates")
    sub.add_argument("--json", action="store_true")
    sub.set_defaults(passes_flags_on=True)
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.usage = "deepnet check [--updates N] [--seconds S] [--compress-warmup K] [--json] DATA [flags of fairseq-train]"
    sub.allow_abbrev = False

    sub = command("calibration", calibration)
    sub.add_argument("runs", metavar="RUNS", help="folder that scripts/calibrate_check.sh has made")
