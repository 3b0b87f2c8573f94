"""Render README.md's tables and pictures from plan.toml and records.jsonl.

python results/thousand_layers/render.py            writes them
python results/thousand_layers/render.py --check    says whether README.md's tables are those of the records

A record is the result of one training, as run.py writes it: the fields of a Cell (see cells.py), and among others
"ended" (trained, stuck or diverged), "final_loss" (bits per token) and, for models of text that were scored, "bleu".
"layers" are those of the encoder, and as many of the decoder. The experiments have the names of plan.toml: B and C2
train on the generated language, C1 on random symbols, A and D on German-English text. Every setting has seed 1; some
have others, too.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, mode

import matplotlib
from cells import Records, cells_of, read_plan
from symbols import SOURCE_BLIND, UNIGRAM

matplotlib.use("Agg")

from matplotlib import pyplot

from deepnet_fairseq.study.paper import FIGURE6, FIGURE6_LAYERS
from deepnet_fairseq.text_table import markdown

HERE = Path(__file__).resolve().parent
# method -> its name, in the order of the tables and legends
NAMES = {
    "deepnorm": "DeepNorm", "pre_ln": "Pre-LN", "admin": "Admin", "post_ln_init": "Post-LN-init", "post_ln": "Post-LN",
    "r_fixup": "R-Fixup",
}  # fmt: skip
# of the curves; R-Fixup is in no picture
COLOURS = {
    "deepnorm": "#D55E00", "pre_ln": "#0072B2", "admin": "#009E73", "post_ln_init": "#CC79A7", "post_ln": "#555555",
}  # fmt: skip
# A section of the page, <!-- NAME --> ... <!-- /NAME -->. Groups: the first comment, the name, the last comment.
MARKED = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->\n)", re.DOTALL)


def order_of(method: str) -> int:
    """Return the place of a method, a key of NAMES, in the tables: 0 for the first."""
    return list(NAMES).index(method)


def copy_trainings(records: Iterable[dict], layers: int | None = None) -> list[dict]:
    """Select the trainings that copy symbols, sorted by method (in the order of NAMES), depth, rate and seed.

    layers: the depth to select; None selects all depths.
    """
    selected = []
    for record in records:
        wanted_depth = layers is None or layers == record["layers"]
        if record["task"] == "copy" and wanted_depth:
            selected.append(record)
    return sorted(selected, key=lambda one: (order_of(one["method"]), one["layers"], one["lr"], one["seed"]))


def best_by_method(records: Iterable[dict]) -> list[dict]:
    """Select for each method the record with the lowest final loss among those of seed 1.

    A training that was stuck or diverged is selected only if no other of the method trained to its end. Other seeds are
    left out: not every method has several, and the best of more would be better by chance.
    """

    def rank(record: dict) -> tuple[bool, float]:
        """Return a key that is the smaller the better the training went."""
        return record["ended"] != "trained", record["final_loss"]

    best: dict[str, dict] = {}
    for record in records:
        if record["seed"] != 1:
            continue
        method = record["method"]
        if method not in best or rank(record) < rank(best[method]):
            best[method] = record
    return list(best.values())


def draw_copying(records: list[dict], path: Path) -> None:
    """Draw the loss of copying at 500L-500L in 700 updates, and two entropies as lines; symbols.py explains them.

    The curve of each method's best rate is strong and has a label; other rates and seeds are faint. records: all
    records; path: the picture.
    """
    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    deepest = copy_trainings(records, layers=500)
    best = best_by_method(deepest)
    for one in deepest:
        # "loss" has the mean of every so many updates, "logged_every", up to "update", the last logged one
        updates = range(one["logged_every"], one["update"] + 1, one["logged_every"])
        label = None
        linewidth = 1
        alpha = 0.35
        zorder = 2
        if one in best:
            label = f"{NAMES[one['method']]}, lr {one['lr']:g}"
            linewidth = 2
            alpha = 1
            zorder = 3
        axes.plot(
            updates, one["loss"], color=COLOURS[one["method"]], label=label, linewidth=linewidth, alpha=alpha,
            zorder=zorder,
        )  # fmt: skip

    for bits, what in ((UNIGRAM, "unigram entropy"), (SOURCE_BLIND, "entropy without the source")):
        axes.axhline(bits, color="black", linestyle="--", linewidth=0.8)
        axes.text(700, bits + 0.04, what, ha="right", va="bottom", fontsize=8)  # above the line, at the right edge
    axes.set(
        xlabel="updates", ylabel="training loss (bits per token)", ylim=(0, 4.5), xlim=(0, 700),
        title="500 encoder and 500 decoder layers learn to copy",
    )  # fmt: skip
    axes.legend(fontsize=8, loc="lower left")
    figure.savefig(path, dpi=150, metadata={"Software": None})  # without matplotlib's version: always the same bytes


def common_rate(records: Iterable[dict]) -> float | None:
    """Return the learning rate of most trainings of experiment B; None if `records` has none of B.

    B compares all methods and depths at this one rate; a few trainings try others.
    """
    rates = [one["lr"] for one in records if one["experiment"] == "B"]
    return mode(rates) if rates else None


def by_method_and_depth(records: list[dict]) -> dict[tuple[str, int], list[dict]]:
    """Group the records of B at its common rate, and all of C2, by (method, layers).

    Groups are in the order of NAMES and of depth, and the records of a group in that of their seeds.
    """
    common = common_rate(records)
    trainings = []
    for record in records:
        is_of_b = record["experiment"] == "B" and record["lr"] == common
        is_of_c2 = record["experiment"] == "C2"
        if is_of_b or is_of_c2:
            trainings.append(record)
    trainings.sort(key=lambda one: (order_of(one["method"]), one["layers"], one["seed"]))

    groups: dict[tuple[str, int], list[dict]] = {}
    for record in trainings:
        groups.setdefault((record["method"], record["layers"]), []).append(record)
    return groups


def draw_depth(records: list[dict], path: Path) -> None:
    """Draw BLEU on the generated language by depth, a curve a method: the means over the seeds of B at its common rate.

    A bar goes from the lowest seed to the highest. A cross at 0 says that a seed was stuck or diverged. Hollow points
    are trainings of B and C2 at another rate, with the rate beside them. A training without translations counts as a
    BLEU of 0. records: all records; path: the picture.
    """
    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    common = common_rate(records)
    groups = by_method_and_depth([one for one in records if one["experiment"] == "B"])
    for method in dict.fromkeys(method for method, _depth in groups):  # each method once
        layers = []  # the depths of the method's groups, and for each of them:
        means = []
        lowest = []
        highest = []
        not_trained = []  # depths at which a seed was stuck or diverged
        for (group_method, depth), trainings in groups.items():
            if group_method != method:
                continue
            scores = [one.get("bleu", 0.0) for one in trainings]
            layers.append(depth)
            means.append(fmean(scores))
            lowest.append(min(scores))
            highest.append(max(scores))
            if any(one["ended"] != "trained" for one in trainings):
                not_trained.append(depth)
        colour = COLOURS[method]
        axes.plot(layers, means, color=colour, marker="o", label=f"{NAMES[method]}, lr {common:g}")
        axes.vlines(layers, lowest, highest, color=colour)
        axes.plot(not_trained, [0] * len(not_trained), color=colour, marker="x", markersize=10, linestyle="none")

    other_rates = [one for one in records if one["experiment"] in ("B", "C2") and one["lr"] != common]
    for one in other_rates:
        marker = "o" if one["ended"] == "trained" else "x"
        point = one["layers"], one.get("bleu", 0.0)
        axes.plot(*point, color=COLOURS[one["method"]], marker=marker, fillstyle="none", linestyle="none")
        axes.annotate(f"lr {one['lr']:g}", point, xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8)

    ticks = sorted({one["layers"] for one in other_rates} | {depth for _method, depth in groups})
    axes.set_xscale("log")
    axes.set_xticks(ticks, labels=[f"{layers}L-{layers}L" for layers in ticks])
    axes.minorticks_off()
    axes.margins(0.08)  # room for the rates beside the outermost points
    axes.set(ylabel="BLEU on 500 test sentences", ylim=(-3, None), title="Translation by depth, one rate for all")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150, metadata={"Software": None})  # without matplotlib's version: always the same bytes


def depth_header(depths: list[int]) -> list[str]:
    """Return the header of a table with a method a row and a depth (layers of each stack) a column."""
    return ["method", *(f"{depth}L-{depth}L" for depth in depths)]


def depth_table(records: list[dict]) -> str:
    """Lay out BLEU on the generated language (B and C2) by method and depth, one number a seed.

    "stuck" or "diverged" stands for a seed without translations. In brackets is the BLEU of DeepNet's Figure 6 (Wang et
    al. 2022), on another corpus, where the figure shows the method at that depth.
    """
    groups = by_method_and_depth(records)
    depths = sorted({depth for _method, depth in groups})
    rows = []
    for method in dict.fromkeys(method for method, _depth in groups):  # each method once
        # by depth; empty for a method that the figure does not show
        published = dict(zip(FIGURE6_LAYERS, FIGURE6.get(method, ()), strict=False))
        cells = []
        for depth in depths:
            results = []  # a text for each seed
            for training in groups.get((method, depth), []):
                results.append(f"{training['bleu']:.1f}" if "bleu" in training else training["ended"])
            text = ", ".join(results) or "-"
            if depth in published:
                text += f" ({published[depth]:.1f})"
            cells.append(text)
        rows.append([NAMES[method], *cells])
    return markdown([depth_header(depths), *rows])


def real_text_table(records: list[dict]) -> str:
    """Lay out results on German-English text (D) by method and depth, each at the best of the learning rates tried.

    A cell is "held-out loss (bits per token), BLEU (rate)", or "-" where nothing was trained.
    """
    trainings = [one for one in records if one["experiment"] == "D"]
    depths = sorted({one["layers"] for one in trainings})
    rows = []
    for method in sorted({one["method"] for one in trainings}, key=order_of):
        cells = []
        for depth in depths:
            tried = [one for one in trainings if one["method"] == method and one["layers"] == depth]
            best = best_by_method(tried)  # one record, as all are of one method; none where nothing was tried
            if best:
                [one] = best
                # if all trainings were stuck or diverged, the best one may have no translations
                result = f"{one['final_loss']:.2f}, {one['bleu']:.1f}" if "bleu" in one else one["ended"]
                cells.append(f"{result} ({one['lr']:g})")
            else:
                cells.append("-")
        rows.append([NAMES[method], *cells])
    return markdown([depth_header(depths), *rows])


def model_name(record: dict) -> str:
    """Return the name of a record's method and its depth, as "DeepNorm 500L-500L"."""
    return f"{NAMES[record['method']]} {record['layers']}L-{record['layers']}L"


