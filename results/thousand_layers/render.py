"""Render README.md's tables and pictures from plan.toml and records.jsonl.

python results/thousand_layers/render.py            writes them
python results/thousand_layers/render.py --check    says whether README.md's tables are those of the records
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
NAMES = {
    "deepnorm": "DeepNorm", "pre_ln": "Pre-LN", "admin": "Admin", "post_ln_init": "Post-LN-init", "post_ln": "Post-LN",
    "r_fixup": "R-Fixup",
}  # fmt: skip
COLOURS = {
    "deepnorm": "#D55E00", "pre_ln": "#0072B2", "admin": "#009E73", "post_ln_init": "#CC79A7", "post_ln": "#555555",
}  # fmt: skip
MARKED = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- /\2 -->\n)", re.DOTALL)


def copying(records: Iterable[dict], layers: int | None = None) -> list[dict]:
    """Select the records of C1's copying, at one depth or all, methods in NAMES' order, then by depth and rate."""
    trainings = [one for one in records if one["task"] == "copy" and layers in (None, one["layers"])]
    return sorted(trainings, key=lambda one: (list(NAMES).index(one["method"]), one["layers"], one["lr"], one["seed"]))


def best(records: Iterable[dict]) -> list[dict]:
    """Select the record of the best rate of each method, by the final loss of its first seed.

    Records that did not train to the end come last. Other seeds do not compete: not every method has several.
    """
    chosen: dict[str, dict] = {}
    for one in records:
        if one["seed"] != 1:
            continue
        ranks = [(other["ended"] != "trained", other["final_loss"]) for other in (one, chosen.get(one["method"], one))]
        if one["method"] not in chosen or ranks[0] < ranks[1]:
            chosen[one["method"]] = one
    return list(chosen.values())


def draw(records: list[dict], path: Path) -> None:
    """Draw the training loss of 500L-500L by update beside the two entropies; other rates and seeds are faint."""
    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    deepest = copying(records, layers=500)
    chosen = best(deepest)
    for one in deepest:
        updates = range(one["logged_every"], one["update"] + 1, one["logged_every"])
        label = f"{NAMES[one['method']]}, lr {one['lr']:g}" if one in chosen else None
        faint = one not in chosen
        axes.plot(
            updates, one["loss"], color=COLOURS[one["method"]], label=label, linewidth=1 if faint else 2,
            alpha=0.35 if faint else 1, zorder=2 if faint else 3,
        )  # fmt: skip
    for bits, what in ((UNIGRAM, "unigram entropy"), (SOURCE_BLIND, "entropy without the source")):
        axes.axhline(bits, color="black", linestyle="--", linewidth=0.8)
        axes.text(700, bits + 0.04, what, ha="right", va="bottom", fontsize=8)
    axes.set(
        xlabel="updates", ylabel="training loss (bits per token)", ylim=(0, 4.5), xlim=(0, 700),
        title="500 encoder and 500 decoder layers learn to copy",
    )  # fmt: skip
    axes.legend(fontsize=8, loc="lower left")
    figure.savefig(path, dpi=150, metadata={"Software": None})


def one_rate_for_all(records: Iterable[dict]) -> float | None:
    """Find the one rate that experiment B has for all methods and depths: that of most of its trainings."""
    rates = [one["lr"] for one in records if one["experiment"] == "B"]
    return mode(rates) if rates else None


def by_depth(records: list[dict]) -> dict[tuple[str, int], list[dict]]:
    """Sort the trainings of B at its one rate, and those of C2, by method and layers, the first seed first."""
    common = one_rate_for_all(records)
    trainings = [
        one for one in records if one["experiment"] == "C2" or one["experiment"] == "B" and one["lr"] == common
    ]
    sorted_records: dict[tuple[str, int], list[dict]] = {}
    for one in sorted(trainings, key=lambda one: (list(NAMES).index(one["method"]), one["layers"], one["seed"])):
        sorted_records.setdefault((one["method"], one["layers"]), []).append(one)
    return sorted_records


def draw_depth(records: list[dict], path: Path) -> None:
    """Draw BLEU by depth: means over the seeds, a bar from the lowest to the highest, a cross where it was stuck.

    Hollow points are the trainings of B and C2 at another rate, with the rate beside them.
    """
    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    common = one_rate_for_all(records)
    trainings = by_depth([one for one in records if one["experiment"] == "B"])
    for method in dict.fromkeys(method for method, _ in trainings):
        layers = [layers for name, layers in trainings if name == method]
        scores = [[one.get("bleu", 0.0) for one in trainings[method, depth]] for depth in layers]
        means, colour = [fmean(some) for some in scores], COLOURS[method]
        axes.plot(layers, means, color=colour, marker="o", label=f"{NAMES[method]}, lr {common:g}")
        axes.vlines(layers, [min(some) for some in scores], [max(some) for some in scores], color=colour)
        stuck = [depth for depth in layers if any(one["ended"] != "trained" for one in trainings[method, depth])]
        axes.plot(stuck, [0] * len(stuck), color=colour, marker="x", markersize=10, linestyle="none")
    others = [one for one in records if one["experiment"] in ("B", "C2") and one["lr"] != common]
    for one in others:
        marker = "o" if one["ended"] == "trained" else "x"
        place = one["layers"], one.get("bleu", 0.0)
        axes.plot(*place, color=COLOURS[one["method"]], marker=marker, fillstyle="none", linestyle="none")
        axes.annotate(f"lr {one['lr']:g}", place, xytext=(0, 7), textcoords="offset points", ha="center", fontsize=8)
    ticks = sorted({one["layers"] for one in others} | {layers for _, layers in trainings})
    axes.set_xscale("log")
    axes.set_xticks(ticks, labels=[f"{layers}L-{layers}L" for layers in ticks])
    axes.minorticks_off()
    axes.margins(0.08)
    axes.set(ylabel="BLEU on 500 test sentences", ylim=(-3, None), title="Translation by depth, one rate for all")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=150, metadata={"Software": None})


def depth_table(records: list[dict]) -> str:
    """Lay out BLEU by method and depth, with the paper's Figure 6 in brackets where it shows the method."""
    trainings = by_depth(records)
    depths = sorted({layers for _, layers in trainings})
    rows = []
    for method in dict.fromkeys(method for method, _ in trainings):
        published = dict(zip(FIGURE6_LAYERS, FIGURE6.get(method, ()), strict=False))  # by layers; none of some methods
        cells = []
        for depth in depths:
            some = trainings.get((method, depth), [])
            text = ", ".join(f"{one['bleu']:.1f}" if "bleu" in one else one["ended"] for one in some) or "-"
            cells.append(f"{text} ({published[depth]:.1f})" if depth in published else text)
        rows.append([NAMES[method], *cells])
    return markdown([["method", *(f"{depth}L-{depth}L" for depth in depths)], *rows])


