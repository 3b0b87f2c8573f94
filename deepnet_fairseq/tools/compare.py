"""`deepnet compare`: train a grid of methods, depths, learning rates and seeds; make its table and its picture.

Each cell of the grid is one fairseq-train, in a folder of its own, with the same data and flags. A finished cell is a
line of OUT/records.jsonl and is never trained again; one that was begun resumes from its last checkpoint. A training
that is stuck or diverges is a result too.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import math
import re
import shlex
import sys
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, NoReturn

import torch

from ..core import archs
from ..core.methods import METHODS, get_method
from ..errors import UserError
from ..files import check_file, whole
from ..study.figures import training_losses
from ..study.plots import METADATA, Panel, Picture, Series, draw, style_of_setting
from ..study.run_folder import FILES, RunFolder, last_line
from ..study.runner import Runner
from ..study.runs import RecordedRun, read_records
from ..study.scoring.generated import read_corpus
from ..study.scoring.scores import score
from ..text_table import render
from ..threads import Share, available_cores, counted, from_environment, processes_and_threads, width_of
from .environment import environment
from .plan.fit import USABLE
from .plan.needs import memory
from .plan.setting import GIB, parse
from .progress import Progress, Training, duration

PACKAGE = Path(__file__).resolve().parents[1]
TRAINING = shlex.split("""
    --arch deepnet_transformer_tiny --dropout 0.0 --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr-scheduler inverse_sqrt --max-tokens 1000 --max-tokens-valid 4000
    --no-epoch-checkpoints --keep-interval-updates 1 --validate-interval 999 --num-workers 0 --log-format json
    --distributed-world-size 1""")
GENERATION = shlex.split("--beam 4 --lenpen 0.6 --max-len-a 1.5 --max-len-b 10 --max-tokens 6000")
ON_CPU = ["--cpu"] * (not torch.cuda.is_available())
# flags of fairseq-train that a cell decides -> flag to give instead; the command has others as its own
REFUSED = {"--encoder-layers": "--depths", "--decoder-layers": "--depths", "--warmup-updates": "--warmup"}
# fairseq's programs take one --user-dir, which is this package: the user's methods are imported before
OWN_METHODS = """import runpy, sys
from deepnet_fairseq import register, user_dir
register()
user_dir.import_user_dir(sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)"""
BETA2 = re.compile(r"--adam-betas[ =]\(?[\d.]+, ?([\d.]+)")
SHORT = 2.0  # BLEU below which a model writes the target language, but does not translate yet
PROGRAM = 0.7 * GIB  # bytes of fairseq-train beside what the plan has: measured 0.42 at 2L-2L, 0.63 at 100L-100L
SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")  # that fairseq's dictionaries have before those in the file
LINES = 8  # most lines of a panel


def free_memory() -> float:
    """Return the bytes of this machine's memory that programs may take, without its last tenth; infinity if unknown."""
    try:
        found = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return math.inf
    return USABLE * 1024 * int(found[1]) if found else math.inf


class Cell(NamedTuple):
    """Cell of the grid: one training, of a model with `depth` encoder and `depth` decoder layers."""

    depth: int
    method: str
    lr: float
    seed: int

    def __str__(self) -> str:
        return f"{self.method} {self.depth}L-{self.depth}L lr {rate(self.lr)} seed {self.seed}"


