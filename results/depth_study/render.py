"""Render the tables of the depth study from records.jsonl.

python results/depth_study/render.py            writes them
python results/depth_study/render.py --check    says whether the page's tables are those of the records
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from statistics import fmean

from deepnet_fairseq.text_table import markdown

HERE = Path(__file__).resolve().parent
MARKED = re.compile(r"(<!-- report (\w+) -->\n).*?(<!-- /report \2 -->\n)", re.DOTALL)
SHORT, LONG = 500, 3000  # updates; a tenth of them is warm-up
GUESSING = 8.917  # held-out bits a token of the tokens' frequencies, where a record does not say it
FIRST_SEED = 1
NAMES = {  # method -> its name, in the order of the tables
    "rezero": "ReZero", "r_fixup": "R-Fixup", "keel": "Keel", "complete_p": "CompleteP", "pre_ln": "Pre-LN",
    "deepnorm": "DeepNorm", "admin": "Admin", "post_ln": "Post-LN", "dlcl": "DLCL", "t_fixup": "T-Fixup",
}  # fmt: skip


def read(name: str) -> list[dict]:
    """Read the records of a file in this folder."""
    return [json.loads(line) for line in (HERE / name).read_text(encoding="utf-8").splitlines()]


def of(records: list[dict], method: str, layers: int, updates: int) -> list[dict]:
    """Select the trainings of a method, depth and length. CompleteP's base depth is 6, where it equals Pre-LN."""
    if (method, layers) == ("complete_p", 6):
        method = "pre_ln"
    wanted = {"method": method, "encoder_layers": layers, "decoder_layers": layers, "updates": updates}
    return [one for one in records if wanted.items() <= one["run"].items()]


def held_out(record: dict) -> float:
    """Return the last held-out loss, bits per token; infinite if it diverged or learnt no more than frequencies."""
    losses = record["log"]["valid"]
    if "diverged" in record or "stuck" in record or not losses:
        return math.inf
    loss = float(losses[-1]["valid_loss"])
    return loss if loss < record["run"].get("guessing", GUESSING) else math.inf


def early_loss(record: dict) -> float | None:
    """Return the mean training loss of updates 401 to 500, bits per token; None for a training that ended before."""
    rows = record["log"]["train_inner"]
    return fmean(bits) if (bits := [float(r["loss"]) for r in rows if 400 < int(r["num_updates"]) <= SHORT]) else None


def longer(records: list[dict]) -> str:
    """Lay out the trainings of 3,000 updates, one a row."""
    order = list(NAMES)
    long_runs = [one for one in records if one["run"]["updates"] == LONG]
    long_runs.sort(key=lambda one: (one["run"]["encoder_layers"], order.index(one["run"]["method"]), one["name"]))
    rows = []
    for one in long_runs:
        run, training = one["run"], one["spent"]["training"]
        place = [f"{run['encoder_layers']}L-{run['decoder_layers']}L", NAMES[run["method"]]]
        bleu = f"{one['score']['bleu']:.1f}" if "score" in one else "-"
        cost = [f"{training['peak_memory_bytes'] / 1e9:.1f}", f"{training['processor_seconds'] / 3600:.2f}"]
        rows.append([*place, f"{run['lr']:g}", str(run["seed"]), f"{held_out(one):.3f}", bleu, *cost])
    return markdown([["depth", "method", "rate", "seed", "held-out bits", "BLEU", "GB", "core-hours"], *rows])


def warm_up(records: list[dict]) -> str:
    """Lay out the loss after 500 updates of trainings with both lengths of warm-up, one rate a row."""
    rows = []
    for layers in (6, 18, 50):
        for method in NAMES:
            own = [one for one in of(records, method, layers, SHORT) if one["run"]["seed"] == FIRST_SEED]
            short = {one["run"]["lr"]: early_loss(one) for one in own}
            for one in sorted(of(records, method, layers, LONG), key=lambda one: one["run"]["lr"]):
                rate, loss = one["run"]["lr"], early_loss(one)
                if one["run"]["seed"] == FIRST_SEED and rate in short and (method, layers) != ("complete_p", 6):
                    texts = ["stuck" if value is None else f"{value:.2f}" for value in (short[rate], loss)]
                    rows.append([f"{layers}L-{layers}L", NAMES[method], f"{rate:g}", *texts])
    return markdown([["depth", "method", "rate", "warm-up 50", "warm-up 300"], *rows])


def verdicts(records: list[dict]) -> str:
    """Say how often `deepnet check` was right about the trainings of 500 updates and more that it was asked about."""
    judged = [one for one in records if "check" in one and one["run"]["updates"] >= SHORT]
    failed = [one for one in judged if math.isinf(held_out(one))]
    trained = [one for one in judged if math.isfinite(held_out(one))]
    warned, alarms = (sum(one["check"]["verdict"] != "stable" for one in some) for some in (failed, trained))
    return f"It warned of {warned} of {len(failed)} failures, and of {alarms} of {len(trained)} that trained."


def sections(records: list[dict]) -> dict[str, str]:
    """Render the marked sections of README.md by name."""
    return {"warm_up": warm_up(records), "longer": longer(records), "verdicts": verdicts(records)}


def main() -> None:
    """Write the page's tables, or check them."""
    made, path = sections(read("records.jsonl")), HERE / "README.md"
    page = path.read_text(encoding="utf-8")
    rendered = MARKED.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", page)
    if sys.argv[1:] != ["--check"]:
        path.write_text(rendered, encoding="utf-8")
    elif rendered != page:
        sys.exit(f"{path}: not of the records; run results/depth_study/render.py")


if __name__ == "__main__":
    main()