def real_text_table(records: list[dict]) -> str:
    """Lay out held-out bits and BLEU of D by method and depth, at the best of the rates that were tried."""
    trainings = [one for one in records if one["experiment"] == "D"]
    depths = sorted({one["layers"] for one in trainings})
    rows = []
    for method in sorted({one["method"] for one in trainings}, key=list(NAMES).index):
        cells = []
        for depth in depths:
            tried = [one for one in trainings if (one["method"], one["layers"]) == (method, depth)]
            cells += [f"{one['final_loss']:.2f}, {one['bleu']:.1f} ({one['lr']:g})" for one in best(tried)] or ["-"]
        rows.append([NAMES[method], *cells])
    return markdown([["method", *(f"{depth}L-{depth}L" for depth in depths)], *rows])


def symbols_table(records: list[dict]) -> str:
    """Lay out the trainings of C1 that `records` has, one a row."""
    rows = []
    for one in records:
        silent = one["silent_layers"]
        rows.append([
            f"{NAMES[one['method']]} {one['layers']}L-{one['layers']}L", f"{one['lr']:g}", str(one["seed"]),
            f"{one['update']}" + ("" if one["ended"] == "trained" else f" ({one['ended']})"),
            f"{one['final_loss']:.3f}" if math.isfinite(one["final_loss"]) else "-", f"{one['right'][-1]:.0%}",
            f"{one['sentences_right']} of {one['sentences']}" if "sentences" in one else "-",
            f"{silent['encoder']} and {silent['decoder']}" if silent else "-", f"{one['processor_seconds'] / 60:.1f}",
        ])  # fmt: skip
    header = [
        "model", "rate", "seed", "updates", "loss", "tokens right", "sentences right",
        "encoder and decoder layers without a gradient", "minutes",
    ]  # fmt: skip
    return markdown([header, *rows])


