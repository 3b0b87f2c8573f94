"""Run the list for minutes of a GPU; dev/gpu_minutes.sh starts this program, and docs/gpu_minutes.md describes it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from deepnet_fairseq.errors import UserError
from deepnet_fairseq.text_table import markdown

from . import minutes, parts, records, text
from .parts import PARTS, Part
from .records import ROOT
from .work import ROWS, Work

# cells of Figure 6, which in miniature differ by their method alone
SAME_IN_MINIATURE = {part.name for part in PARTS if part.name.startswith("figure6-")} - {"figure6-deepnorm-10"}

START = 60.0  # seconds of a call in which no part runs yet: wheels, programs


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's flags."""
    parser = argparse.ArgumentParser(prog="dev/gpu_minutes.sh", description=__doc__)
    parser.add_argument("--minutes", type=float, default=9.0, help="until all has to be over (default: %(default)g)")
    parser.add_argument("--only", metavar="PART,PART", help="run these parts, open or not (default: all that are open)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write new records and ends of logs there, too")
    parser.add_argument("--list", action="store_true", help="print the list and run nothing")
    parser.add_argument("--prepare", action="store_true", help="make text and wheels, which needs no GPU")
    parser.add_argument("--mix", type=Path, metavar="DIR", help="German-English text, for --prepare the first time")
    parser.add_argument("--collect", type=Path, metavar="FILE", help="add the records of another machine")
    parser.add_argument("--records", type=Path, help="file of the records (default: results/gpu/records.jsonl)")
    parser.add_argument(
        "--folder",
        type=Path,
        help="of text, wheels and the parts' own files (default: gpu_minutes)",
    )
    parser.add_argument("--smoke", action="store_true", help="the list in miniature on a CPU, as SMOKE=1")
    parser.add_argument("--run-part", metavar="PART", help=argparse.SUPPRESS)  # what this program starts
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)  # by time.monotonic(), which processes share
    parser.add_argument("--longest", type=float, help=argparse.SUPPRESS)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Do what the flags ask; a mistake of the user ends the program with one line and status 2."""
    args = parser().parse_args(argv)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # the parts are ended then
    args.smoke = args.smoke or os.environ.get("SMOKE", "0") not in ("", "0")
    try:
        sys.exit(run(args))
    except UserError as error:
        print(f"gpu_minutes: error: {error}", file=sys.stderr)
        sys.exit(2)


def run(args: argparse.Namespace) -> int:
    """Do what the flags ask; return the exit status, 1 if a part failed."""
    # a miniature's text must never be taken for the real one
    default = ROOT / "gpu_minutes" / "miniature" if args.smoke else ROOT / "gpu_minutes"
    folder = (args.folder or default).resolve()
    file = args.records.resolve() if args.records else records.RECORDS
    if args.run_part:
        work = Work(
            folder=folder / "work" / args.run_part,
            text=folder / "text",
            until=args.until,
            longest=args.longest,
            miniature=args.smoke,
            records=records.read(file),
        )
        run_part(part_named(args.run_part), work)
        return 0
    if args.collect:
        number = records.collect(args.collect, file)
        print(f"{file}: {number} new records")
        return 0
    if args.list:
        print(listed(records.read(file), longest(args.minutes)))
        return 0
    if args.prepare:
        text.prepare(folder, args.mix)
        return 0
    return spend(args, folder, file)


def spend(args: argparse.Namespace, folder: Path, file: Path) -> int:
    """Run the open parts, or those that are named; return 1 if one failed.

    folder: of text, wheels and the parts' own files; file: of the records.
    """
    wanted = PARTS if args.only is None else [part_named(name) for name in args.only.split(",")]
    if args.smoke and args.only is None:
        wanted = [part for part in PARTS if part.name not in SAME_IN_MINIATURE]
    if args.smoke:
        text.miniature(folder / "text")
        file = args.records.resolve() if args.records else folder / "records.jsonl"  # none of results/gpu
    else:
        check_ready(folder)
    # dev/gpu_minutes.sh notes when it began: what it did since then counts
    began = float(os.environ.get("GPU_MINUTES_BEGAN", time.time()))
    minutes_given = 60.0 if args.smoke else args.minutes
    until = time.monotonic() - (time.time() - began) + 60 * minutes_given

    call = minutes.Minutes(until, longest(minutes_given), folder, file, out=args.out, miniature=args.smoke)
    new = call.run(wanted, open_only=args.only is None and not args.smoke)
    failed = [record["part"] for record in new if record["ended"] == records.FAILED]
    if failed:
        print(f"{len(new)} records in {file}; failed: {', '.join(failed)}")
        return 1
    print(f"{len(new)} records in {file}")
    return 0


def check_ready(folder: Path) -> None:
    """Raise a UserError without a GPU, or without the prepared text."""
    if not torch.cuda.is_available():
        raise UserError("torch sees no GPU here; SMOKE=1 runs the list in miniature on a CPU")
    if not (folder / "text" / "language").exists():
        raise UserError(f"{folder}/text/language: no such folder; run dev/gpu_minutes.sh --prepare first")


def part_named(name: str) -> Part:
    """Return the part of a name; UserError if there is none."""
    for part in PARTS:
        if part.name == name:
            return part
    raise UserError(f"--only {name}: there are {', '.join(part.name for part in PARTS)}")


def run_part(part: Part, work: Work) -> None:
    """Run one part in this process, and write its rows as they come."""
    with open(work.folder / ROWS, "a", encoding="utf-8") as rows:
        for row in part.run(work):
            rows.write(f"{json.dumps(row)}\n")
            rows.flush()


def longest(given: float) -> float:
    """Return the seconds that one part may take of the minutes of a call, of which the start takes some."""
    return 60 * given - START


def listed(known: list[dict], longest: float) -> str:
    """Return the list as a table: parts, their state by the records `known`, and minutes, taken or predicted.

    longest: seconds that one part may take.
    """
    table = [["part", "name", "what", "state", "device", "minutes"]]
    for part in PARTS:
        tries = records.of_part(known, part.name)
        done = [record for record in tries if record["ended"] == records.DONE]
        last = None  # the record that counts: of the last try that was done, else of the last try
        if done:
            last = done[-1]
        elif tries:
            last = tries[-1]

        if last is not None and last["ended"] in (records.DONE, records.FAILED):
            state = last["ended"]
            seconds = last.get("seconds")
        else:
            state = "open" if last is None else f"open, {last['ended']} before"
            seconds = parts.predicted(part, known, longest)
        minutes_shown = "-" if seconds is None else f"{seconds / 60:.1f}"
        device = "" if last is None else last["device"]
        table.append([str(part.number), part.name, part.what, state, device, minutes_shown])
    return markdown(table)


if __name__ == "__main__":
    main()
