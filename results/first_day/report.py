"""Report of scripts/gpu_check.sh: what its trainings measured beside what `deepnet plan` says of the same commands.

    python results/first_day/report.py OUT

Reads OUT/table1/*/command and train.log, counts the kernel launches of one more update on one GPU, and writes
OUT/report.md.
"""

from __future__ import annotations

import json
import re
import shlex
import statistics
import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from deepnet_fairseq import register
from deepnet_fairseq.plugin.trainer import batches, build_trainer, parse, step
from deepnet_fairseq.text_table import markdown
from deepnet_fairseq.tools.plan import needs, rows, setting

SKIPPED = 2  # logged intervals at the start of an attempt whose speed does not count


def planned(words: list[str]) -> list[float]:
    """Return what the plan says of a command of fairseq-train: tokens a second, GiB, launches a batch."""
    symbols = len((Path(words[0]) / "dict.qab.txt").read_text().splitlines()) + 4
    gpus = words[words.index("--distributed-world-size") + 1]
    settings = setting.parse([*words, "--vocab", str(symbols), "--gpus", gpus], strict=False)
    speed = needs.speed(settings, rows.ASSUMED[settings.device] * needs.TERA)
    launched = needs.flops(settings).launches / settings.update_freq
    return [speed.tokens_per_second, needs.memory(settings).peak / setting.GIB, launched]


def measured(log: str, words: list[str]) -> list[float | None]:
    """Return the same of a training, None for what a CPU does not say; then losses, attempts, update of the resume."""
    attempts = [
        [json.loads(row) for row in re.findall(r"train_inner \| (\{.*\})", part)]
        for part in log.split("fairseq_cli.train | {")
    ]
    attempts = [attempt for attempt in attempts if attempt]
    updates = [row for attempt in attempts for row in attempt]
    total = re.search(r"total memory = ([\d.]+) GB", log)
    return [
        statistics.median(float(row["wps"]) for attempt in attempts for row in attempt[SKIPPED:]),
        float(total[1]) - min(float(row["gb_free"]) for row in updates) if total else None,
        launches(words) if torch.cuda.is_available() else None,
        float(updates[0]["loss"]), float(updates[-1]["loss"]), len(attempts), int(attempts[-1][0]["num_updates"]),
    ]  # fmt: skip


def launches(words: list[str]) -> int:
    """Count the kernel launches of the third update, of one batch, on one GPU in this process."""
    trainer = build_trainer(parse(words))
    source = batches(trainer)
    for _ in range(2):
        step(trainer, next(source)[:1])
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as watched:
        step(trainer, next(source)[:1])
    return sum(event.count for event in watched.key_averages() if re.match(r"cu(da)?LaunchKernel", event.key))


def main(out: Path) -> None:
    """Write OUT/report.md and print it."""
    register()
    what = ["tokens/s", "GiB", "launches a batch", "first loss", "last loss", "attempts", "first update of the last"]
    table = [["training", "what", "planned", "measured"]]
    for run in sorted(path.parent for path in (out / "table1").glob("*/command")):
        _, *words = shlex.split((run / "command").read_text())
        numbers = measured((run / "train.log").read_text(), words)
        for name, plan, actual in zip(what, [*planned(words), *[None] * 4], numbers):
            cells = ["" if number is None else f"{number:,.5g}" for number in (plan, actual)]
            table.append([run.name, name, *cells])
    environment = next((out / "table1").glob("*/environment.json")).read_text()
    (out / "report.md").write_text(f"{markdown(table)}\n\n```json\n{environment.strip()}\n```\n")
    print(markdown(table))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