def symbols_table(records: list[dict]) -> str:
    """Lay out trainings on random symbols, one a row, in the order of `records`; symbols.py writes their entries.

    A layer without a gradient is one whose weights all had a gradient of exactly zero at the last logged update.
    """
    header = [
        "model", "rate", "seed", "updates", "loss", "tokens right", "sentences right",
        "encoder and decoder layers without a gradient", "minutes",
    ]  # fmt: skip
    rows = []
    for one in records:
        updates = str(one["update"])
        if one["ended"] != "trained":
            updates += f" ({one['ended']})"
        loss = f"{one['final_loss']:.3f}" if math.isfinite(one["final_loss"]) else "-"
        tokens_right = f"{one['right'][-1]:.0%}"  # of the last logged interval
        # a training that diverged has no held-out sentences
        sentences_right = f"{one['sentences_right']} of {one['sentences']}" if "sentences" in one else "-"
        silent = one["silent_layers"]  # number of such layers by stack
        # {}: the last attempt, which resumed behind the last update, had no gradients
        silent_layers = f"{silent['encoder']} and {silent['decoder']}" if silent else "-"
        minutes = f"{one['processor_seconds'] / 60:.1f}"
        rows.append([
            model_name(one), f"{one['lr']:g}", str(one["seed"]), updates, loss, tokens_right, sentences_right,
            silent_layers, minutes,
        ])  # fmt: skip
    return markdown([header, *rows])


