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

# A part is one entry of the list (parts.py). It runs in a process of its own, which is this program with --run-part,
# and gives rows: dictionaries of what it measured. A record is a line of JSON about one try of a part, with its rows. A
# part is open until a record says that it was done. The miniature (SMOKE=1) runs the list with tiny models on a CPU.

# The parts that train a method at a depth for Figure 6 differ in miniature by their method alone: one of them suffices.
SAME_IN_MINIATURE = {part.name for part in PARTS if part.name.startswith("figure6-")} - {"figure6-deepnorm-10"}

START = 60.0  # seconds at the beginning of a call in which no part runs yet: wheels are installed, programs start


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's flags. The last three, which --help hides, are for processes of single parts.

    --run-part: the part's name; --until: moment of time.monotonic() at which it has to be over; --longest: seconds that
    one part may take at most in the whole call.
    """
    parser = argparse.ArgumentParser(prog="dev/gpu_minutes.sh", description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="minutes until everything has to be over (default: %(default)g)"
    )
    parser.add_argument(
        "--only", metavar="PART,PART", help="run these parts, even if they are done (default: all that are not)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write copies of the new records and the "
                        "ends of all logs to")  # fmt: skip
    parser.add_argument(
        "--list", action="store_true", help="print the parts, their states and minutes, and run nothing"
    )
    parser.add_argument(
        "--prepare", action="store_true", help="make the text and wheels that the parts need; takes no GPU"
    )
    parser.add_argument("--mix", type=Path, metavar="DIR", help="folder of German-English text, which --prepare needs "
                        "the first time")  # fmt: skip
    parser.add_argument("--collect", type=Path, metavar="FILE", help="add FILE, the records of another machine, to "
                        "--records, and run nothing")  # fmt: skip
    parser.add_argument("--records", type=Path, help="file of the records (default: results/gpu/records.jsonl, in "
                        "miniature FOLDER/records.jsonl)")  # fmt: skip
    parser.add_argument(
        "--folder",
        type=Path,
        help="folder for text, wheels and the parts' own files (default: gpu_minutes)",
    )
    parser.add_argument("--smoke", action="store_true", help="run the list in miniature on a CPU, as SMOKE=1 does")
    parser.add_argument("--run-part", metavar="PART", help=argparse.SUPPRESS)  # what this program starts
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)  # by time.monotonic(), which processes share
    parser.add_argument("--longest", type=float, help=argparse.SUPPRESS)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Do what the flags ask, and exit with the status of `run`; a mistake of the user is told in one line, status 2.

    argv: the flags; None for those of the command line.
    """
    args = parser().parse_args(argv)
    # an exit, unlike a death by the signal, runs the code that ends the parts; 128 + number is a shell's status for it
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    args.smoke = args.smoke or os.environ.get("SMOKE", "0") not in ("", "0")
    try:
        sys.exit(run(args))
    except UserError as error:
        print(f"gpu_minutes: error: {error}", file=sys.stderr)
        sys.exit(2)


def run(args: argparse.Namespace) -> int:
    """Do what the flags ask; return the exit status, 1 if a part failed. args: as `parser` parses them."""
    default = ROOT / "gpu_minutes"
    if args.smoke:
        default = default / "miniature"  # a miniature's text must never be taken for the real one
    folder = (args.folder or default).resolve()
    file = args.records.resolve() if args.records else records.RECORDS
    if args.run_part:  # this is the process of one part, which minutes.py started
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
        print(f"added {number} records to {file}")
        return 0
    if args.list:
        print(listed(records.read(file), seconds_for_a_part(args.minutes)))
        return 0
    if args.prepare:
        text.prepare(folder, args.mix)
        return 0
    return spend(args, folder, file)


