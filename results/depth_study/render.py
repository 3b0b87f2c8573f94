"""Render the tables of the depth study from records.jsonl.

python results/depth_study/render.py            writes them
python results/depth_study/render.py --check    says whether the page's tables are those of the records

A record is what `deepnet compare` wrote of one training: "run" has its settings, "log" the losses by update (lists
"train_inner" and "valid", in bits per token, as texts), "spent" its time and memory, "score" its BLEU, "check" what
`deepnet check` said of its setting before. A training that ended early has "diverged" or "stuck".
"""

from __future__ import annotations

import json
import math
import re
import sys
from itertools import product
from pathlib import Path
from statistics import fmean

from deepnet_fairseq.text_table import markdown

HERE = Path(__file__).resolve().parent
# A section of the page. Groups: the first comment, the section's name, the last comment.
MARKED = re.compile(r"(<!-- report (\w+) -->\n).*?(<!-- /report \2 -->\n)", re.DOTALL)
SHORT, LONG = 500, 3000  # updates of the two kinds of training; the first tenth of them is warm-up
# Held-out loss (bits a token) of a model that predicts every token by its frequency alone. Newer records have it
# themselves, in "run", as "guessing".
GUESSING = 8.917
FIRST_SEED = 1  # which every setting was trained with; other seeds repeat some of them
NAMES = {  # method -> its name, in the order of the tables
    "rezero": "ReZero", "r_fixup": "R-Fixup", "keel": "Keel", "complete_p": "CompleteP", "pre_ln": "Pre-LN",
    "deepnorm": "DeepNorm", "admin": "Admin", "post_ln": "Post-LN", "dlcl": "DLCL", "t_fixup": "T-Fixup",
}  # fmt: skip


def read(name: str) -> list[dict]:
    """Read the records of a file in this folder."""
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def trainings_of(records: list[dict], method: str, layers: int, updates: int) -> list[dict]:
    """Select the records of a method with so many encoder layers, as many decoder layers, and so many updates.

    CompleteP is Pre-LN with branches multiplied by base depth / depth. The study's base depth is 6, so that at 6 layers
    the two are the same, and Pre-LN's trainings stand for both.
    """
    if (method, layers) == ("complete_p", 6):
        method = "pre_ln"
    wanted = {"method": method, "encoder_layers": layers, "decoder_layers": layers, "updates": updates}
    return [record for record in records if wanted.items() <= record["run"].items()]


def held_out_loss(record: dict) -> float:
    """Return the last held-out loss of a training, bits per token; infinity if the training failed.

    A training failed if it diverged, was stuck, ended before its first validation, or ended no better than by
    predicting tokens by their frequencies.
    """
    losses = record["log"]["valid"]
    if "diverged" in record or "stuck" in record or not losses:  # no losses: it ended before its first validation
        return math.inf
    loss = float(losses[-1]["valid_loss"])
    guessing = record["run"].get("guessing", GUESSING)
    return loss if loss < guessing else math.inf


def early_loss(record: dict) -> float | None:
    """Return the mean training loss of updates 401 to 500, bits per token; None for one that logged none of them.

    These updates are the last of a short training, so that a long one can be compared with it.
    """
    losses = []
    for row in record["log"]["train_inner"]:  # a row is the mean since the row before it
        if SHORT - 100 < int(row["num_updates"]) <= SHORT:
            losses.append(float(row["loss"]))
    return fmean(losses) if losses else None


def longer(records: list[dict]) -> str:
    """Lay out the trainings of 3,000 updates, one a row, by depth and method."""
    order = list(NAMES)
    long_runs = [record for record in records if record["run"]["updates"] == LONG]
    long_runs.sort(key=lambda one: (one["run"]["encoder_layers"], order.index(one["run"]["method"]), one["name"]))

    rows = []
    for record in long_runs:
        run = record["run"]
        spent = record["spent"]["training"]
        depth = f"{run['encoder_layers']}L-{run['decoder_layers']}L"
        loss = f"{held_out_loss(record):.3f}"
        bleu = f"{record['score']['bleu']:.1f}" if "score" in record else "-"  # not every one translated
        gigabytes = f"{spent['peak_memory_bytes'] / 1e9:.1f}"
        core_hours = f"{spent['processor_seconds'] / 3600:.2f}"
        rate = f"{run['lr']:g}"
        seed = str(run["seed"])
        rows.append([depth, NAMES[run["method"]], rate, seed, loss, bleu, gigabytes, core_hours])
    return markdown([["depth", "method", "rate", "seed", "held-out bits", "BLEU", "GB", "core-hours"], *rows])


def warm_up(records: list[dict]) -> str:
    """Lay out the loss at update 500 after a short and a long warm-up; a row for each depth, method and rate.

    The trainings of 500 updates have 50 updates of warm-up, those of 3,000 have 300. Rates with which only one of the
    two was trained are left out. "stuck" stands for a training that ended before update 401, stuck
    or diverged.
    """
    first_seed = [record for record in records if record["run"]["seed"] == FIRST_SEED]
    rows = []
    for layers, method in product((6, 18, 50), NAMES):
        if (method, layers) == ("complete_p", 6):
            continue  # it is Pre-LN, which has a row of its own

        short_losses = {}  # by learning rate
        for record in trainings_of(first_seed, method, layers, SHORT):
            short_losses[record["run"]["lr"]] = early_loss(record)

        long_runs = trainings_of(first_seed, method, layers, LONG)
        for record in sorted(long_runs, key=lambda one: one["run"]["lr"]):
            rate = record["run"]["lr"]
            if rate not in short_losses:
                continue
            cells = []
            for loss in (short_losses[rate], early_loss(record)):
                cells.append("stuck" if loss is None else f"{loss:.2f}")
            rows.append([f"{layers}L-{layers}L", NAMES[method], f"{rate:g}", *cells])
    return markdown([["depth", "method", "rate", "warm-up 50", "warm-up 300"], *rows])


def verdicts(records: list[dict]) -> str:
    """Say of how many failures, and of how many trainings that did not fail, `deepnet check` had warned.

    Counted are the trainings that it was asked about, of 500 updates or more: shorter ones are too short to tell.
    """
    checked = [record for record in records if "check" in record and record["run"]["updates"] >= SHORT]
    failed = [record for record in checked if math.isinf(held_out_loss(record))]
    trained = [record for record in checked if math.isfinite(held_out_loss(record))]

    right_warnings = [record for record in failed if record["check"]["verdict"] != "stable"]
    false_warnings = [record for record in trained if record["check"]["verdict"] != "stable"]
    return (
        f"It warned of {len(right_warnings)} of {len(failed)} failures, and of {len(false_warnings)} of {len(trained)} "
        "that trained."
    )


def sections(records: list[dict]) -> dict[str, str]:
    """Render the marked sections of README.md by name."""
    return {"warm_up": warm_up(records), "longer": longer(records), "verdicts": verdicts(records)}


def main() -> None:
    """Write the tables into README.md; with --check end with an error if they are not those of the records."""
    made = sections(read("records.jsonl"))
    path = HERE / "README.md"
    page = path.read_text(encoding="utf-8")
    # the comments around a section stay, and its text becomes that of its name in `made`
    rendered = MARKED.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", page)
    if sys.argv[1:] != ["--check"]:
        path.write_text(rendered, encoding="utf-8")
    elif rendered != page:
        sys.exit(f"{path}: its tables are not those that the records give; run results/depth_study/render.py")


if __name__ == "__main__":
    main()
