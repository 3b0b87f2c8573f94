"""Loss curves of several runs in one picture."""

from __future__ import annotations

from pathlib import Path

from .logs import RunLog


def plot_losses(runs: dict[str, RunLog], path: Path) -> None:
    """Writes a PNG: training loss (bits per token) over updates, one curve a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for name, run in runs.items():
        label = f"{name} (diverged at {run.updates[-1]})" if run.diverged else name
        axes.plot(run.updates, run.losses, label=label)
    axes.set(xlabel="updates", ylabel="training loss (bits per token, label-smoothed)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
