"""`deepnet compare`: train a grid of methods, depths, learning rates and seeds; give its table and its picture.

Each cell of the grid is one fairseq-train, in a folder of its own, with the same data and flags. One that is over is a
line of OUT/records.jsonl and is never trained again; one that was begun goes on from its last checkpoint. A training
that is stuck or diverges is a result.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import inspect
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import ClassVar, NamedTuple

import torch
from filelock import FileLock, Timeout

from ..core.methods import METHODS, get_method
from ..errors import UserError
from ..files import check_file, read_object, whole
from ..study.plots import LABELS, METADATA, Panel, Picture, Series, draw, style_of_setting
from ..study.runs import FILES, RecordedRun, read_records
from ..study.scoring.generated import Output, align_with_references, read_corpus
from ..study.scoring.scores import metric_of
from ..text_table import render
from .environment import environment

PACKAGE = Path(__file__).resolve().parents[1]
TRAINING = shlex.split("""
    --arch deepnet_transformer_tiny --dropout 0.0 --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr-scheduler inverse_sqrt --max-tokens 1000 --max-tokens-valid 4000
    --no-epoch-checkpoints --keep-interval-updates 1 --validate-interval 999 --num-workers 0 --log-format json""")
GENERATION = shlex.split("--beam 4 --lenpen 0.6 --max-len-a 1.5 --max-len-b 10 --max-tokens 6000")
GIVEN = {  # flags of fairseq-train that a cell decides -> the flag to give instead
    "--method": "--methods", "--encoder-layers": "--depths", "--decoder-layers": "--depths", "--lr": "--lrs",
    "--seed": "--seeds", "--max-update": "--updates", "--warmup-updates": "--warmup", "--save-dir": "--out",
}  # fmt: skip
# fairseq's program with methods of one's own: it takes one --user-dir, which is this package
WITH_METHODS = "import runpy, sys; from deepnet_fairseq.user_dir import import_user_dir as i; i(sys.argv.pop(1)); "
ENDED = re.compile(r"error: ((diverged|stuck) at update \d+)")
GUESSING = re.compile(r"guessing by the frequencies of words, [\d.]+ of ([\d.]+) bits")
LATEST = re.compile(rb'train_inner \| .*?"loss": "([\d.]+)".*?"num_updates": "(\d+)"')
SHORT = 2.0  # BLEU; below it a model has not learnt to translate yet, only to write the target language
FAILURES = 3  # programs that may fail before this one gives up
SECONDS = 5.0  # between two lines of progress
LINES = 8  # of a panel at most


class Cell(NamedTuple):
    """One training: N-N layers, `depth` N."""

    method: str
    depth: int
    lr: float
    seed: int

    def __str__(self) -> str:
        return f"{self.method} {self.depth}L-{self.depth}L lr {rate(self.lr)} seed {self.seed}"


@dataclass(frozen=True)
class Grid:
    """All cells, and what they share.

    data: binarised, of one language pair; updates: of each cell; jobs: cells trained at a time; flags: fairseq-train's
    own, the last word on what is not in GIVEN; warmup: share of the updates; user_dir: folder of methods of one's own.
    """

    data: Path
    methods: Sequence[str]
    depths: Sequence[int]
    lrs: Sequence[float]
    seeds: Sequence[int]
    updates: int
    out: Path
    jobs: int = 1
    flags: Sequence[str] = ()
    warmup: float = 1 / 6
    user_dir: str | None = None
    experiment: ClassVar[str] = "compare"

    def check_settings(self) -> None:
        """UserError for a grid that cannot be trained on any data."""
        for method in self.methods:
            get_method(method)
        for flag, values in {"--depths": self.depths, "--updates": [self.updates], "--jobs": [self.jobs]}.items():
            if min(values) < 1:
                raise UserError(f"{flag} {min(values)}: must be at least 1")
        if not all(math.isfinite(lr) and lr > 0 for lr in self.lrs):
            raise UserError(f"--lrs {','.join(map(str, self.lrs))}: must be above 0")
        if not 0 < self.warmup < 1:
            raise UserError(f"--warmup {self.warmup:g}: must be a share of the updates, between 0 and 1")
        for word in self.flags:
            if instead := GIVEN.get(word.split("=")[0]):
                raise UserError(f"{word}: each cell has its own; give {instead}")

    def check_data(self) -> None:
        """UserError for data that no cell can be trained on."""
        if len(list(self.data.glob("dict.*.txt"))) != 2 or not self.direction:
            raise UserError(f"{self.data}: no binarised data of one language pair; make it with `deepnet prepare-text`")

    @property
    def cells(self) -> list[Cell]:
        """Small models first, for their results come soon."""
        every = product(self.depths, self.methods, self.lrs, self.seeds)
        return [Cell(method, depth, lr, seed) for depth, method, lr, seed in every]

    @cached_property
    def direction(self) -> str:
        """As "de-en"; empty where the data does not say."""
        return next((path.name.split(".")[1] for path in sorted(self.data.glob("train.*-*.*.idx"))), "")

    @cached_property
    def text(self) -> int:
        """A number that other data does not have."""
        sizes = [path.stat().st_size for path in sorted(self.data.glob("train.*.bin"))]
        return zlib.crc32(
            b"".join(path.read_bytes() for path in sorted(self.data.glob("dict.*.txt"))) + str(sizes).encode()
        )

    def name(self, cell: Cell) -> str:
        """Of a cell's folder in `out`, and of its record."""
        return f"{cell.depth}L-{cell.depth}L-{self.updates}-updates-seed{cell.seed}/{cell.method}-lr{rate(cell.lr)}"

    def warmup_updates(self) -> tuple[int, str]:
        """The updates of warm-up, and what is to be said of them: Adam's beta2 sets a minimum, 2 / (1 - beta2).

        At the peak of the rate Adam's second moments must have formed: in shorter warm-ups the order of methods was
        that of their warm-up. No more than half of the updates are taken for it.
        """
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--adam-betas")
        beta2 = ast.literal_eval(parser.parse_known_args([*TRAINING, *self.flags])[0].adam_betas)[1]
        asked, least = round(self.warmup * self.updates), round(2 / (1 - beta2))
        found = max(asked, min(least, self.updates // 2))
        said = f"warm-up: {found} of {self.updates} updates, not {asked}, for Adam's second moments need {least}"
        if found < least:
            said += "; methods may differ by that alone: give more --updates"
        return found, said if asked < least else ""

    def training(self, cell: Cell) -> list[str]:
        """The flags of a cell's fairseq-train, but for its folder."""
        layers, every, warmup = str(cell.depth), str(max(1, self.updates // 12)), self.warmup_updates()[0]
        one = len({path.read_bytes() for path in self.data.glob("dict.*.txt")}) == 1
        stuck = max(300, self.updates // 4, warmup * 3 // 2)  # no healthy training is at guessing for so long
        return [
            *TRAINING, *["--share-all-embeddings"] * one, *["--cpu"] * (not torch.cuda.is_available()),
            "--encoder-layers", layers, "--decoder-layers", layers, "--method", cell.method,
            *" ".join(get_method(cell.method).train_flags).split(), "--lr", rate(cell.lr),
            "--warmup-updates", str(warmup), "--max-update", str(self.updates), "--seed", str(cell.seed),
            "--save-interval-updates", every, "--validate-interval-updates", every, "--stop-stuck", str(stuck),
            "--log-interval", str(min(25, max(1, self.updates // 10))), "--distributed-world-size", "1", *self.flags,
        ]  # fmt: skip

    def facts(self, cell: Cell) -> dict:
        """What run.json holds of a cell: two with the same facts are the same training."""
        layers = {"encoder_layers": cell.depth, "decoder_layers": cell.depth}
        facts = {"method": cell.method, **layers, "seed": cell.seed, "experiment": self.experiment, "lr": cell.lr}
        facts |= {"updates": self.updates, "flags": shlex.join(self.training(cell)), "text": self.text}
        source = Path(inspect.getfile(METHODS[cell.method]))
        return facts if PACKAGE in source.parents else facts | {"source": zlib.crc32(source.read_bytes())}

    def command(self, cell: Cell) -> str:
        """The command that trains this cell alone."""
        words = ["deepnet", "compare", str(self.data), "--methods", cell.method, "--depths", str(cell.depth), "--lrs",
                 rate(cell.lr), "--seeds", str(cell.seed), "--updates", str(self.updates)]  # fmt: skip
        own = ["--user-dir", self.user_dir] if self.user_dir else []
        return shlex.join([*words, "--warmup", f"{self.warmup:.4g}", *own, *self.flags])


def rate(lr: float) -> str:
    """A learning rate as "5e-4"."""
    return re.sub(r"\.?0*e([+-]?)0*", r"e\1", f"{lr:e}").replace("e+", "e")


def program(grid: Grid, name: str, words: list[str]) -> list[str]:
    """One of fairseq's, of this interpreter, whatever is on the PATH."""
    own = ["-c", f"{WITH_METHODS}runpy.run_module('fairseq_cli.{name}', run_name='__main__', alter_sys=True)"]
    start = [*own, grid.user_dir] if grid.user_dir else ["-m", f"fairseq_cli.{name}"]
    return [sys.executable, *start, str(grid.data), "--user-dir", str(PACKAGE), *words]


Steps = Generator[tuple[list[str], Path, Path | None], int, RecordedRun]


def steps(grid: Grid, cell: Cell) -> Steps:
    """Yield the commands of a cell, each with its log and, if it has one, the file of its output; return the record.

    Sent is a command's status. UserError, naming the log, for a program that failed.
    """
    run = grid.out / grid.name(cell)
    log, checkpoint = run / FILES["log"], run / "checkpoint_last.pt"
    if not (run / "trained").exists():
        describe(grid, cell, run)
        if not checkpoint.exists():
            log.unlink(missing_ok=True)
        if (yield program(grid, "train", [*grid.training(cell), "--save-dir", str(run)]), log, None):
            ended = ENDED.findall(log.read_text(encoding="utf-8", errors="replace"))
            if not ended:
                raise failed(f"training {cell}", log)
            (run / ended[-1][1]).write_text(f"{ended[-1][0]}\n")
        (run / "trained").touch()
    over = (run / "stuck").exists() or (run / "diverged").exists()
    reference = read_corpus(grid.data).reference("test", grid.direction)
    if reference and not over:
        generated, log = run / "generated.txt", run / "generate.log"
        pieces = "sentencepiece" if (grid.data / "spm.model").exists() else "subword_nmt"
        cpu = [] if torch.cuda.is_available() else ["--cpu"]
        words = ["--path", str(checkpoint), *GENERATION, "--remove-bpe", pieces, *cpu]
        if (yield program(grid, "generate", words), log, generated):
            raise failed(f"translating with {cell}", log)
        text = align_with_references(Output(generated), read_corpus(grid.data))
        metric = metric_of(text)
        bleu = metric.corpus_score(text.hypotheses, [text.references]).score
        score = {"bleu": round(bleu, 2), "kind": "sacrebleu", "signature": str(metric.get_signature())}
        (run / FILES["score"]).write_text(json.dumps(score) + "\n")
    for file in run.glob("checkpoint*.pt"):
        if file != checkpoint:
            file.unlink()
    return RecordedRun(run)


def describe(grid: Grid, cell: Cell, run: Path) -> None:
    """Write what a recorded run has beside its log."""
    run.mkdir(parents=True, exist_ok=True)
    (run / FILES["run"]).write_text(json.dumps(grid.facts(cell)) + "\n")
    (run / FILES["command"]).write_text(grid.command(cell) + "\n")
    if not (run / FILES["environment"]).exists():
        facts = environment(int(torch.cuda.is_available()))
        (run / FILES["environment"]).write_text(json.dumps(facts, indent=1) + "\n")


def failed(what: str, log: Path) -> UserError:
    """The error of a program that failed."""
    last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    return UserError(f"{what} failed: {last[:300]}; whole log: {log}")


class Job:
    """A cell on its way: its command that runs, and the record once there is none left."""

    def __init__(self, grid: Grid, cell: Cell):
        self.grid, self.cell, self.steps = grid, cell, steps(grid, cell)
        self.log = grid.out / grid.name(cell) / FILES["log"]
        self.process: subprocess.Popen | None = None
        self.record: RecordedRun | None = None
        self._go_on(None)

    def over(self) -> bool:
        """Start the next command where one has ended; true when the cell is over. UserError as steps()."""
        if self.process and (status := self.process.poll()) is not None:
            self._close()
            self._go_on(status)
        return self.record is not None

    def _go_on(self, status: int | None) -> None:
        try:
            command, log, output = self.steps.send(status)  # type: ignore[arg-type]
        except StopIteration as ended:
            self.process, self.record = None, ended.value
            return
        self.output = output and output.with_suffix(".part")
        threads = max(1, len(os.sched_getaffinity(0)) // self.grid.jobs)
        with open(log, "ab") as errors, open(self.output or log, "wb" if output else "ab") as out:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True,
                env={"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"} | os.environ, preexec_fn=die_with_parent,
            )  # fmt: skip

    def _close(self) -> None:
        """Give the output of a command that went well its name."""
        if self.output and self.process and self.process.returncode == 0:
            self.output.rename(self.output.with_suffix(".txt"))

    def stop(self) -> None:
        """End the command as SIGTERM does: fairseq-train saves what it has."""
        if self.process:
            self.process.terminate()
            self.process.wait()

    def latest(self) -> tuple[int, str]:
        """The last update that the log names, and its loss."""
        return latest(self.log)


def latest(log: Path) -> tuple[int, str]:
    """The last update that a log names, and its loss; 0 where there is none."""
    if not log.exists():
        return 0, "-"
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 20_000))
        found = LATEST.findall(file.read())
    return (int(found[-1][1]), found[-1][0].decode()) if found else (0, "-")


def die_with_parent() -> None:
    """Ask Linux to kill this process with the one that started it; runs in the child, before its program."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG of <linux/prctl.h>


@contextmanager
def signals() -> Iterator[list[int]]:
    """Note SIGINT and SIGTERM in place of dying of them; afterwards, die of the first."""
    caught: list[int] = []
    both = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, frame: caught.append(number)) for number in both}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if caught:
        sys.exit(128 + caught[0])


class Progress:
    """Lines on stderr, every few seconds: what runs, what is over, how much time is left."""

    def __init__(self, grid: Grid, over: set[str]):
        self.grid, self.begun, self.shown = grid, time.monotonic(), 0.0
        self.start = self.done(over)

    def done(self, over: set[str]) -> float:
        """Updates made, each weighed by the layers of its model; `over`: names of cells that have ended."""
        total = 0.0
        for cell in self.grid.cells:
            name = self.grid.name(cell)
            made = self.grid.updates if name in over else latest(self.grid.out / name / FILES["log"])[0]
            total += made * weight(cell)
        return total

    def show(self, jobs: list[Job], over: set[str]) -> None:
        """Print a line, unless there was one just now."""
        now = time.monotonic()
        if now < self.shown + SECONDS:
            return
        self.shown = now
        done, cells = self.done(over), self.grid.cells
        left = sum(map(weight, cells)) * self.grid.updates - done
        speed = (done - self.start) / (now - self.begun)
        estimate = f"about {duration(left / speed)} left" if speed > 0 else "time left: not known yet"
        running = [f"{job.cell}: update {job.latest()[0]}, loss {job.latest()[1]}" for job in jobs]
        finished = sum(self.grid.name(cell) in over for cell in cells)
        print("; ".join([f"{finished} of {len(cells)} over", *running, estimate]), file=sys.stderr, flush=True)


def weight(cell: Cell) -> float:
    """Of an update, beside those of other depths: two layers' worth is spent on words."""
    return cell.depth + 2


def duration(seconds: float) -> str:
    """As "40 s", "12 min" or "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def train(grid: Grid) -> dict[str, RecordedRun]:
    """Train what is left of the grid; return the records of its cells by their names.

    UserError where a cell was trained with other settings, where another process works in the folder, and, once the
    others are over, for programs that failed.
    """
    grid.out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(grid.out / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UserError(
            f"--out {grid.out}: another process trains there; wait for it, or name another folder"
        ) from None
    with lock, signals() as caught:
        return _train(grid, caught)


def _train(grid: Grid, caught: list[int]) -> dict[str, RecordedRun]:
    file = grid.out / "records.jsonl"
    records = {run.parts["name"]: run for run in (read_records(file) if file.exists() else ())}
    for cell in grid.cells:
        check_same(grid, cell, records)
    waiting = [cell for cell in grid.cells if grid.name(cell) not in records]
    progress, jobs, errors = Progress(grid, set(records)), [], []  # type: ignore[var-annotated]
    try:
        while (waiting or jobs) and not caught:
            while waiting and len(jobs) < grid.jobs and len(errors) < FAILURES:
                jobs.append(Job(grid, waiting.pop(0)))
            for job in list(jobs):
                try:
                    if not job.over():
                        continue
                    name = grid.name(job.cell)
                    run = RecordedRun(file, {"name": name, **job.record.parts})
                    records[name] = run
                    keep(records, file)
                    print(f"{job.cell}: {outcome(run)}", file=sys.stderr, flush=True)
                except UserError as error:
                    errors.append(error)
                    print(f"error: {error}", file=sys.stderr, flush=True)
                jobs.remove(job)
            if len(errors) >= FAILURES:
                waiting = []
            if jobs:
                progress.show(jobs, set(records))
                time.sleep(0.2)
    finally:
        for job in jobs:
            job.stop()
    if errors:
        raise errors[0]
    return {grid.name(cell): records[grid.name(cell)] for cell in grid.cells if grid.name(cell) in records}


def check_same(grid: Grid, cell: Cell, records: dict[str, RecordedRun]) -> None:
    """UserError if the cell was trained, or begun, with other settings."""
    name = grid.name(cell)
    place = grid.out / name / FILES["run"]
    facts = (
        records[name].facts if name in records else read_object(place, "remove its folder") if place.exists() else {}
    )
    if facts and (differ := [key for key, value in grid.facts(cell).items() if facts.get(key) != value]):
        raise UserError(
            f"--out {grid.out}: {name} was trained with another {differ[0]}; remove it from records.jsonl and its "
            "folder, or name another --out"
        )


def keep(records: dict[str, RecordedRun], file: Path) -> None:
    """Write all records, a line each."""
    with whole(file) as part:
        lines = [json.dumps(records[name].parts, ensure_ascii=False) + "\n" for name in sorted(records)]
        part.write_text("".join(lines), encoding="utf-8")


def held_out(run: RecordedRun) -> float:
    """The last validation loss, bits per token; infinite for a run that diverged or was stuck."""
    return math.inf if run.ended_in_nan or run.stuck else run.validation.losses[-1]


def outcome(run: RecordedRun) -> str:
    """How a training ended, in a few words."""
    if run.ended_in_nan or run.stuck:
        return run.parts["diverged" if run.ended_in_nan else "stuck"]
    return f"held-out loss {held_out(run):.2f}" + (f", BLEU {run.bleu:.1f}" if run.score else "")


@dataclass(frozen=True)
class Best:
    """A method at a depth: its runs at the best of its rates, by seed, and the ends of those that failed.

    rate: None where at each rate a seed failed. edge: "≤ " or "≥ " where it is the lowest or highest of several.
    """

    method: str
    depth: int
    rate: float | None
    edge: str
    runs: list[RecordedRun]
    failed: dict[str, str]

    @property
    def losses(self) -> list[float]:
        """Held-out, by seed."""
        return [held_out(run) for run in self.runs]

    @property
    def bleus(self) -> list[float]:
        """By seed; none where there are no references."""
        return [float(run.score["bleu"]) for run in self.runs if run.score]

    def facts(self) -> dict:
        """For JSON."""
        edge = bool(self.edge)
        return {"method": self.method, "layers": self.depth, "best_rate": self.rate, "at_edge": edge,
                "held_out": self.losses, "bleu": self.bleus, "failed": self.failed}  # fmt: skip

    def row(self) -> list[str]:
        """Of the table."""
        lr = "-" if self.rate is None else self.edge + rate(self.rate)
        bleu = spread(self.bleus, 1) + (" (too short)" if self.bleus and fmean(self.bleus) < SHORT else "")
        hours = [run.hours for run in self.runs if run.hours is not None]
        seconds = duration(3600 * fmean(hours)) if hours else "-"
        ends = "; ".join(f"{lr}: {end}" for lr, end in self.failed.items()) or "-"
        return [self.method, f"{self.depth}L-{self.depth}L", lr, spread(self.losses, 2), bleu, seconds, ends]


def spread(values: list[float], digits: int) -> str:
    """The mean, and the range where there are several."""
    if not values:
        return "-"
    mean = f"{fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def best(grid: Grid, records: dict[str, RecordedRun]) -> list[Best]:
    """Of each method and depth, by the mean held-out loss of the seeds; a rate at which one failed is never the best."""
    found = []
    for depth, method in product(grid.depths, grid.methods):
        rates = {
            lr: [records[grid.name(Cell(method, depth, lr, seed))] for seed in grid.seeds] for lr in sorted(grid.lrs)
        }
        means = {lr: fmean(map(held_out, runs)) for lr, runs in rates.items()}
        lr = min(means, key=lambda one: means[one])
        edge = {min(rates): "≤ ", max(rates): "≥ "}.get(lr, "") if len(rates) > 1 else ""
        ends = {rate(lr): outcome(run) for lr, runs in rates.items() for run in runs if math.isinf(held_out(run))}
        trained = math.isfinite(means[lr])
        found.append(Best(method, depth, lr if trained else None, edge * trained, rates[lr] if trained else [], ends))
    return found


def table(grid: Grid, rows: list[Best], records: dict[str, RecordedRun]) -> str:
    """The rows, and what is to be known of them."""
    header = ["method", "layers", "best rate", "held-out loss", "BLEU", "training", "failed"]
    notes = [f"held-out loss: label-smoothed, bits per token{guessing(records)}"]
    if len(grid.seeds) > 1:
        notes[0] += f"; mean [least, largest] of {len(grid.seeds)} seeds"
    if any(row.edge for row in rows):
        notes.append("≤, ≥: the lowest or highest rate tried; a better one may lie beyond")
    if any("short" in row.row()[4] for row in rows):
        notes.append(f"too short: BLEU below {SHORT:g}, the run has not learnt to translate yet; give more --updates")
    if any("stuck" in end for row in rows for end in row.failed.values()):
        notes.append("stuck: stopped, for it was hardly better than guessing by how often each word occurs")
    signatures = {run.score["signature"] for run in records.values() if run.score}
    said = grid.warmup_updates()[1]
    return "\n".join(
        [render([header, *(row.row() for row in rows)]), "", *notes, *signatures, *([said] if said else [])]
    )


def guessing(records: dict[str, RecordedRun]) -> str:
    """The loss of guessing by the words' frequencies, where a training has said it."""
    found = [run.facts["guessing"] for run in records.values() if "guessing" in run.facts]
    return f" ({found[0]:.2f} by guessing words by their frequency)" if found else ""


def picture(grid: Grid, rows: list[Best]) -> Picture:
    """Loss and BLEU by depth at the best rates, with the seeds' range; of one depth, the loss by update."""
    panels = []
    groups = [grid.methods[start : start + LINES] for start in range(0, len(grid.methods), LINES)]
    for number, methods in enumerate(groups, 1):
        part = f" ({number} of {len(groups)})" if len(groups) > 1 else ""
        styles = {m: style_of_setting(k, LABELS.get(m, m)) for k, m in enumerate(methods)}
        if len(grid.depths) == 1:
            panels.append(curves(styles, rows, f"{grid.depths[0]}L-{grid.depths[0]}L{part}"))
            continue
        for title, values in (("held-out loss (bits per token)", "losses"), ("BLEU", "bleus")):
            series = []
            for method, style in styles.items():
                own = {row.depth: getattr(row, values) for row in rows if row.method == method}
                points = {depth: fmean(found) for depth, found in own.items() if found}
                band = {d: (min(found), max(found)) for d, found in own.items() if len(found) > 1}
                gone = [row.depth for row in rows if row.method == method and row.rate is None]
                series.append(Series(style, points, failed=gone, band=band))
            if any(one.points for one in series):
                panels.append(Panel(part.strip(), "layers of encoder and of decoder", title, series, "x", grid.depths))
    return Picture("Methods by depth at their best rates", panels, columns=2)


def curves(styles: dict, rows: list[Best], title: str) -> Panel:
    """Training loss by update at the best rate, of the first seed."""
    series = []
    for row in rows:
        if row.method in styles and row.runs:
            log = row.runs[0].log
            series.append(Series(styles[row.method], dict(zip(log.updates, log.losses, strict=True))))
    return Panel(title, "updates", "training loss (bits per token)", series)


def compare(grid: Grid, plot: Path | None = None, as_json: bool = False) -> str:
    """Train what is left, draw `plot`; return the table, or JSON. UserError, before anything is trained, as check()."""
    if plot:
        check_file("--plot", plot)
        if plot.suffix.lower() not in METADATA:
            raise UserError(f"--plot {plot}: name a file that ends in one of {', '.join(METADATA)}")
    grid.check_settings()
    grid.check_data()
    if said := grid.warmup_updates()[1]:
        print(said, file=sys.stderr)
    records = train(grid)
    rows = best(grid, records)
    text = table(grid, rows, records)
    with whole(grid.out / "result.txt") as part:
        part.write_text(text + "\n", encoding="utf-8")
    if plot:
        draw(picture(grid, rows), plot)
    return json.dumps([row.facts() for row in rows]) if as_json else text