def text_table(records: list[dict]) -> str:
    """Lay out trainings on text, one a row."""
    rows = [
        [
            f"{one['task']}: {NAMES[one['method']]} {one['layers']}L-{one['layers']}L", f"{one['lr']:g}",
            str(one["warmup"]), str(one["seed"]),
            str(one["updates"]) if one["ended"] == "trained" else f"{one['ended']} at {one['ended_at']}",
            f"{one['final_loss']:.3f}" if one["final_loss"] else "-", f"{one['bleu']:.1f}" if "bleu" in one else "-",
            f"{one['processor_seconds'] / 60:.0f}",
        ]
        for one in records
    ]  # fmt: skip
    return markdown([["model", "rate", "warm-up", "seed", "updates", "held-out bits", "BLEU", "minutes"], *rows])


def hours_table(records: Records) -> str:
    """Lay out predicted and measured core-hours of each experiment, for the cells that are over and those to come."""
    rows = []
    cells = cells_of(read_plan(HERE / "plan.toml"), records)
    for experiment in dict.fromkeys(cell.experiment for cell in cells):
        named = [cell for cell in cells if cell.experiment == experiment]
        over = [cell for cell in named if cell.name in records.over]
        spent = sum(records.over[cell.name]["processor_seconds"] for cell in over) / 3600
        predicted = sum(cell.hours for cell in over)
        left = sum(cell.hours for cell in named if cell not in over)
        rows.append(
            [experiment, str(len(over)), f"{predicted:.2f}", f"{spent:.2f}", str(len(named) - len(over)), f"{left:.1f}"]
        )
    header = [
        "experiment",
        "cells over",
        "hours predicted",
        "hours taken",
        "cells left that can be named",
        "hours predicted for them",
    ]
    return markdown([header, *rows])


def made_with(records: Iterable[dict]) -> str:
    """Name the commits, versions and processors of the records."""
    environments = [one["environment"] for one in records]
    commits = sorted({one["commit"] for one in environments})
    versions = sorted({f"PyTorch {one['versions']['torch']}" for one in environments})
    hardware = sorted({one["hardware"] for one in environments})
    return f"Commits {', '.join(commits)}; {', '.join(versions)}; {', '.join(hardware)}, of which a training uses one."


def sections(records: Records) -> dict[str, str]:
    """Render the marked sections of README.md by name."""
    every = list(records.over.values())
    return {
        "deepest": symbols_table(copying(every, layers=500)),
        "shallower": symbols_table([one for one in copying(every) if one["layers"] != 500]),
        "reversing": symbols_table([one for one in every if one["task"] == "reverse"]),
        "depths": depth_table(every),
        "real": real_text_table(every),
        "texts": text_table([one for one in every if one["experiment"] != "C1"]),
        "hours": hours_table(records),
        "made_with": made_with(every),
    }


def render(page: str, made: dict[str, str]) -> str:
    """Put sections in their places of a page."""
    return MARKED.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", page)


def main() -> None:
    """Write the page and its picture, or check the page."""
    records = Records.read(HERE / "records.jsonl", HERE / "runs")
    path = HERE / "README.md"
    page = path.read_text(encoding="utf-8")
    rendered = render(page, sections(records))
    if sys.argv[1:] == ["--check"]:
        sys.exit(None if rendered == page else f"{path}: not of the records; run results/thousand_layers/render.py")
    path.write_text(rendered, encoding="utf-8")
    draw(list(records.over.values()), HERE / "copying.png")
    draw_depth(list(records.over.values()), HERE / "depth.png")


if __name__ == "__main__":
    main()
