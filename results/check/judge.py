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

# `deepnet check` makes the first updates of a training and predicts its end. Its verdict is "stable" or a warning
# ("at risk", "diverging").
#
# A record (a line of records.jsonl) has of the recorded training "source", "method", "layers", "lr" and "seed" as in
# Training, "records" (the file that it was recorded in), "failed", "loss" and "flags"; and of the check "verdict" and
# "findings".

HERE = Path(__file__).resolve().parent
RECORDS = HERE / "records.jsonl"
# A section of the page. Groups: the first comment, the section's name, the last comment.
MARKED = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->\n)", re.DOTALL)
# Loss (bits a token) of a model that predicts every held-out token by its frequency alone, with the label smoothing of
# the trainings; fairseq-train --stop-stuck prints it
GUESSING = 8.05
LEFT = 0.5  # bits below GUESSING at which --stop-stuck counts a training as one that learns
# flags of `deepnet check` beside those of the training
CHECK = "--json --updates 40 --seconds 3600 --compress-warmup 20"
# flags of fairseq-train that a check refuses or has no use for: those with a value, and those without
SAVING = (
    "--save-dir", "--save-interval-updates", "--keep-interval-updates", "--stop-stuck", "--log-interval",
    "--validate-interval-updates", "--validate-interval", "--log-format", "--user-dir", "--max-tokens-valid",
)  # fmt: skip
SAVING_WITHOUT_VALUE = ("--no-epoch-checkpoints", "--no-save")


class Training(NamedTuple):
    """A training that is over, as it was recorded."""

    source: str  # what recorded it: "compare", or "thousand_layers" with the experiment, as "thousand_layers B"
    method: str
    layers: int  # of the encoder
    lr: float  # at its peak
    seed: int
    flags: list[str]  # of fairseq-train
    failed: bool  # it diverged, was ended by --stop-stuck, or has not `learnt` by its last held-out loss
    loss: float | None  # the last held-out loss, bits per token; None if there is none


def learnt(loss: float) -> bool:
    """Return whether a held-out loss (bits per token) is clearly below GUESSING; False for NaN."""
    return loss < GUESSING - LEFT


def of_compare(record: dict) -> Training:
    """Read a record of `deepnet compare`: its settings are in "run", its losses by validation in "log"."""
    run = record["run"]
    losses = record["log"]["valid"]
    loss = float(losses[-1]["valid_loss"]) if losses else None  # None: it ended before its first validation
    ended_early = "stuck" in record or "diverged" in record
    return Training(
        source="compare",
        method=run["method"],
        layers=run["encoder_layers"],
        lr=run["lr"],
        seed=run["seed"],
        flags=shlex.split(run["flags"]),
        failed=ended_early or loss is None or not learnt(loss),
        loss=loss,
    )


def of_thousand_layers(record: dict) -> Training:
    """Read a record of results/thousand_layers, of a training by fairseq-train."""
    words = shlex.split(record["command"])  # "python -m fairseq_cli.train DATA FLAG ..."
    flags = words[words.index("fairseq_cli.train") + 2 :]
    loss = record["final_loss"]  # the last held-out loss; it is None only where the training diverged or was stuck
    return Training(
        source=f"thousand_layers {record['experiment']}",
        method=record["method"],
        layers=record["layers"],
        lr=record["lr"],
        seed=record["seed"],
        flags=flags,
        failed=record["ended"] != "trained" or not learnt(loss),
        loss=loss,
    )


def without_saving(flags: list[str]) -> list[str]:
    """Return the words of a command line without the flags of SAVING, their values, and SAVING_WITHOUT_VALUE."""
    kept = []
    is_value = False  # whether the next word is the value of a flag that was left out
    for word in flags:
        if is_value:
            is_value = False
        elif word in SAVING:
            is_value = True
        elif word not in SAVING_WITHOUT_VALUE:
            kept.append(word)
    return kept