def text_table(records: list[dict]) -> str:
    """Lay out trainings on text, one a row, in the order of `records`; texts.py writes their entries."""
    rows = []
    for one in records:
        updates = str(one["updates"]) if one["ended"] == "trained" else f"{one['ended']} at {one['ended_at']}"
        loss = f"{one['final_loss']:.3f}" if one["final_loss"] else "-"  # None: it ended before its first validation
        bleu = f"{one['bleu']:.1f}" if "bleu" in one else "-"
        minutes = f"{one['processor_seconds'] / 60:.0f}"
        model = f"{one['task']}: {model_name(one)}"
        rows.append([model, f"{one['lr']:g}", str(one["warmup"]), str(one["seed"]), updates, loss, bleu, minutes])
    return markdown([["model", "rate", "warm-up", "seed", "updates", "held-out bits", "BLEU", "minutes"], *rows])


def hours_table(records: Records) -> str:
    """Lay out processor hours, an experiment a row: predicted and taken for cells that are over, predicted for others.

    Cells of a group that waits for another (see cells.py) cannot be named yet, and are missing.
    """
    header = [
        "experiment", "cells over", "hours predicted", "hours taken", "cells left that can be named",
        "hours predicted for them",
    ]  # fmt: skip
    rows = []
    cells = cells_of(read_plan(HERE / "plan.toml"), records)
    for experiment in dict.fromkeys(cell.experiment for cell in cells):
        of_experiment = [cell for cell in cells if cell.experiment == experiment]
        ended = [cell for cell in of_experiment if cell.name in records.by_cell]
        left = [cell for cell in of_experiment if cell not in ended]

        predicted = sum(cell.hours for cell in ended)
        taken = sum(records.by_cell[cell.name]["processor_seconds"] for cell in ended) / 3600
        to_come = sum(cell.hours for cell in left)
        rows.append([experiment, str(len(ended)), f"{predicted:.2f}", f"{taken:.2f}", str(len(left)), f"{to_come:.1f}"])
    return markdown([header, *rows])


