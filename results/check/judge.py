"""Ask `deepnet check` about trainings whose end is recorded, and count how often it was right.

python results/check/judge.py ask RECORDS DATA     checks each training of RECORDS (a file of `deepnet compare` or of
                                                   results/thousand_layers) on DATA; appends to records.jsonl
python results/check/judge.py render [--check]     writes README.md's tables from records.jsonl, or checks them
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from deepnet_fairseq.text_table import markdown

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "records.jsonl"
MARKED = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->\n)", re.DOTALL)
GUESSING = 8.05  # bits a token of the held-out tokens' frequencies, smoothed as the loss is: --stop-stuck prints it
LEFT = 0.5  # bits below GUESSING at which --stop-stuck counts a training as one that learns
CHECK = "--json --updates 40 --seconds 3600 --compress-warmup 20"
SAVING = (  # flags that a check refuses or has no use for, each with a value
    "--save-dir", "--save-interval-updates", "--keep-interval-updates", "--stop-stuck", "--log-interval",
    "--validate-interval-updates", "--validate-interval", "--log-format", "--user-dir", "--max-tokens-valid",
)  # fmt: skip


class Training(NamedTuple):
    """A recorded training: where it comes from, what it was, its flags, and how it ended."""

    source: str
    method: str
    layers: int
    lr: float
    seed: int
    flags: list[str]
    failed: bool
    loss: float | None


def of_compare(record: dict) -> Training:
    """Read a record of `deepnet compare`."""
    run, losses = record["run"], record["log"]["valid"]
    loss = float(losses[-1]["valid_loss"]) if losses else None
    failed = "stuck" in record or "diverged" in record or loss is None or not loss < GUESSING - LEFT
    flags = shlex.split(run["flags"])
    return Training("compare", run["method"], run["encoder_layers"], run["lr"], run["seed"], flags, failed, loss)


def of_thousand_layers(record: dict) -> Training:
    """Read a record of results/thousand_layers."""
    words = shlex.split(record["command"])
    flags = words[words.index("fairseq_cli.train") + 2 :]  # behind the folder of data
    loss = record["final_loss"]
    failed = record["ended"] != "trained" or not loss < GUESSING - LEFT
    source = f"thousand_layers {record['experiment']}"
    return Training(source, record["method"], record["layers"], record["lr"], record["seed"], flags, failed, loss)


def without_saving(flags: list[str]) -> list[str]:
    """Leave out the flags of SAVING with their values, and those that save nothing by themselves."""
    kept, skip = [], False
    for word in flags:
        if skip:
            skip = False
        elif word in SAVING:
            skip = True
        elif word not in ("--no-epoch-checkpoints", "--no-save"):
            kept.append(word)
    return kept


def ask(file: Path, data: str) -> None:
    """Check the trainings of a file that records.jsonl does not have yet."""
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    trainings = [
        of_compare(line) if "run" in line else of_thousand_layers(line)
        for line in lines
        if "run" in line or line["task"] == "language"
    ]
    known = read()
    for one in trainings:
        record = {"source": one.source, "method": one.method, "layers": one.layers, "lr": one.lr, "seed": one.seed}
        record |= {"records": file.name if file.parent == HERE else f"{file.parent.name}/{file.name}"}
        if any(record.items() <= other.items() for other in known):
            continue
        command = ["deepnet", "check", "fairseq-train", data, *without_saving(one.flags), *CHECK.split()]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 3):
            sys.exit(f"{shlex.join(command)}\n{done.stderr[-2000:]}")
        check = json.loads(done.stdout)
        record |= {"failed": one.failed, "loss": one.loss, "verdict": check["verdict"], "findings": check["findings"]}
        record |= {"flags": shlex.join(one.flags)}
        with RECORDS.open("a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")
        print(one.method, one.layers, one.lr, "failed" if one.failed else "trained", check["verdict"], flush=True)


def read() -> list[dict]:
    """Read records.jsonl; no records if it is not there."""
    return [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []


def counts(records: list[dict]) -> str:
    """Lay out warnings among failures and among trainings that learnt, by source."""
    rows = []
    for source in [*dict.fromkeys(one["records"] for one in records), "all"]:
        some = [one for one in records if source in (one["records"], "all")]
        failed = [one for one in some if one["failed"]]
        trained = [one for one in some if not one["failed"]]
        warned = [sum(one["verdict"] != "stable" for one in group) for group in (failed, trained)]
        rows.append([source, f"{warned[0]} of {len(failed)}", f"{warned[1]} of {len(trained)}"])
    return markdown([["trainings of", "failures that it warned of", "warnings of trainings that learnt"], *rows])


def wrong(records: list[dict]) -> str:
    """Lay out the trainings about which the check was wrong, and those that failed."""
    rows = [
        [
            f"{one['method']} {one['layers']}L-{one['layers']}L", f"{one['lr']:g}", one["verdict"],
            "failed" if one["failed"] else "learnt", "-" if one["loss"] is None else f"{one['loss']:.2f}",
        ]
        for one in records
        if one["failed"] or one["verdict"] != "stable"
    ]  # fmt: skip
    return markdown([["model", "rate", "verdict", "training", "last held-out loss"], *rows])


def render(check: bool) -> None:
    """Write README.md's tables, or end with a line if they are not those of the records."""
    made, path = {"counts": counts(read()), "wrong": wrong(read())}, HERE / "README.md"
    page = path.read_text(encoding="utf-8")
    rendered = MARKED.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", page)
    if check and rendered != page:
        sys.exit(f"{path}: not of the records; run results/check/judge.py render")
    path.write_text(rendered, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"] and len(sys.argv) == 4:
        ask(Path(sys.argv[2]).resolve(), sys.argv[3])
    elif sys.argv[1:2] == ["render"]:
        render(check=sys.argv[2:] == ["--check"])
    else:
        sys.exit(__doc__)
