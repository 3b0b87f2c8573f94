"""Training loss at several depths, one panel each: what the runs of scripts/quickstart.sh show."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...atomic_output import whole
from ..recorded_run import RecordedRun
from ..style import style_of
from .summary import page

WIDTH, HEIGHT, DPI = 9.0, 3.3, 200  # inches; read at half its pixels
APART = 0.6  # bits between two labels


def draw(runs: list[RecordedRun], path: Path) -> str:
    """runs: N-N models, several methods at each depth; a curve each, named at its end with loss and BLEU."""
    depths = sorted({run.layers for run in runs})
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    panels = figure.subplots(1, len(depths), sharey=True, squeeze=False)[0]
    for axes, depth in zip(panels, depths, strict=True):
        _panel(axes, [run for run in runs if run.layers == depth])
    panels[0].set_ylabel("training loss (bits per token)")
    figure.suptitle(finding(runs), fontsize=11)
    with whole(path) as part:
        figure.savefig(part, format="png", dpi=DPI, metadata={"Software": None})
    return page("Training loss by depth", [rows(runs)], (), "runs of scripts/quickstart.sh, one CPU")


def _panel(axes: Axes, runs: list[RecordedRun]) -> None:
    ends = {}
    for run in runs:
        style = style_of(run.method)
        axes.plot(run.log.updates, run.log.losses, color=style.colour, linewidth=1.6)
        ends[run] = run.log.losses[-1]
    end = max(run.log.updates[-1] for run in runs)
    lowest, *others = sorted(runs, key=ends.get)
    _name(axes, lowest, end, ends[lowest], -6)  # below, for a falling curve comes from above
    height = ends[lowest]
    for run in others:
        height = max(ends[run], height + APART)
        _name(axes, run, end, height, 6)
    axes.set_title(f"{runs[0].layers} encoder + {runs[0].layers} decoder layers", fontsize=9.5)
    axes.set_xlabel("updates")
    axes.set_xlim(0, end)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _name(axes: Axes, run: RecordedRun, x: float, y: float, points: int) -> None:
    """Writes what the curve is, so many points above its end."""
    style = style_of(run.method)
    place = {
        "xytext": (0, points),
        "textcoords": "offset points",
        "ha": "right",
        "va": "bottom" if points > 0 else "top",
    }
    axes.annotate(f"{style.label} {_described(run)}", (x, y), color=style.colour, fontsize=8.5, **place)


def _described(run: RecordedRun) -> str:
    if run.ended_in_nan:
        return f"diverged at update {run.diverged_at or run.log.updates[-1]}"
    return f"{run.log.final_loss():.1f}" + (f", BLEU {_bleu(run):.0f}" if _bleu(run) is not None else "")


def _bleu(run: RecordedRun) -> float | None:
    return run.score.get("bleu") if run.score else None


def finding(runs: list[RecordedRun]) -> str:
    """The picture's title: where each method ends, from the shallowest model to the deepest."""
    depths = sorted({run.layers for run in runs})
    found = {}
    for run in sorted(runs, key=lambda run: run.layers):
        found.setdefault(style_of(run.method).label, []).append(f"{run.log.final_loss():.1f}")
    words = "; ".join(f"{label} ends at {_listed(losses)} bits" for label, losses in found.items())
    return f"{_listed(map(str, depths))} layers: {words}"


def _listed(words: Iterable[str]) -> str:
    """Each once."""
    *most, last = dict.fromkeys(words)
    return f"{', '.join(most)} and {last}" if most else last


def rows(runs: list[RecordedRun]) -> list[list[str]]:
    """A header, and one row a run: its model, its final loss (bits a token), its BLEU."""
    found = [["model", "method", "seed", "updates", "final loss", "BLEU", "training"]]
    for run in sorted(runs, key=lambda run: (run.layers, run.method)):
        bleu = _bleu(run)
        found.append([
            run.depth, style_of(run.method).label, str(run.seed), str(run.log.updates[-1]),
            f"{run.log.final_loss():.2f}", "-" if bleu is None else f"{bleu:.2f}", f"{run.log.seconds:.0f} s",
        ])  # fmt: skip
    return found
