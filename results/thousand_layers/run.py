"""Run the trainings of plan.toml one after the other, and record each one as it ends.

    python results/thousand_layers/run.py WORK [--list | --collect]

WORK holds everything that a training writes: WORK/runs/CELL with its log and checkpoints, WORK/data, and WORK/text if
the plan has cells on real text. scripts/trainings.sh starts this program in the background, from a clone of its own.

- The file WORK/PAUSE holds the training within a second; without the file it goes on.
- Killed at any moment, this program takes its training with it. Started again, it resumes from the last checkpoint.
- Several of these programs may share WORK. A cell is trained by one of them at a time.
- A training that diverges or is stuck is a result. A program that fails is tried again at the next start.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from cells import Cell, PlanError, Records, cells_of, may_begin, read_plan
from commands import Failed, Programs, relative
from texts import TEXTS, train_text

from deepnet_fairseq.files import whole
from deepnet_fairseq.study.run_folder import RunFolder
from deepnet_fairseq.tools.environment import environment

# A cell is one training of the plan, see cells.py. It is over when its folder has record.json, its record: the fields
# of the Cell, what it learnt, how it "ended" (trained, stuck or diverged), what it took, commit and machine.

HERE = Path(__file__).resolve().parent
FAILURES = 3  # cells that may fail before this program gives up


async def train_symbols(cell: Cell, run: Path, programs: Programs) -> dict:
    """Train a cell on random symbols by symbols.py; return what the record has of it.

    run: the cell's folder; programs: runs the command. Returns the entries of symbols.py's result, "final_loss" (bits
    per token) and "command". Raises Failed if symbols.py ends with an error.
    """
    command = [
        sys.executable, str(HERE / "symbols.py"), str(run), "--task", cell.task, "--method", cell.method,
        "--layers", cell.layers, "--lr", f"{cell.lr:g}", "--updates", cell.updates, "--warmup", cell.warmup,
        "--seed", cell.seed, "--stop-stuck", cell.stop_stuck,
    ]  # fmt: skip
    log = run / "train.log"
    status = await programs.run(command, log)
    if status != 0:
        raise Failed(f"{cell.name}: symbols.py failed; whole log: {log}")
    result = json.loads((run / "result.json").read_text())
    return {"final_loss": result["loss"][-1], "command": relative(command)} | result


async def train_and_record(cell: Cell, run: Path, work: Path, programs: Programs) -> dict:
    """Train a cell to its end, or go on where it was killed; return its record.

    run: the cell's folder; work: the folder of all trainings and their data; programs: runs its commands and has in
    `spent` what they took. Raises Failed or PlanError.
    """
    if cell.task in TEXTS:
        result = await train_text(cell, run, programs, work)
    else:
        result = await train_symbols(cell, run, programs)

    facts = asdict(cell) | {"name": cell.name, "predicted_hours": round(cell.hours, 2)}
    del facts["seconds"]  # "predicted_hours" says it
    del facts["stop_stuck"]  # "command", in `result`, says it
    ended = {
        "ended_on": datetime.now(UTC).isoformat(timespec="seconds"),
        "environment": environment(gpus=0) | {"commit": code_commit()},
    }
    return facts | result | programs.spent | ended


def code_commit() -> str:
    """Return ten digits of the last commit that changed the code of the trainings.

    The last commit of all would not do: with --commit this clone has commits of its own that add records, and nobody
    else has those.
    """
    words = ["git", "log", "-1", "--format=%H", "--", "deepnet_fairseq", "results/thousand_layers/*.py"]
    return subprocess.run(words, cwd=HERE.parents[1], capture_output=True, text=True).stdout[:10]


def write_records(runs: Path, file: Path, commit: bool) -> None:
    """Write the records of the cells in `runs` into a file beside those it has, one a line, by the time of their end.

    runs: the folder of the cells' folders; file: of the records; commit: commit the file with git, too. Other processes
    that share `runs` wait for its lock meanwhile, so that none writes the file without another one's records.
    """
    runs.mkdir(parents=True, exist_ok=True)
    with open(runs / "records.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        records = list(Records.read(file, runs).by_cell.values())
        records.sort(key=lambda one: (one["ended_on"], one["name"]))
        with whole(file) as part:
            part.write_text("".join(f"{json.dumps(one)}\n" for one in records), encoding="utf-8")
        if commit:
            message = f"Trainings of 1,000 layers: {len(records)} cells are over"
            # the status of git does not matter: there may be nothing new to commit
            subprocess.run(["git", "add", "--", file], cwd=file.parent, stdout=subprocess.DEVNULL)
            commit_words = ["git", "commit", "--quiet", "-m", message, "--", file]
            subprocess.run(commit_words, cwd=file.parent, stdout=subprocess.DEVNULL)


def work_off(args: argparse.Namespace) -> None:
    """Train cell after cell, until every cell is over, has failed here or is trained by another process.

    Plan and records are read again after each training, because groups of cells that waited for another group get their
    cells when that one is over.
    args: the flags of `main`. Raises a PlanError if cells failed; after FAILURES of them it trains no more.
    """
    runs = args.work / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    failed: set[str] = set()  # names of cells
    while len(failed) < FAILURES:
        records = Records.read(args.records, runs)
        cells = cells_of(read_plan(args.plan), records)
        left = [cell for cell in cells if cell.name not in records.by_cell and cell.name not in failed]
        # train the first cell that no other process trains, and begin again
        for cell in left:
            run = runs / cell.name
            with RunFolder(run).locked() as locked_here:
                if not locked_here:
                    continue  # another process trains it
                # it may have ended in another process since the records were read
                over = (run / "record.json").exists()
                if not over and not train_cell(cell, run, args):
                    failed.add(cell.name)
                break
        else:  # there was none
            break
    if failed:
        raise PlanError(f"failed: {', '.join(sorted(failed))}; they are tried again at the next start")
    print(f"{now()} nothing is left to train here", flush=True)


def train_cell(cell: Cell, run: Path, args: argparse.Namespace) -> bool:
    """Train a cell in its folder `run`, and write its record; print a line before and one after, for the log.

    args: the flags of `main`. Returns True, or False, after printing the error, if a program failed or a text is
    missing: then there is no record.
    """
    print(f"{now()} {cell.name}: {cell.hours:.2f} hours predicted", flush=True)
    programs = Programs(args.work, run)
    result: dict = {}

    async def train(_variables: Mapping[str, str]) -> None:
        """Fill `result`. A Runner calls this with variables of the environment for programs, which have others here."""
        result.update(await train_and_record(cell, run, args.work, programs))

    try:
        programs.runner.run([train])
    except (Failed, PlanError) as error:
        print(f"{now()} error: {error}", file=sys.stderr, flush=True)
        return False

    with whole(run / "record.json") as part:
        part.write_text(json.dumps(result), encoding="utf-8")
    # only the last checkpoint of a training that went well is of use
    for checkpoint in run.glob("checkpoint*.pt"):
        if checkpoint.name != "checkpoint_last.pt" or result["ended"] != "trained":
            checkpoint.unlink()
    write_records(args.work / "runs", args.records, args.commit)
    print(f"{now()} {cell.name}: {outcome(result)}, {result['processor_seconds'] / 3600:.2f} hours", flush=True)
    return True


def outcome(result: dict) -> str:
    """Say in a few words how a training ended. result: its record."""
    if result["ended"] != "trained":
        return result["ended"]
    if "sentences_right" in result:  # on random symbols
        return f"{result['final_loss']:.3f} bits, {result['sentences_right']} of {result['sentences']} sentences right"
    return f"{result['final_loss']:.3f} bits, BLEU {result['bleu']:.1f}"


def now() -> str:
    """Return the time (UTC), for the log."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")