def ask(file: Path, data: str) -> None:
    """Check the trainings of a file that records.jsonl does not have yet; append a record of each, and print a line.

    file: recorded trainings, one a line; data: folder of the binarised data. Of results/thousand_layers only the
    trainings on the generated language are checked: GUESSING is that of its text.
    """
    trainings = []
    for line in file.read_text(encoding="utf-8").splitlines():
        recorded = json.loads(line)
        if "run" in recorded:  # a record of `deepnet compare`
            trainings.append(of_compare(recorded))
        elif recorded["task"] == "language":
            trainings.append(of_thousand_layers(recorded))

    known = read()
    records_file = file.name if file.parent == HERE else f"{file.parent.name}/{file.name}"
    for one in trainings:
        record = {"source": one.source, "method": one.method, "layers": one.layers, "lr": one.lr, "seed": one.seed}
        record["records"] = records_file
        # what is in `record` so far names the training: it was checked before if a known record has the same entries
        if any(record.items() <= other.items() for other in known):
            continue

        command = ["deepnet", "check", "fairseq-train", data, *without_saving(one.flags), *CHECK.split()]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 3):  # 3: the verdict is "diverging"
            sys.exit(f"{shlex.join(command)}\n{done.stderr[-2000:]}")
        check = json.loads(done.stdout)

        record |= {"failed": one.failed, "loss": one.loss, "verdict": check["verdict"], "findings": check["findings"]}
        record["flags"] = shlex.join(one.flags)
        with RECORDS.open("a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")
        print(one.method, one.layers, one.lr, "failed" if one.failed else "trained", check["verdict"], flush=True)


def read() -> list[dict]:
    """Read records.jsonl; no records if it is not there."""
    if not RECORDS.exists():
        return []
    return [json.loads(line) for line in RECORDS.read_text().splitlines()]


def warnings_among(records: list[dict]) -> str:
    """Return how many of some trainings the check warned of, as "3 of 4"."""
    warned = [record for record in records if record["verdict"] != "stable"]
    return f"{len(warned)} of {len(records)}"


def counts(records: list[dict]) -> str:
    """Lay out how many failures and how many trainings that learnt the check warned of.

    There is a row for each file that trainings were recorded in, and one for all.
    """
    groups: dict[str, list[dict]] = {}  # by name of the row
    for record in records:
        groups.setdefault(record["records"], []).append(record)
    groups["all"] = records
    rows = []
    for name, group in groups.items():
        failed = [record for record in group if record["failed"]]
        learning = [record for record in group if not record["failed"]]
        rows.append([name, warnings_among(failed), warnings_among(learning)])
    return markdown([["trainings of", "failures that it warned of", "warnings of trainings that learnt"], *rows])


def wrong(records: list[dict]) -> str:
    """Lay out, one a row, the trainings that failed, and those that learnt though the check warned of them.

    Failures are shown whether the check warned of them or not; the column "verdict" tells.
    """
    rows = []
    for record in records:
        if not record["failed"] and record["verdict"] == "stable":
            continue  # the check was right, and there is nothing to tell
        model = f"{record['method']} {record['layers']}L-{record['layers']}L"
        outcome = "failed" if record["failed"] else "learnt"
        loss = "-" if record["loss"] is None else f"{record['loss']:.2f}"
        rows.append([model, f"{record['lr']:g}", record["verdict"], outcome, loss])
    return markdown([["model", "rate", "verdict", "training", "last held-out loss"], *rows])


def render(check: bool) -> None:
    """Write the tables of README.md. check: end the program with an error if they are not those of the records."""
    made = {"counts": counts(read()), "wrong": wrong(read())}  # by section
    path = HERE / "README.md"
    page = path.read_text(encoding="utf-8")
    rendered = MARKED.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", page)
    if check and rendered != page:
        sys.exit(f"{path}: its tables are not those that the records give; run results/check/judge.py render")
    path.write_text(rendered, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"] and len(sys.argv) == 4:
        ask(Path(sys.argv[2]).resolve(), sys.argv[3])
    elif sys.argv[1:2] == ["render"]:
        render(check=sys.argv[2:] == ["--check"])
    else:
        sys.exit(__doc__)