def made_with(records: Iterable[dict]) -> str:
    """Return a sentence with the commits of this package, the versions of PyTorch and the processors of all records."""
    environments = [one["environment"] for one in records]
    commits = sorted({one["commit"] for one in environments})
    versions = sorted({f"PyTorch {one['versions']['torch']}" for one in environments})
    hardware = sorted({one["hardware"] for one in environments})
    return f"Commits {', '.join(commits)}; {', '.join(versions)}; {', '.join(hardware)}, of which a training uses one."


def sections(records: Records) -> dict[str, str]:
    """Render the marked sections of README.md by name."""
    every = list(records.by_cell.values())
    return {
        "deepest": symbols_table(copy_trainings(every, layers=500)),
        "shallower": symbols_table([one for one in copy_trainings(every) if one["layers"] != 500]),
        "reversing": symbols_table([one for one in every if one["task"] == "reverse"]),
        "depths": depth_table(every),
        "real": real_text_table(every),
        "texts": text_table([one for one in every if one["experiment"] != "C1"]),
        "hours": hours_table(records),
        "made_with": made_with(every),
    }


def with_sections(page: str, made: dict[str, str]) -> str:
    """Return a page with the text of every marked section replaced, and all else, comments included, as it was.

    made: the new text by the section's name, without its last line end.
    """
    return MARKED.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", page)


def main() -> None:
    """Write README.md's tables and the pictures; with --check end with an error if its tables are others."""
    # records that run.py wrote into a folder "runs" here count before they are in the file
    records = Records.read(HERE / "records.jsonl", runs=HERE / "runs")
    path = HERE / "README.md"
    page = path.read_text(encoding="utf-8")
    rendered = with_sections(page, sections(records))
    if sys.argv[1:] == ["--check"]:
        if rendered != page:
            sys.exit(f"{path}: its tables are not those that the records give; run results/thousand_layers/render.py")
        return

    path.write_text(rendered, encoding="utf-8")
    draw_copying(list(records.by_cell.values()), HERE / "copying.png")
    draw_depth(list(records.by_cell.values()), HERE / "depth.png")


if __name__ == "__main__":
    main()
