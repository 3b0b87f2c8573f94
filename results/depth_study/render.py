"""Render the tables and the picture of the depth study from records.jsonl and other_text.jsonl.

python results/depth_study/render.py            writes them
python results/depth_study/render.py --check    says whether the pages' tables are those of the records
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

HERE = Path(__file__).resolve().parent
PAGES = (HERE / "README.md",)
MARKED = re.compile(r"(<!-- report (\w+) -->\n).*?(<!-- /report \2 -->\n)", re.DOTALL)
SHORT, LONG = 500, 3000  # updates; a tenth of them is warm-up
GUESSING = 8.917  # held-out bits a token of the tokens' frequencies, where a record does not say it
FIRST_SEED = 1
STYLES = {  # method -> its name, colour and marker; in tables by this order
    "rezero": ("ReZero", "#2B2D7C", "P"), "r_fixup": ("R-Fixup", "#74C7A5", "D"), "keel": ("Keel", "#3863FF", "X"),
    "complete_p": ("CompleteP", "#5608F6", ">"), "pre_ln": ("Pre-LN", "#4D4D4D", "s"),
    "deepnorm": ("DeepNorm", "#D55E00", "o"), "admin": ("Admin", "#0072B2", "v"),
    "post_ln": ("Post-LN", "#000000", "*"), "dlcl": ("DLCL", "#B5489A", "<"), "t_fixup": ("T-Fixup", "#D9CB1E", "^"),
}  # fmt: skip
COMPARED = tuple(STYLES)[:8]  # at two depths or more


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
    return fmean(found) if (found := [float(r["loss"]) for r in rows if 400 < int(r["num_updates"]) <= SHORT]) else None


def best(records: list[dict]) -> tuple[float, list[float]]:
    """Return the best rate and its held-out losses by seed; no losses where no rate has learnt anything.

    The best is the rate of the lowest loss with the first seed, among the rates that were trained with most seeds.
    """
    by_rate: dict[float, list[dict]] = {}
    for one in records:
        by_rate.setdefault(one["run"]["lr"], []).append(one)
    most = max(map(len, by_rate.values()))
    firsts = [one for one in records if one["run"]["seed"] == FIRST_SEED and len(by_rate[one["run"]["lr"]]) == most]
    rate = min(firsts, key=held_out)["run"]["lr"]
    return rate, [loss for loss in map(held_out, by_rate[rate]) if math.isfinite(loss)]


def summary(records: list[dict], methods: tuple[str, ...], places: list[tuple[int, int]]) -> str:
    """Lay out the loss at the best rate of methods at depths and lengths: with that rate, or with BLEU where LONG."""

    def text(method: str, layers: int, updates: int) -> str:
        found = of(records, method, layers, updates)
        if not found:
            return "-"
        if (method, layers) == ("complete_p", 6):
            return "as Pre-LN"
        rate, losses = best(found)
        tried = sorted({one["run"]["lr"] for one in found})
        if not losses:
            return f"stuck ({len(tried)} rate{'s' * (len(tried) > 1)})"
        if updates == LONG:
            return f"{fmean(losses):.2f}; {min(found, key=held_out)['score']['bleu']:.1f}"
        edge = "only " if len(tried) == 1 else "≤ " if rate == tried[0] else "≥ " if rate == tried[-1] else ""
        return f"{fmean(losses):.2f} ({edge}{rate:.2g})"

    names = [f"{layers}L-{layers}L" + f", {LONG:,}; BLEU" * (updates == LONG) for layers, updates in places]
    return table(["method", *names], [[STYLES[m][0], *(text(m, *place) for place in places)] for m in methods])


def longer(records: list[dict]) -> str:
    """Lay out the trainings of 3,000 updates, one a row."""
    order = list(STYLES)
    found = [one for one in records if one["run"]["updates"] == LONG]
    found.sort(key=lambda one: (one["run"]["encoder_layers"], order.index(one["run"]["method"]), one["name"]))
    rows = []
    for one in found:
        run, training = one["run"], one["spent"]["training"]
        place = [f"{run['encoder_layers']}L-{run['decoder_layers']}L", STYLES[run["method"]][0]]
        bleu = f"{one['score']['bleu']:.1f}" if "score" in one else "-"
        cost = [f"{training['peak_memory_bytes'] / 1e9:.1f}", f"{training['processor_seconds'] / 3600:.2f}"]
        rows.append([*place, f"{run['lr']:g}", str(run["seed"]), f"{held_out(one):.3f}", bleu, *cost])
    return table(["depth", "method", "rate", "seed", "held-out bits", "BLEU", "GB", "core-hours"], rows)


def warm_up(records: list[dict]) -> str:
    """Lay out the loss after 500 updates of trainings with both lengths of warm-up, one rate a row."""
    rows = []
    for layers in (6, 18, 50):
        for method in STYLES:
            own = [one for one in of(records, method, layers, SHORT) if one["run"]["seed"] == FIRST_SEED]
            short = {one["run"]["lr"]: early_loss(one) for one in own}
            for one in sorted(of(records, method, layers, LONG), key=lambda one: one["run"]["lr"]):
                rate, loss = one["run"]["lr"], early_loss(one)
                if one["run"]["seed"] == FIRST_SEED and rate in short and (method, layers) != ("complete_p", 6):
                    texts = ["stuck" if value is None else f"{value:.2f}" for value in (short[rate], loss)]
                    rows.append([f"{layers}L-{layers}L", STYLES[method][0], f"{rate:g}", *texts])
    return table(["depth", "method", "rate", "warm-up 50", "warm-up 300"], rows)


def verdicts(records: list[dict]) -> str:
    """Say how often `deepnet check` was right about the trainings of 500 updates and more that it was asked about."""
    judged = [one for one in records if "check" in one and one["run"]["updates"] >= SHORT]
    failed = [one for one in judged if math.isinf(held_out(one))]
    trained = [one for one in judged if math.isfinite(held_out(one))]
    warned, alarms = (sum(one["check"]["verdict"] != "stable" for one in some) for some in (failed, trained))
    return f"It warned of {warned} of {len(failed)} failures, and of {alarms} of {len(trained)} that trained.\n"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Lay out a Markdown table; all columns but those named depth and method are numbers."""
    kinds = ["---" if name in ("depth", "method") else "---:" for name in header]
    return "".join(f"| {' | '.join(line)} |\n" for line in [header, kinds, *rows])