def spend(args: argparse.Namespace, folder: Path, file: Path) -> int:
    """Run the open parts that fit into the minutes; return 1 if one failed, else 0.

    --only names the parts instead, open or not; they have to fit, too. Without it a miniature takes all parts but
    SAME_IN_MINIATURE, open or not; it has an hour. folder: of text, wheels and the parts' own files; file: of the
    records, to which a miniature adds only if --records names it.
    """
    if args.only is not None:
        wanted = [part_named(name) for name in args.only.split(",")]
    elif args.smoke:
        wanted = [part for part in PARTS if part.name not in SAME_IN_MINIATURE]
    else:
        wanted = PARTS
    if args.smoke:
        text.miniature(folder / "text")
        file = args.records.resolve() if args.records else folder / "records.jsonl"  # none of results/gpu
    else:
        check_ready(folder)
    # the minutes count from the start of dev/gpu_minutes.sh, which notes it in seconds since 1970; from now without it
    began = float(os.environ.get("GPU_MINUTES_BEGAN", time.time()))
    seconds_ago = time.time() - began
    minutes_given = 60.0 if args.smoke else args.minutes
    until = time.monotonic() - seconds_ago + 60 * minutes_given

    longest = seconds_for_a_part(minutes_given)
    call = minutes.Minutes(until, longest, folder, file, out=args.out, miniature=args.smoke)
    new = call.run(wanted, open_only=args.only is None and not args.smoke)
    failed = [record["part"] for record in new if record["ended"] == records.FAILED]
    if failed:
        print(f"added {len(new)} records to {file}; failed: {', '.join(failed)}")
        return 1
    print(f"added {len(new)} records to {file}")
    return 0


def check_ready(folder: Path) -> None:
    """Raise a UserError if torch sees no GPU, or if --prepare has not made the text in `folder`."""
    if not torch.cuda.is_available():
        raise UserError("torch sees no GPU here; SMOKE=1 runs the list in miniature on a CPU")
    if not (folder / "text" / "language").exists():
        raise UserError(f"{folder}/text/language: no such folder; run dev/gpu_minutes.sh --prepare first")


def part_named(name: str) -> Part:
    """Return the part with a name; UserError, which tells all names, if there is none."""
    for part in PARTS:
        if part.name == name:
            return part
    raise UserError(f"--only {name}: no such part; choose of {', '.join(part.name for part in PARTS)}")


def run_part(part: Part, work: Work) -> None:
    """Run one part in this process, and write its rows to FOLDER/rows.jsonl as they come: it may be killed any time."""
    with open(work.folder / ROWS, "a", encoding="utf-8") as rows:
        for row in part.run(work):
            rows.write(f"{json.dumps(row)}\n")
            rows.flush()


def seconds_for_a_part(minutes_given: float) -> float:
    """Return the seconds that one part may take at most in a call of so many minutes: all but START."""
    return 60 * minutes_given - START


def listed(known: list[dict], longest: float) -> str:
    """Return the list as a table in Markdown: a part a row, with its state, its device, and minutes taken or predicted.

    known: all records, the oldest first; longest: seconds that one part may take at most.
    """
    table = [["part", "name", "what", "state", "device", "minutes"]]
    for part in PARTS:
        tries = records.of_part(known, part.name)
        done = [record for record in tries if record["ended"] == records.DONE]
        shown = None  # the record that the row shows: the last one that was done, else the last one
        if done:
            shown = done[-1]
        elif tries:
            shown = tries[-1]

        if shown is not None and shown["ended"] in (records.DONE, records.FAILED):
            state = shown["ended"]
            seconds = shown.get("seconds")
        else:
            state = "open" if shown is None else f"open, {shown['ended']} before"
            seconds = parts.predicted(part, known, longest)
        # None: no record of the seconds, or none predicted because the part would make no sense in so few
        minutes_shown = "-" if seconds is None else f"{seconds / 60:.1f}"
        device = "" if shown is None else shown["device"]
        table.append([str(part.number), part.name, part.what, state, device, minutes_shown])
    return markdown(table)


if __name__ == "__main__":
    main()
