"""What the watch over late growth says of runs: late_watch.py replay RUNS, trainings OUT SEEDS, table OUT.

replay: of recorded runs, whose rows of the log are means over some updates, one row after the other as the watch sees
blocks of updates; none of them ended in numbers that are not finite, so each alarm is a false one. trainings: on 400
pairs of the made language, most of them made to diverge after they were stable; OUT, a JSON, keeps each.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fairseq.logging import metrics

from deepnet_fairseq import register
from deepnet_fairseq.data.language import make_corpus, write_corpus
from deepnet_fairseq.data.parallel_text import prepare_text
from deepnet_fairseq.plugin.divergence import Diverged
from deepnet_fairseq.plugin.divergence.late import GROWTH, of_blocks
from deepnet_fairseq.plugin.trainer import batches, build_trainer, parse
from deepnet_fairseq.tools.environment import environment

FROM, UPDATES = 300, 500  # updates: the fault, the end
FLAGS = (
    "--cpu", "--arch", "deepnet_transformer", "--encoder-layers", "2", "--decoder-layers", "2", "--encoder-embed-dim",
    "16", "--encoder-ffn-embed-dim", "32", "--encoder-attention-heads", "2", "--share-all-embeddings", "--optimizer",
    "adam", "--lr", "2e-3", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "50", "--warmup-init-lr", "1e-7",
    "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--max-tokens", "600", "--num-workers",
    "0", "--clip-norm", "0",
)  # fmt: skip
FREE = ("--method", "t_fixup")  # no LayerNorm bounds its numbers
MOMENTUM = ("--optimizer", "nag", "--lr", "0.1")  # Adam divides by a gradient's size
HALF = (*FREE, "--fp16", "--fp16-init-scale", "128")


def raise_rate(trainer, factor: float, at_once: bool) -> None:
    """From update FROM on the learning rate is `factor` times what it was, or that again at each update."""
    schedule, step = trainer.lr_scheduler, trainer.lr_scheduler.step_update

    def raised(update: int) -> float:
        rate = step(update)
        if update >= FROM:
            rate *= factor if at_once else factor ** (update - FROM + 1)
            trainer.optimizer.set_lr(rate)
        return rate

    schedule.step_update = raised


def poison(trainer, factor: float) -> None:
    """The loss of the batch of update FROM is `factor` times what it was."""
    backward = trainer.optimizer.backward

    def poisoned(loss) -> None:
        backward(loss * factor if trainer.get_num_updates() == FROM - 1 else loss)

    trainer.optimizer.backward = poisoned


FAULTS = {  # name: flags, what is done to a trainer
    "rate times 30": (FREE, lambda trainer: raise_rate(trainer, 30, at_once=True)),
    "rate times 1.05 an update": (FREE, lambda trainer: raise_rate(trainer, 1.05, at_once=False)),
    "rate times 1.05 an update, fp16": (HALF, lambda trainer: raise_rate(trainer, 1.05, at_once=False)),
    "a batch 100 times as heavy": ((*FREE, *MOMENTUM), lambda trainer: poison(trainer, 100)),
    "a batch 1,000 times as heavy": ((*FREE, *MOMENTUM), lambda trainer: poison(trainer, 1000)),
    "rate times 1.05 an update, deepnorm": ((), lambda trainer: raise_rate(trainer, 1.05, at_once=False)),
    "none, deepnorm": ((), lambda trainer: None),
    "none": (FREE, lambda trainer: None),
}


def train(data: Path, fault: str, seed: int = 1, updates: int = UPDATES) -> dict:
    """The training's alarms (updates), the update at which its numbers ended, if they did, its losses and norms.

    milliseconds: of processor, the median of its updates and of those that were looked at.
    """
    flags, put_in = FAULTS[fault]
    trainer = build_trainer(parse([str(data), *FLAGS, *flags, "--seed", str(seed)]))
    put_in(trainer)
    rows, ended, spent = {}, None, {True: [], False: []}
    try:
        for samples in batches(trainer):
            number, before = trainer.get_num_updates(), time.process_time()
            with metrics.aggregate("train_inner"):
                trainer.train_step(samples)
            looked = number > 0 and number % trainer.late.interval == 0
            spent[looked].append(1000 * (time.process_time() - before))
            rows |= {row["update"]: row for row in trainer.watch.rows()[-1:]}
            if trainer.get_num_updates() >= updates:
                break
    except Diverged as error:
        ended = error.stop.update
    kept = {key: [float(f"{row[key]:.4g}") for row in rows.values()] for key in ("loss", "gnorm")}
    cost = {"update": statistics.median(spent[False]), "looked_at": statistics.median(spent[True] or [math.nan])}
    return {"fault": fault, "seed": seed, "alarms": trainer.late.alarms, "ended": ended, "milliseconds": cost} | kept


def replay(record: dict) -> list[tuple[int, str]] | None:
    """Alarms of a recorded run, each with what had grown; None if it has too few rows for one."""
    rows = record.get("log", {}).get("train_inner", [])  # not all are trainings
    histories = {name: of_blocks(name) for name in GROWTH}
    first = histories["loss"]
    if len(rows) < first.enough + first.last:
        return None
    found = []
    for row in rows:
        for name, key in (("gradient norm", "gnorm"), ("loss", "loss")):
            if histories[name].told(float(row.get(key, 0.0))):
                found.append((int(row["num_updates"]), name))
    return found


def table(runs: list[dict]) -> list[str]:
    """Rows of Markdown: after which update an alarm came, when the numbers ended, between them; the watch's cost."""
    rows = ["| training | seed | first alarm | numbers end | updates gained | a look every 100 updates costs |"]
    rows.append("|---|---|---|---|---|---|")
    for run in runs:
        first, ended = next(iter(run["alarms"]), None), run["ended"]
        gained = ended - first if first and ended else "-"
        cost = (run["milliseconds"]["looked_at"] / run["milliseconds"]["update"] - 1) / 100
        rows.append(f"| {run['fault']} | {run['seed']} | {first or 'none'} | {ended or 'no'} | {gained} | {cost:.2%} |")
    return rows


def main() -> None:
    """The command."""
    what, place = sys.argv[1], Path(sys.argv[2])
    if what == "table":
        print(*table(json.loads(place.read_text(encoding="utf-8"))["runs"]), sep="\n")
        return
    if what == "replay":
        lines = [(file, line) for file in sorted(place.rglob("*.jsonl")) for line in file.read_bytes().splitlines()]
        records = [(file, json.loads(line)) for file, line in lines]
        found = {f"{file}: {record['name']}": replay(record) for file, record in records}
        judged = {record: alarms for record, alarms in found.items() if alarms is not None}
        print(f"{len(found)} records, {len(judged)} with rows enough, {sum(map(bool, judged.values()))} with an alarm")
        for record, alarms in judged.items():
            if alarms:
                print(f"{record}: {alarms}")
        return
    register()
    kept = {"environment": environment(0), "runs": []}
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(make_corpus({"train": 400, "valid": 20, "test": 20}, nouns=20, verbs=10), Path(folder, "text"))
        texts = {split: f"{folder}/text/{split}" for split in ("train", "valid", "test")}
        prepare_text(("qaa", "qab"), texts, Path(folder, "bin"), vocab=150)
        for fault, seed in itertools.product(FAULTS, range(1, 1 + int(sys.argv[3]))):
            kept["runs"].append(train(Path(folder, "bin"), fault, seed))
            place.write_text(json.dumps(kept) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
