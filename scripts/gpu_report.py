"""Report of scripts/gpu_check.sh: what its trainings measured beside what `deepnet plan` says of the same commands.

    python scripts/gpu_report.py OUT

Reads OUT/table1/*/command and train.log, counts the kernel launches of one more update on one GPU, and writes
OUT/report.md.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import statistics
import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from deepnet_fairseq.plugin.trainer import batches, build_trainer, parse, step
from deepnet_fairseq.text_table import markdown
from deepnet_fairseq.tools.plan import needs, rows, setting

SKIPPED = 10  # updates at the start of an attempt that do not count


def planned(words: list[str], vocabulary: int, gpus: int) -> dict[str, float]:
    """Return what the plan says of a command of fairseq-train: tokens a second, GiB, launches an update."""
    found = setting.parse([*words, "--vocab", str(vocabulary), "--gpus", str(gpus)], strict=False)
    speed = needs.speed(found, rows.ASSUMED[found.device] * needs.TERA)
    memory = needs.memory(found).peak / setting.GIB
    return {"tokens/s": speed.tokens_per_second, "GiB": memory, "launches": needs.flops(found).launches}


def measured(run: Path, words: list[str]) -> dict[str, float | None]:
    """Return the same of a run, None for what a CPU does not say, and its losses and the resumed update."""
    text = (run / "train.log").read_text()
    attempts = [
        [json.loads(row) for row in re.findall(r"train_inner \| (\{.*\})", part)]
        for part in re.split(r"\| INFO \| fairseq_cli\.train \| [{N]", text)
    ]
    updates = list(itertools.chain.from_iterable(attempts))
    speed = statistics.median(
        float(row["wps"]) for rows_ in attempts for row in rows_ if int(row["num_updates"]) > int(rows_[0]["num_updates"]) + SKIPPED
    )
    free = [float(row["gb_free"]) for row in updates if "gb_free" in row]
    total = re.search(r"total memory = ([\d.]+) GB", text)
    return {
        "tokens/s": speed,
        "GiB": float(total[1]) - min(free) if total and free else None,
        "launches": launches(words) if torch.cuda.is_available() else None,
        "first loss": float(updates[0]["loss"]),
        "last loss": float(updates[-1]["loss"]),
        "resumed after update": int(attempts[-1][0]["num_updates"]) - 5,
    }


def launches(words: list[str]) -> int:
    """Count the kernel launches of the third update, on one GPU in this process."""
    trainer = build_trainer(parse([*words, "--distributed-world-size", "1"]))
    source = batches(trainer)
    for _ in range(2):
        step(trainer, next(source))
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as watched:
        step(trainer, next(source))
    return sum(event.count for event in watched.key_averages() if re.match(r"cu(da)?LaunchKernel", event.key))


def main(out: Path) -> None:
    """Write OUT/report.md and print it."""
    table = [["training", "what", "planned", "measured"]]
    for run in sorted((out / "table1").glob("*/command"), key=lambda path: path.stat().st_mtime):
        _, *words = shlex.split(run.read_text())
        world = int(dict(zip(words, words[1:])).get("--distributed-world-size", 1))
        vocabulary = len((Path(words[0]) / "dict.qab.txt").read_text().splitlines()) + 4
        plan = planned(words, vocabulary, world)
        for what, number in measured(run.parent, words).items():
            cells = [f"{value:,.6g}" if value is not None else "not on a CPU" for value in (plan.get(what, ""), number) if value != ""]
            table.append([run.parent.name, what, *([""] * (2 - len(cells))), *cells])
    environment = next((out / "table1").glob("*/environment.json")).read_text()
    (out / "report.md").write_text(f"{markdown(table)}\n\n```json\n{environment.strip()}\n```\n")
    print(markdown(table))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