def listed(plan: Path, work: Path, file: Path) -> str:
    """Return what --list prints: a line for each cell with its outcome, and its processor hours, taken and predicted.

    Lines for the groups that wait for another one follow, whose cells cannot be named yet, and the sums of the hours.
    plan: plan.toml; work: the folder that the trainings write to; file: of the records.
    """
    records = Records.read(file, work / "runs")
    groups = read_plan(plan)
    cells = cells_of(groups, records)
    rows = [("cell", "state", "hours", "predicted")]
    for cell in cells:
        result = records.by_cell.get(cell.name)
        hours = "-"
        if result:
            state = outcome(result)
            hours = f"{result['processor_seconds'] / 3600:.2f}"
        elif (work / "runs" / cell.name / "train.log").exists():
            state = "begun"  # and running, killed or failed
        else:
            state = "to come"
        rows.append((cell.name, state, hours, f"{cell.hours:.2f}"))
    lines = [f"{name:95} {state:40} {hours:>6} {predicted:>9}" for name, state, hours, predicted in rows]

    by_name = {group["name"]: group for group in groups}
    for group in groups:
        if not may_begin(group, by_name, records):
            lines.append(f"{group['name']}: waits for {group['after']}")

    left = sum(cell.hours for cell in cells if cell.name not in records.by_cell)
    spent = sum(result["processor_seconds"] for result in records.by_cell.values()) / 3600
    lines.append(f"{spent:.1f} core-hours spent, {left:.1f} predicted for the named cells that are left")
    return "\n".join(lines)


def main() -> None:
    """Parse the flags and do what they ask."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder of everything that the trainings write")
    parser.add_argument("--plan", type=Path, default=HERE / "plan.toml", help="default: plan.toml beside this file")
    parser.add_argument("--records", type=Path, default=HERE / "records.jsonl", help="default: beside this file")
    parser.add_argument("--commit", action="store_true", help="commit the records as each training ends")
    parser.add_argument("--list", action="store_true", help="print the cells and how far they are, and train nothing")
    parser.add_argument(
        "--collect",
        action="store_true",
        help="add the records of finished cells in WORK to the file of --records; train nothing",
    )
    args = parser.parse_args()
    args.work = args.work.resolve()
    args.plan = args.plan.resolve()
    args.records = args.records.resolve()
    try:
        if args.list:
            print(listed(args.plan, args.work, args.records))
        elif args.collect:
            write_records(args.work / "runs", args.records, args.commit)
        else:
            work_off(args)
    except PlanError as error:
        sys.exit(f"run.py: error: {error}")


if __name__ == "__main__":
    main()