def draw(records: list[dict], path: Path) -> None:
    """Draw the held-out loss after 500 updates at the best rate by depth, with the range of seeds."""
    pyplot.rcParams.update({"svg.hashsalt": "depth_study", "svg.fonttype": "none"})
    figure, axes = pyplot.subplots(figsize=(6.5, 4), layout="constrained")
    for method in COMPARED:
        name, colour, marker = STYLES[method]
        points, crosses = {}, []
        for layers in (6, 18, 50, 100):
            if found := of(records, method, layers, SHORT):
                losses = best(found)[1]
                if losses:
                    points[layers] = fmean(losses)
                    axes.vlines(layers, min(losses), max(losses), color=colour, linewidth=3, alpha=0.45)
                else:
                    crosses.append(layers)
        axes.plot(points.keys(), points.values(), color=colour, marker=marker, label=name)
        axes.plot(crosses, [9] * len(crosses), color=colour, marker="x", linestyle="none")
    axes.set_xscale("log")
    axes.set_xticks([6, 18, 50, 100], labels=["6", "18", "50", "100"])
    axes.minorticks_off()
    axes.set(
        xlabel="layers N of an N-N model; a cross: learnt nothing",
        ylabel="held-out loss (bits per token)",
        title="500 updates, 50 of them warm-up",
    )
    axes.legend(fontsize=8, ncols=2)
    figure.savefig(path, metadata={"Date": None, "Creator": None})


def sections(records: list[dict], other_text: list[dict]) -> dict[str, str]:
    """Render the marked sections of the pages by name."""
    places = [*((layers, SHORT) for layers in (6, 18, 50, 100)), *((layers, LONG) for layers in (6, 18, 50))]
    return {
        "warm_up": warm_up(records),
        "longer": longer(records),
        "depth_study": summary(records, COMPARED, places),
        "verdicts": verdicts(records),
        "other_text": summary(other_text, ("pre_ln", "deepnorm"), places[:3]),
    }


def main() -> None:
    """Write the pages and the picture, or check the pages."""
    records = read("records.jsonl")
    made = sections(records, read("other_text.jsonl"))
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        rendered = MARKED.sub(lambda found: found[1] + made[found[2]] + found[3], page)
        if sys.argv[1:] != ["--check"]:
            path.write_text(rendered, encoding="utf-8")
        elif rendered != page:
            sys.exit(f"{path}: not of the records; run results/depth_study/render.py")
    if sys.argv[1:] != ["--check"]:
        draw(records, HERE / "loss_by_depth.svg")


if __name__ == "__main__":
    main()
