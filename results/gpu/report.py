"""Report of scripts/gpu_check.sh: what its trainings measured beside what `deepnet plan` says of the same commands.

    python results/gpu/report.py OUT

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


def planned(words: list[str]) -> list[float]:
    """Return what the plan says of a command of fairseq-train: seconds an update, GiB, launches a batch."""
    symbols = len((Path(words[0]) / "dict.qab.txt").read_text().splitlines()) + 4
    gpus = words[words.index("--distributed-world-size") + 1]
    settings = setting.parse([*words, "--vocab", str(symbols), "--gpus", gpus], strict=False)
    speed = needs.speed(settings, rows.ASSUMED[settings.device] * needs.TERA)
    tokens = settings.max_tokens * settings.update_freq * settings.gpus
    launched = needs.flops(settings).launches / settings.update_freq
    return [tokens / speed.tokens_per_second, needs.memory(settings).peak / setting.GIB, launched]


def measured(log: str, words: list[str]) -> list[float | None]:
    """Return the same of a training, None for what a CPU does not say; then losses, attempts, update of the resume.

    An update's seconds are a median over the logged intervals that do not begin with a save or with the program.
    fairseq counts the target's tokens without padding, so that its tokens a second cannot be compared with the plan's.
    """
    every, saved = (int(words[last(words, flag) + 1]) for flag in ("--log-interval", "--save-interval-updates"))
    attempts = [
        [json.loads(row) for row in re.findall(r"train_inner \| (\{.*\})", part)]
        for part in log.split("fairseq_cli.train | {")
    ]
    attempts = [attempt for attempt in attempts if attempt]
    updates = [row for attempt in attempts for row in attempt]
    total = re.search(r"total memory = ([\d.]+) GB", log)
    return [
        statistics.median(
            float(row["wpb"]) / float(row["wps"]) for row in updates if (int(row["num_updates"]) - every) % saved
        ),
        float(total[1]) - min(float(row["gb_free"]) for row in updates) if total else None,
        launches(words) if torch.cuda.is_available() else None,
        float(updates[0]["loss"]), float(updates[-1]["loss"]), len(attempts), int(attempts[-1][0]["num_updates"]),
    ]  # fmt: skip


def last(words: list[str], flag: str) -> int:
    """Return the place of the last use of a flag, which is the one that counts."""
    return len(words) - 1 - words[::-1].index(flag)


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
    what = ["seconds an update", "GiB", "launches a batch", "first loss", "last loss", "attempts"]
    what += ["first update logged by the last attempt"]
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