@dataclass(frozen=True)
class Grid:
    """Grid of cells with their common settings.

    data: binarised, of one language pair; updates: of each cell; jobs: cells trained at a time, None to let the
    machine decide; flags: of fairseq-train, which override others; warmup: share of the updates; user_dir: folder of
    the user's methods.
    """

    data: Path
    methods: Sequence[str]
    depths: Sequence[int]
    lrs: Sequence[float]
    seeds: Sequence[int]
    updates: int
    out: Path
    jobs: int | None = None
    flags: Sequence[str] = ()
    warmup: float = 1 / 6
    user_dir: str | None = None

    def check(self) -> None:
        """Raise a UserError for a grid that cannot be trained on any data."""
        for method in self.methods:
            get_method(method)
        at_a_time = [] if self.jobs is None else [self.jobs]
        for flag, numbers in {"--depths": self.depths, "--updates": [self.updates], "--jobs": at_a_time}.items():
            if min(numbers, default=1) < 1:
                raise UserError(f"{flag} {min(numbers)}: must be at least 1")
        if not min(self.lrs) > 0:
            raise UserError(f"--lrs {min(self.lrs)}: must be above 0")
        if not 0 < self.warmup < 1:
            raise UserError(f"--warmup {self.warmup:g}: must be a share of the updates, between 0 and 1")
        for word in self.flags:
            if instead := REFUSED.get(word.split("=")[0]):
                raise UserError(f"{word}: each cell has its own; give {instead}")
        self.width()

    @property
    def cells(self) -> list[Cell]:
        """List the cells, ordered by depth as given: small models first give results soon."""
        return [Cell(*one) for one in product(self.depths, self.methods, self.lrs, self.seeds)]

    @property
    def dictionaries(self) -> list[bytes]:
        """Return the contents of both dictionaries; they hold each word's count, so that other text has others."""
        return [path.read_bytes() for path in sorted(self.data.glob("dict.*.txt"))]

    def direction(self) -> str:
        """Return the direction as "de-en"; raise a UserError unless the data is of one language pair."""
        files = sorted(self.data.glob("train.*-*.*.idx"))
        if len(self.dictionaries) != 2 or len(files) != 2:
            raise UserError(f"{self.data}: no binarised data of one language pair; `deepnet prepare text` makes such")
        return files[0].name.split(".")[1]

    def width(self) -> int:
        """Return the width of the models; raise a UserError for one that is no number."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--arch", "-a")
        for stack in archs.STACKS[archs.MODEL_NAME]:
            parser.add_argument(f"--{stack}-embed-dim", type=int)
        parser.error = _refuse_flag  # type: ignore[method-assign]  # argparse prints a page and exits
        cfg, _ = parser.parse_known_args([*TRAINING, *self.flags])
        archs.fill(cfg)
        width = width_of(cfg)
        assert width is not None  # fill() has set it
        return width

    def share(self) -> Share:
        """Decide how many cells are trained at a time, and with how many threads each."""
        if "--cpu" in [*ON_CPU, *self.flags]:
            return processes_and_threads(self.width(), tasks=len(self.cells), processes=self.jobs)
        jobs = self.jobs or 1
        return Share(jobs, max(1, available_cores() // jobs))

    def fitting(self, processes: int) -> int:
        """Return how many of so many trainings fit into this machine's memory at a time, at least one.

        As the plan has it for the deepest model, whose trainings are the largest; on a GPU as many as were asked for.
        """
        if self.jobs is not None or processes == 1 or "--cpu" not in [*ON_CPU, *self.flags]:
            return processes
        deepest = max(self.cells, key=lambda cell: cell.depth)
        sizes = [len(dictionary.splitlines()) + len(SYMBOLS) for dictionary in self.dictionaries]
        setting = parse([*self.training(deepest), "--vocab", ",".join(map(str, sizes))], strict=False)
        needed = memory(setting).peak + PROGRAM
        return max(1, min(processes, int(free_memory() // needed)))

    def name(self, cell: Cell) -> str:
        """Return the name of a cell's folder in `out`, and of its record."""
        return f"{cell.depth}L-{cell.depth}L-{self.updates}-updates-seed{cell.seed}/{cell.method}-lr{rate(cell.lr)}"

    def warmup_updates(self) -> tuple[int, str]:
        """Return the updates of warm-up, and a note on them: Adam's beta2 sets a minimum, 2 / (1 - beta2).

        Adam's second moments must have formed before the rate reaches its peak, or methods differ by that alone. The
        minimum takes at most half of the updates.
        """
        beta2 = float(BETA2.findall(" ".join([*TRAINING, *self.flags]))[-1])
        wanted, least = round(self.warmup * self.updates), round(2 / (1 - beta2))
        chosen = max(wanted, min(least, self.updates // 2))
        note = f"warm-up: {chosen} of {self.updates} updates, not {wanted}: Adam's second moments want {least}"
        if chosen < least:
            note += "; methods may differ by that alone, so give more --updates"
        return chosen, note if wanted < least else ""

    def training(self, cell: Cell) -> list[str]:
        """Return the flags of a cell's fairseq-train, without its folder."""
        layers, every, warmup = str(cell.depth), str(max(1, self.updates // 12)), self.warmup_updates()[0]
        stuck = max(300, self.updates // 4, warmup * 3 // 2)  # no healthy training is at unigram entropy for so long
        return [
            *TRAINING, *["--share-all-embeddings"] * (len(set(self.dictionaries)) == 1), *ON_CPU,
            "--encoder-layers", layers, "--decoder-layers", layers, "--method", cell.method,
            *" ".join(get_method(cell.method).train_flags).split(), "--lr", rate(cell.lr),
            "--warmup-updates", str(warmup), "--max-update", str(self.updates), "--seed", str(cell.seed),
            "--save-interval-updates", every, "--validate-interval-updates", every, "--stop-stuck", str(stuck),
            "--log-interval", str(min(25, max(1, self.updates // 10))), *self.flags,
        ]  # fmt: skip

    def facts(self, cell: Cell) -> dict:
        """Return a cell's content of run.json; trainings with equal facts are the same."""
        facts = {
            "method": cell.method, "encoder_layers": cell.depth, "decoder_layers": cell.depth, "seed": cell.seed,
            "experiment": "compare", "lr": cell.lr, "updates": self.updates,
            "flags": shlex.join(self.training(cell)), "text": zlib.crc32(b"".join(self.dictionaries)),
        }  # fmt: skip
        source = Path(inspect.getfile(METHODS[cell.method]))
        return facts if PACKAGE in source.parents else facts | {"source": zlib.crc32(source.read_bytes())}

    def command(self, cell: Cell) -> str:
        """Return the command that trains this cell alone."""
        grid = f"--methods {cell.method} --depths {cell.depth} --lrs {rate(cell.lr)} --seeds {cell.seed}"
        words = [*grid.split(), f"--updates={self.updates}", f"--warmup={self.warmup:.6g}", *self.flags]
        own = ["--user-dir", self.user_dir] if self.user_dir else []
        return f"deepnet compare {shlex.join([str(self.data), *words, *own])}"


def _refuse_flag(message: str) -> NoReturn:
    """Raise argparse's message as a UserError."""
    raise UserError(message.removeprefix("argument "))


def rate(lr: float) -> str:
    """Format a learning rate as "5e-4"."""
    return re.sub(r"\.?0*e([+-]?)0*", r"e\1", f"{lr:e}")


def command(grid: Grid, name: str, words: list[str]) -> list[str]:
    """Return the command of one of fairseq's programs, run by this interpreter and not by the PATH."""
    begin = ["-c", OWN_METHODS, grid.user_dir] if grid.user_dir else ["-m"]
    return [sys.executable, *begin, f"fairseq_cli.{name}", str(grid.data), "--user-dir", str(PACKAGE), *words]


def variables(grid: Grid) -> dict[str, str]:
    """Return the environment's variables that the grid's programs get: threads, unless the user has chosen them."""
    return {} if from_environment() else {"OMP_NUM_THREADS": str(grid.share().threads)}


async def train_and_score(grid: Grid, cell: Cell, runner: Runner) -> RecordedRun:
    """Train a cell, or go on with one that was begun; translate the test set, score it, return the record.

    Raises a UserError, naming the log, if a program failed, and if another process works on the cell.
    """
    run = RunFolder(grid.out / grid.name(cell))
    with run.held() as held:
        if not held:
            raise UserError(f"{run.path}: another process trains it; wait for its end, or name another --out")
        if not run.is_over:
            await train(grid, cell, run, runner)
        reference = read_corpus(grid.data).reference("test", grid.direction())
        if reference and run.failed is None:
            await translate(grid, cell, run, runner)
        for file in run.path.glob("checkpoint*.pt"):
            if file != run.last_checkpoint:
                file.unlink()
        return RecordedRun(run.path)


async def train(grid: Grid, cell: Cell, run: RunFolder, runner: Runner) -> None:
    """Train a cell to one of its ends."""
    run.begin(
        facts=grid.facts(cell),
        command=grid.command(cell),
        environment=environment(int(torch.cuda.is_available())),
    )
    words = [*grid.training(cell), "--save-dir", str(run.path)]
    begun_at = run.size_of_log()
    ended = await runner.program(command(grid, "train", words), log=run.log, variables=variables(grid))
    run.end(ended.status, f"training {cell}", begun_at)


async def translate(grid: Grid, cell: Cell, run: RunFolder, runner: Runner) -> None:
    """Translate the test set with a trained cell, and score the translations."""
    pieces = "sentencepiece" if (grid.data / "spm.model").exists() else "subword_nmt"
    words = ["--path", str(run.last_checkpoint), *GENERATION, "--remove-bpe", pieces, *ON_CPU]
    log = run / "generate.log"
    with whole(run / "generated.txt") as part:
        ended = await runner.program(command(grid, "generate", words), log=log, output=part, variables=variables(grid))
        if ended.status:
            said = last_line(log.read_text(encoding="utf-8", errors="replace"))
            raise UserError(f"translating with {cell} failed: {said}; whole log: {log}")
    run.write("score", json.dumps(score(run / "generated.txt", grid.data)))


class Work:
    """Remaining work of a grid: train it, record it, and report progress on stderr.

    jobs: cells that are trained at a time. records: of all cells in the grid's folder, by name. Raises a UserError for
    a cell that had other settings.
    """

    def __init__(self, grid: Grid, jobs: int):
        self.grid, self.file = grid, grid.out / "records.jsonl"
        self.records = {run.parts["name"]: run for run in (read_records(self.file) if self.file.exists() else ())}
        self.cells = {grid.name(cell): cell for cell in grid.cells}
        for name, cell in self.cells.items():
            self._check(name, grid.facts(cell))
        self.progress = Progress(self._trainings(), jobs, over=lambda name: name in self.records)
        self.runner = Runner(jobs, show=self.show)

    def _trainings(self) -> dict[str, Training]:
        trainings = {}
        for name, cell in self.cells.items():
            log = self.grid.out / name / FILES["log"]
            trainings[name] = Training(str(cell), log, layers=cell.depth, updates=self.grid.updates)
        return trainings

    def _check(self, name: str, facts: dict) -> None:
        folder = RunFolder(self.grid.out / name)
        known = self.records[name].facts if name in self.records else folder.facts
        if known is None:
            return
        for key in facts:
            if facts[key] != known.get(key):
                way_out = "remove it and its record, or name another --out"
                raise UserError(f"{folder.path}: had another {key}; {way_out}")

    def run(self) -> None:
        """Train the remaining cells; raise a UserError if a program fails. Any exception stops the trainings."""
        cells: list[Callable[[Mapping[str, str]], Awaitable[None]]] = []
        for name in self.progress.waiting:
            cells.append(partial(self._work_off, name))
        self.runner.run(cells)

    async def _work_off(self, name: str, place: Mapping[str, str]) -> None:
        """Train and score a cell, and add its record to the file. place: not used, all cells share the machine."""
        self.progress.begin(name)
        done = await train_and_score(self.grid, self.cells[name], self.runner)
        self.progress.end(name)

        self.records[name] = run = RecordedRun(self.file, {"name": name, **done.parts})
        with whole(self.file) as part:
            lines = [json.dumps(self.records[one].parts, ensure_ascii=False) for one in sorted(self.records)]
            part.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{self.cells[name]}: {outcome(run)}", file=sys.stderr)

    def show(self) -> None:
        """Print a line of progress."""
        line = self.progress.line()
        if line is not None:
            print(line, file=sys.stderr)


def held_out(run: RecordedRun) -> float:
    """Return the last validation loss, bits per token; infinity for a run that diverged or was stuck."""
    return math.inf if run.ended_in_nan or run.stuck else run.validation.losses[-1]


def outcome(run: RecordedRun) -> str:
    """Describe the end of a training in a few words."""
    bleu = f", BLEU {run.bleu:.1f}" if run.score else ""
    failed = run.parts.get("diverged") or run.parts.get("stuck")
    if failed:
        return failed.split(":")[0]
    return f"held-out loss {held_out(run):.2f}{bleu}"


class Best(NamedTuple):
    """Result of a method at a depth, at the best of its rates by the mean held-out loss of the seeds.

    lr: a rate at which a seed failed is never the best; None if all failed, and then `runs` are of the lowest. edge:
    "≤ " or "≥ " if it is the lowest or highest of several. failed: rate -> outcome. runs, held_out, bleu: by seed; no
    losses if each rate failed, no BLEU then and without references.
    """

    method: str
    depth: int
    lr: float | None
    edge: str
    failed: dict[str, str]
    runs: list[RecordedRun]
    held_out: list[float]
    bleu: list[float]

    def row(self) -> list[str]:
        """Return the cells of the table's row."""
        lr = "-" if self.lr is None else self.edge + rate(self.lr)
        seconds = duration(3600 * fmean(run.hours or 0 for run in self.runs))
        bleu = spread(self.bleu, 1) + " (too short)" * bool(self.bleu and fmean(self.bleu) < SHORT)
        ends = "; ".join(f"{lr}: {end}" for lr, end in self.failed.items()) or "-"
        return [self.method, f"{self.depth}L-{self.depth}L", lr, spread(self.held_out, 2), bleu, seconds, ends]


def spread(values: list[float], digits: int) -> str:
    """Format the mean, and the range of several values."""
    texts = [f"{value:.{digits}f}" for value in (fmean(values), min(values), max(values))] if values else ["-"]
    return texts[0] if len(values) < 2 else f"{texts[0]} [{texts[1]}, {texts[2]}]"


def best_of(grid: Grid, records: dict[str, RecordedRun], method: str, depth: int) -> Best:
    """Find the best rate of a method at a depth."""
    runs = {lr: [records[grid.name(Cell(depth, method, lr, seed))] for seed in grid.seeds] for lr in sorted(grid.lrs)}
    losses = {lr: [held_out(run) for run in some] for lr, some in runs.items()}
    lr = min(runs, key=lambda one: fmean(losses[one]))
    ends = {rate(one): outcome(run) for one, some in runs.items() for run in some if math.isinf(held_out(run))}
    edge = {min(runs): "≤ ", max(runs): "≥ "}.get(lr, "") if len(runs) > 1 else ""
    bleu = [run.bleu for run in runs[lr] if run.score and run.bleu is not None]  # none without references
    trained = rate(lr) not in ends
    return Best(method, depth, lr if trained else None, edge, ends, runs[lr], losses[lr] * trained, bleu)


def table(grid: Grid, rows: list[Best]) -> str:
    """Return the table with its notes."""
    header = ["method", "layers", "best rate", "held-out loss", "BLEU", "training", "failed"]
    text = render([header, *(row.row() for row in rows)])
    notes = {
        "held-out loss: label-smoothed, bits per token": True,
        "stuck: stopped, for it was hardly better than guessing by how often each word occurs": "stuck at" in text,
        f"mean [least, largest] of {len(grid.seeds)} seeds": len(grid.seeds) > 1,
        "≤, ≥: the lowest or highest rate tried; a better one may lie beyond": "≤" in text or "≥" in text,
        f"too short: BLEU below {SHORT:g}, no translations yet; give more --updates": "too short" in text,
        grid.warmup_updates()[1]: grid.warmup_updates()[1],
        **{run.score["signature"]: True for row in rows for run in row.runs if run.score},
    }
    return "\n".join([text, "", *filter(notes.get, notes)])


def picture(grid: Grid, rows: list[Best]) -> Picture:
    """Plot loss and BLEU by depth at the best rates, with the seeds' range; for a single depth, the loss by update."""
    panels: list[Panel] = []
    title = f"{grid.updates:,} updates" + f", best of {len(grid.lrs)} rates" * (len(grid.lrs) > 1)
    for start in range(0, len(grid.methods), LINES):
        methods = grid.methods[start : start + LINES]
        own = [row for row in rows if row.method in methods]
        if len(grid.depths) == 1:
            panels += training_losses([run for row in own for run in row.runs]).panels
            continue
        for y, values in (("held-out loss (bits per token)", "held_out"), ("BLEU", "bleu")):
            if any(max(getattr(row, values), default=0) >= SHORT for row in own):
                series = [_series(own, method, values, rank) for rank, method in enumerate(methods)]
                panels.append(Panel(title, "layers of encoder and of decoder", y, series, "x", grid.depths))
    return Picture("Methods at their best rates", panels, columns=2)


def _series(rows: list[Best], method: str, values: str, rank: int) -> Series:
    """Make a method's line by depth."""
    by_depth = {float(row.depth): getattr(row, values) for row in rows if row.method == method}
    points = {depth: fmean(some) for depth, some in by_depth.items() if some}
    band = {depth: (min(some), max(some)) for depth, some in by_depth.items() if len(some) > 1}
    failed = [depth for depth in by_depth if depth not in points]
    return Series(style_of_setting(rank, get_method(method).title), points, failed=failed, band=band)


def compare(grid: Grid, plot: Path | None = None, as_json: bool = False) -> str:
    """Train the remaining cells, draw `plot`; return the table, or JSON.

    Raises a UserError, before anything is trained, for an invalid grid, data or picture.
    """
    grid.check()
    grid.direction()
    if plot:
        check_file("--plot", plot)
        if plot.suffix not in METADATA:
            raise UserError(f"--plot {plot}: name a file that ends in one of {', '.join(METADATA)}")
    print(grid.warmup_updates()[1] or f"warm-up: {grid.warmup_updates()[0]} updates", file=sys.stderr)
    share = grid.share()
    jobs = grid.fitting(share.processes)
    some = from_environment() or counted(share.threads)
    fewer = "" if jobs == share.processes else f": more do not fit into {free_memory() / GIB:.1f} GiB"
    print(f"{jobs} at a time, {some} each{fewer}", file=sys.stderr)
    grid.out.mkdir(parents=True, exist_ok=True)
    work = Work(grid, jobs)
    work.run()
    rows = [best_of(grid, work.records, method, depth) for depth, method in product(grid.depths, grid.methods)]
    text = table(grid, rows)
    (grid.out / "result.txt").write_text(text + "\n", encoding="utf-8")
    if plot:
        logging.getLogger("fontTools").setLevel(logging.WARNING)  # it lists each glyph that goes into a PDF
        draw(picture(grid, rows), plot)
    return json.dumps([row._asdict() | {"runs": len(row.runs)} for row in rows]) if as_json else text
