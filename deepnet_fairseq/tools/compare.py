"""`deepnet compare`: train a grid of methods, depths, learning rates and seeds; make its table and its picture.

Each cell of the grid is one fairseq-train, in a folder of its own, with the same data and flags. A finished cell is a
line of OUT/records.jsonl and is never trained again; one that was begun resumes from its last checkpoint. A training
that diverges, or is stuck at the loss of guessing by word frequency (--stop-stuck), is a result too. A rate is the peak
of a learning rate.
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
from itertools import islice, product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, NoReturn

import torch

from .. import register
from ..core import archs
from ..core.methods import METHODS, get_method
from ..errors import UserError
from ..files import check_file, whole
from ..plugin.trainer import check_training_flags
from ..study.figures import training_losses
from ..study.plots import METADATA, Panel, Picture, Series, draw, style_of_setting
from ..study.run_folder import FILES, RunFolder, last_line
from ..study.runner import Runner
from ..study.runs import RecordedRun, read_records
from ..study.scoring.generated import read_corpus
from ..study.scoring.scores import score
from ..text_table import render
from ..threads import Share, available_cores, from_environment, processes_and_threads, width_of
from ..wording import counted
from .environment import environment
from .plan.fit import USABLE
from .plan.needs import memory
from .plan.setting import GIB, parse_setting
from .progress import Progress, Training, duration

PACKAGE = Path(__file__).resolve().parents[1]
TRAINING_FLAGS = shlex.split("""
    --arch deepnet_transformer_tiny --dropout 0.0 --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr-scheduler inverse_sqrt --max-tokens 1000 --max-tokens-valid 4000
    --no-epoch-checkpoints --keep-interval-updates 1 --validate-interval 999 --num-workers 0 --log-format json
    --distributed-world-size 1""")
GENERATION_FLAGS = shlex.split("--beam 4 --lenpen 0.6 --max-len-a 1.5 --max-len-b 10 --max-tokens 6000")
DEVICE_FLAGS = [] if torch.cuda.is_available() else ["--cpu"]
# flags of fairseq-train that each cell sets -> flag of `deepnet compare` to give instead
REFUSED = {"--encoder-layers": "--depths", "--decoder-layers": "--depths", "--warmup-updates": "--warmup"}
# Program that runs a module of fairseq_cli with the user's methods. They are imported first, because fairseq takes only
# one --user-dir, which is this package. Arguments: folder of the methods, module, arguments of the module.
WITH_USERS_METHODS = """import runpy, sys
from deepnet_fairseq import register, user_dir
register()
user_dir.import_user_dir(sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)"""
BETA2 = re.compile(r"--adam-betas[ =]\(?[\d.]+, ?([\d.]+)")  # the second of --adam-betas '(0.9, 0.98)'
LOW_BLEU = 2.0  # BLEU below which a model writes the target language, but does not translate yet
# memory of fairseq-train beside what the plan counts: measured were 0.42 GiB at 2L-2L, and 0.63 GiB at 100L-100L
PROGRAM_BYTES = 0.7 * GIB
SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>")  # entries of fairseq's dictionaries that are not in their files
LINES_PER_PANEL = 8  # most lines of a panel


def free_memory() -> float:
    """Return the bytes of this machine's memory that a plan may use, the share USABLE of what is free.

    The result is infinity if the system does not say how much is free.
    """
    try:
        found = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        return math.inf
    if found is None:
        return math.inf
    return USABLE * 1024 * int(found[1])  # kB of /proc/meminfo are 1024 bytes


class Cell(NamedTuple):
    """Cell of the grid: one training, of a model with `depth` encoder and `depth` decoder layers.

    method: name in METHODS; lr: the peak of the learning rate.
    """

    depth: int
    method: str
    lr: float
    seed: int

    def __str__(self) -> str:
        return f"{self.method} {self.depth}L-{self.depth}L lr {format_rate(self.lr)} seed {self.seed}"


@dataclass(frozen=True)
class Grid:
    """Grid of cells with their common settings.

    data: folder of binarised data of one language pair; methods, depths, lrs, seeds: values of the cells, in all
    combinations; updates: number of updates of each cell's training; out: folder of the cells' folders and of the
    results; jobs: number of cells trained at a time, None to choose it by cores and memory; flags: the user's flags of
    fairseq-train, which override the grid's own, and of which an option of a method is for this method alone; warmup:
    share of the updates in which the learning rate rises; user_dir: folder of the user's methods, None if there are
    none.
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
        """Raise a UserError for values that are invalid whatever the data."""
        for method in self.methods:
            get_method(method)  # raises for an unknown one

        _check_at_least_one("--depths", min(self.depths))
        _check_at_least_one("--updates", self.updates)
        if self.jobs is not None:
            _check_at_least_one("--jobs", self.jobs)

        if not min(self.lrs) > 0:  # written so that NaN is refused too
            raise UserError(f"--lrs {min(self.lrs)}", "must be above 0")
        if not 0 < self.warmup < 1:
            raise UserError(f"--warmup {self.warmup:g}", "must be a share of the updates, between 0 and 1")

        for word in self.flags:
            flag = word.split("=")[0]
            if flag in REFUSED:
                raise UserError(word, f"differs between the trainings; give {REFUSED[flag]} instead")
        for owner, words in by_owner(self.flags):
            if owner is not None and owner not in self.methods:
                way_out = f"an option of --method {owner}, which is not compared; drop it, or name {owner} in --methods"
                raise UserError(" ".join(words), way_out)
        self.width()  # raises if a flag gives a width that is no number

    def flags_of(self, method: str) -> list[str]:
        """Return those of the user's flags that a method's trainings get: all but the options of other methods."""
        flags: list[str] = []
        for owner, words in by_owner(self.flags):
            if owner in (None, method):
                flags += words
        return flags

    @property
    def cells(self) -> list[Cell]:
        """All cells, depth by depth in the given order; if that begins with small models, there are results soon."""
        combinations = product(self.depths, self.methods, self.lrs, self.seeds)
        return [Cell(depth, method, lr, seed) for depth, method, lr, seed in combinations]

    @property
    def dictionaries(self) -> list[bytes]:
        """The contents of both dictionary files, by which `facts` knows the text, because they count each word."""
        return [path.read_bytes() for path in sorted(self.data.glob("dict.*.txt"))]

    def direction(self) -> str:
        """Return the direction as "de-en"; raise a UserError unless the data is of one language pair."""
        files = sorted(self.data.glob("train.*-*.*.idx"))  # train.de-en.de.idx and train.de-en.en.idx
        if len(self.dictionaries) != 2 or len(files) != 2:
            raise UserError(self.data, "no binarised data of one language pair; `deepnet prepare text` makes such")
        return files[0].name.split(".")[1]

    def width(self) -> int:
        """Return the embedding width of the models, by which the number of threads is chosen.

        Raises a UserError if a flag gives a width that is no number.
        """
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--arch", "-a")
        for stack in archs.STACKS[archs.MODEL_NAME]:
            parser.add_argument(f"--{stack}-embed-dim", type=int)
        # argparse's own method would print the usage and exit
        parser.error = _raise_user_error  # type: ignore[method-assign]

        cfg, _ = parser.parse_known_args([*TRAINING_FLAGS, *self.flags])
        archs.fill(cfg)  # sets the fields that were not given to the architecture's values
        width = width_of(cfg)
        assert width is not None  # fill() has set it
        return width

    @property
    def on_cpu(self) -> bool:
        """Whether the cells are trained, and translate, on the CPU: without a GPU, or if the user's flags say --cpu."""
        return "--cpu" in [*DEVICE_FLAGS, *self.flags]

    def share(self) -> Share:
        """Decide how many cells are trained at a time, and with how many threads each.

        On a GPU it is one cell at a time unless the user gave the number; memory is not looked at here.
        """
        if self.on_cpu:
            return processes_and_threads(self.width(), tasks=len(self.cells), processes=self.jobs)
        jobs = self.jobs or 1
        return Share(processes=jobs, threads=max(1, available_cores() // jobs))

    def jobs_that_fit(self, processes: int) -> int:
        """Return how many trainings, at least 1 and at most `processes`, fit into this machine's memory at a time.

        The memory of each is taken to be that of the deepest model, as tools/plan computes it. If the user gave the
        number of jobs, and for a GPU, whose memory is not looked at, the result is `processes`.
        """
        if self.jobs is not None or processes == 1 or not self.on_cpu:
            return processes

        deepest = max(self.cells, key=lambda cell: cell.depth)
        sizes = []  # of the vocabularies of source and target
        for language in self.direction().split("-"):
            dictionary = (self.data / f"dict.{language}.txt").read_bytes()
            sizes.append(len(dictionary.splitlines()) + len(SYMBOLS))
        vocab = ",".join(str(size) for size in sizes)
        setting = parse_setting([*self.training(deepest), "--vocab", vocab], strict=False)

        needed = memory(setting).peak + PROGRAM_BYTES
        return max(1, min(processes, int(free_memory() // needed)))

    def name(self, cell: Cell) -> str:
        """Return the name of a cell's folder in `out`, and of its record."""
        model = f"{cell.depth}L-{cell.depth}L"
        return f"{model}-{self.updates}-updates-seed{cell.seed}/{cell.method}-lr{format_rate(cell.lr)}"

    def warmup_updates(self) -> tuple[int, str]:
        """Return the number of updates of warm-up, and a note for users whose share of the updates is too small.

        Adam's averages of squared gradients must have formed before the learning rate reaches its peak, or methods
        differ by that alone. Warm-up thus takes at least 2 / (1 - beta2) updates (the "untuned linear warmup" of Ma and
        Yarats 2021, "On the adequacy of untuned warmup for adaptive optimization"), or half of all updates if this is
        less. The note is "" if the share is large enough.
        """
        flags = " ".join([*TRAINING_FLAGS, *self.flags])
        beta2 = float(BETA2.findall(flags)[-1])  # the last one wins, as in argparse
        wanted = round(self.warmup * self.updates)
        needed = round(2 / (1 - beta2))
        if wanted >= needed:
            return wanted, ""

        chosen = max(wanted, min(needed, self.updates // 2))
        note = f"warm-up: {chosen} of {self.updates} updates, not {wanted}: Adam's second moments want {needed}"
        if chosen < needed:
            note += "; methods may differ by that alone, so give more --updates"
        return chosen, note

    def training(self, cell: Cell) -> list[str]:
        """Return the flags of a cell's fairseq-train, without the data and --save-dir."""
        warmup, _ = self.warmup_updates()
        # in updates; a training of fewer than 12 updates saves after each, one of fewer than 10 logs each
        save_and_validate_every = max(1, self.updates // 12)  # twelve times or more in a longer one
        log_every = min(25, max(1, self.updates // 10))  # ten times or more
        stuck = max(300, self.updates // 4, warmup * 3 // 2)  # no healthy training is at unigram entropy for so long

        equal_dictionaries = len(set(self.dictionaries)) == 1  # one dictionary for both languages, written twice

        # The order must not change: run.json holds these flags as a text, and a cell is refused if its text differs. Of
        # a flag that occurs twice the last one wins, so the user's stand at the end.
        words = list(TRAINING_FLAGS)
        if equal_dictionaries:
            words.append("--share-all-embeddings")
        words += DEVICE_FLAGS
        words += ["--encoder-layers", str(cell.depth), "--decoder-layers", str(cell.depth)]
        words += ["--method", cell.method]
        words += " ".join(get_method(cell.method).train_flags).split()
        words += ["--lr", format_rate(cell.lr), "--warmup-updates", str(warmup)]
        words += ["--max-update", str(self.updates), "--seed", str(cell.seed)]
        words += ["--save-interval-updates", str(save_and_validate_every)]
        words += ["--validate-interval-updates", str(save_and_validate_every)]
        words += ["--stop-stuck", str(stuck), "--log-interval", str(log_every)]
        words += self.flags_of(cell.method)
        return words

    def facts(self, cell: Cell) -> dict:
        """Return the content of a cell's run.json; trainings with equal facts are the same.

        "text" is a checksum of the dictionaries; "source", which only a method of the user's has, is one of its file.
        """
        facts = {
            "method": cell.method, "encoder_layers": cell.depth, "decoder_layers": cell.depth, "seed": cell.seed,
            "experiment": "compare", "lr": cell.lr, "updates": self.updates,
            "flags": shlex.join(self.training(cell)), "text": zlib.crc32(b"".join(self.dictionaries)),
        }  # fmt: skip
        source = Path(inspect.getfile(METHODS[cell.method]))
        if PACKAGE not in source.parents:  # a method of the user's, who may change it between two calls
            facts["source"] = zlib.crc32(source.read_bytes())
        return facts

    def command(self, cell: Cell) -> str:
        """Return the command line of `deepnet compare` for a grid of this cell alone, without --out and --jobs."""
        values = f"--methods {cell.method} --depths {cell.depth} --lrs {format_rate(cell.lr)} --seeds {cell.seed}"
        words = [str(self.data), *values.split()]
        words += [f"--updates={self.updates}", f"--warmup={self.warmup:.6g}", *self.flags_of(cell.method)]
        if self.user_dir:
            words += ["--user-dir", self.user_dir]
        return f"deepnet compare {shlex.join(words)}"


def _raise_user_error(message: str) -> NoReturn:
    """Raise argparse's message as a UserError; takes the place of ArgumentParser.error."""
    raise UserError(message.removeprefix("argument "))


def _check_at_least_one(flag: str, number: int) -> None:
    """Raise a UserError, naming the flag, for a number below 1."""
    if number < 1:
        raise UserError(f"{flag} {number}", "must be at least 1")


def by_owner(flags: Sequence[str]) -> list[tuple[str | None, list[str]]]:
    """Split flags of fairseq-train into pairs (owner, words), in their order.

    Either the words are an option of a method with its value, and the owner is the method's name; or they are one other
    word, and the owner is None.
    """
    options = {}  # flag -> (name of the method, the option)
    for name, method in METHODS.items():
        for key, option in method.options.items():
            options[method.flag(key)] = (name, option)

    pairs: list[tuple[str | None, list[str]]] = []
    rest = iter(flags)
    for word in rest:
        flag, equals, _ = word.partition("=")
        if flag not in options:
            pairs.append((None, [word]))
            continue
        owner, option = options[flag]
        has_value_behind = not equals and not isinstance(option.default, bool)  # a bool is a flag without a value
        value = list(islice(rest, 1)) if has_value_behind else []
        pairs.append((owner, [word, *value]))
    return pairs


def format_rate(lr: float) -> str:
    """Format a learning rate as "5e-4": in scientific notation without zeros that say nothing."""
    return re.sub(r"\.?0*e([+-]?)0*", r"e\1", f"{lr:e}")  # of "5.000000e-04"


def fairseq_command(grid: Grid, program: str, flags: list[str]) -> list[str]:
    """Return the command of fairseq-train or fairseq-generate, run by this interpreter whatever the PATH.

    program: "train" or "generate"; flags: its flags but for the data and --user-dir.
    """
    run_module = ["-c", WITH_USERS_METHODS, grid.user_dir] if grid.user_dir else ["-m"]
    return [sys.executable, *run_module, f"fairseq_cli.{program}", str(grid.data), "--user-dir", str(PACKAGE), *flags]


def thread_variables(grid: Grid) -> dict[str, str]:
    """Return the environment variables that set the number of the programs' threads: {} or {"OMP_NUM_THREADS": N}."""
    if from_environment():  # the user has set it, and programs inherit that
        return {}
    return {"OMP_NUM_THREADS": str(grid.share().threads)}


async def train_and_score(grid: Grid, cell: Cell, runner: Runner) -> RecordedRun:
    """Train a cell, or go on with one that was begun; translate and score the test set; return the run.

    The test set is not translated if the training diverged or was stuck, or if the data have no references. Raises a
    UserError, naming the log, if a program failed, and if another process works on the cell.
    """
    run = RunFolder(grid.out / grid.name(cell))
    with run.locked() as is_ours:
        if not is_ours:
            raise UserError(run.path, "another process trains it; wait for its end, or name another --out")
        if not run.is_over:
            await train_cell(grid, cell, run, runner)

        reference = read_corpus(grid.data).reference("test", grid.direction())
        if reference and run.failed is None:
            await translate_test_set(grid, cell, run, runner)

        for file in run.path.glob("checkpoint*.pt"):  # only the last one is of use from now on
            if file != run.last_checkpoint:
                file.unlink()
        return RecordedRun(run.path)


async def train_cell(grid: Grid, cell: Cell, run: RunFolder, runner: Runner) -> None:
    """Train a cell until it has made its updates, is stuck or diverges; raise a UserError if the program failed.

    run: the cell's folder, in which its checkpoints, log and marks are written.
    """
    run.begin(
        facts=grid.facts(cell),
        command=grid.command(cell),
        environment=environment(gpus=0 if grid.on_cpu else 1),
    )

    command = fairseq_command(grid, "train", [*grid.training(cell), "--save-dir", str(run.path)])
    begun_at = run.size_of_log()  # run.end reads the log from there
    ended = await runner.program(command, log=run.log, variables=thread_variables(grid))
    run.end(ended.status, f"training {cell}", begun_at)


async def translate_test_set(grid: Grid, cell: Cell, run: RunFolder, runner: Runner) -> None:
    """Translate the test set with a trained cell, and score the translations.

    run: the cell's folder; it gets generated.txt, the output of fairseq-generate, and score.json. Raises a UserError,
    naming the log, if the program failed.
    """
    # value of --remove-bpe, by which fairseq joins the pieces: the program that has segmented the data
    pieces = "sentencepiece" if (grid.data / "spm.model").exists() else "subword_nmt"
    words = ["--path", str(run.last_checkpoint), *GENERATION_FLAGS, "--remove-bpe", pieces]
    if grid.on_cpu:
        words.append("--cpu")
    command = fairseq_command(grid, "generate", words)
    log = run / "generate.log"

    with whole(run / "generated.txt") as part:  # a temporary file, which gets that name at the end
        ended = await runner.program(command, log=log, output=part, variables=thread_variables(grid))
        if ended.status:
            said = last_line(log.read_text(encoding="utf-8", errors="replace"))
            raise UserError(f"translating with {cell} failed", f"{said}; whole log: {log}")

    run.write("score", json.dumps(score(run / "generated.txt", grid.data)))


class Work:
    """Trains and records the cells of a grid that are not finished yet, and reports progress on stderr.

    jobs: number of cells that are trained at a time. records: name of a cell -> its finished run, as in the file
    records.jsonl of the grid's folder, which may also hold cells of grids that were trained there before. cells: name
    of a cell of this grid -> the cell. Raises a UserError for a cell that was begun with other settings.
    """

    def __init__(self, grid: Grid, jobs: int):
        self.grid = grid
        self.file = grid.out / "records.jsonl"
        self.records: dict[str, RecordedRun] = {}
        if self.file.exists():
            for run in read_records(self.file):
                self.records[run.parts["name"]] = run

        self.cells = {grid.name(cell): cell for cell in grid.cells}
        for name, cell in self.cells.items():
            self._check_facts(name, grid.facts(cell))

        self.progress = Progress(self._trainings(), jobs, over=lambda name: name in self.records)
        self.runner = Runner(jobs, show=self.show)

    def _trainings(self) -> dict[str, Training]:
        """Return the trainings whose progress is shown, by name."""
        trainings = {}
        for name, cell in self.cells.items():
            log = self.grid.out / name / FILES["log"]
            trainings[name] = Training(str(cell), log, layers=cell.depth, updates=self.grid.updates)
        return trainings

    def _check_facts(self, name: str, facts: dict) -> None:
        """Raise a UserError if a cell was trained, or begun, with other facts than these.

        name: of the cell; facts: as Grid.facts returns them.
        """
        folder = RunFolder(self.grid.out / name)
        earlier_facts = None
        if name in self.records:
            earlier_facts = self.records[name].facts
        elif folder.has_progress:
            earlier_facts = folder.facts
        if earlier_facts is None:  # it was never begun, or ended before it saved anything, and begins anew
            return
        for key in facts:
            if facts[key] != earlier_facts.get(key):
                way_out = "remove it and its record, or name another --out"
                raise UserError(folder.path, f"had other {key}; {way_out}")

    def check_flags(self) -> None:
        """Raise a UserError for flags with which a training that is not finished would end before it begins.

        The flags of one training of each method and depth are read. Trainings that differ only in rate and seed have
        the same flags otherwise.
        """
        register()
        checked = set()
        for name in self.progress.waiting:
            cell = self.cells[name]
            if (cell.method, cell.depth) in checked:
                continue
            checked.add((cell.method, cell.depth))
            folder = str(self.grid.out / name)
            check_training_flags([str(self.grid.data), *self.grid.training(cell), "--save-dir", folder])

    def run(self) -> None:
        """Train the remaining cells; raise a UserError if a program fails. Any exception stops the trainings."""
        tasks: list[Callable[[Mapping[str, str]], Awaitable[None]]] = []  # as Runner.run takes them
        for name in self.progress.waiting:
            tasks.append(partial(self._train_and_record, name))
        self.runner.run(tasks)

    async def _train_and_record(self, name: str, place: Mapping[str, str]) -> None:
        """Train and score the cell of that name, and write its record into the file.

        place: environment variables that the runner gives each cell; not used, because all cells share the machine.
        """
        self.progress.begin(name)
        live_run = await train_and_score(self.grid, self.cells[name], self.runner)
        self.progress.end(name)

        run = RecordedRun(self.file, {"name": name, **live_run.parts})
        self.records[name] = run
        with whole(self.file) as part:
            lines = [json.dumps(self.records[recorded].parts, ensure_ascii=False) for recorded in sorted(self.records)]
            part.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{self.cells[name]}: {outcome(run)}", file=sys.stderr)

    def show(self) -> None:
        """Print a line of progress, if a training runs; the runner calls this every few seconds."""
        line = self.progress.line()
        if line is not None:
            print(line, file=sys.stderr)


def held_out_loss(run: RecordedRun) -> float:
    """Return the last validation loss, bits per token; infinity for a run that diverged or was stuck."""
    if run.ended_in_nan or run.stuck:
        return math.inf
    return run.validation.losses[-1]


def outcome(run: RecordedRun) -> str:
    """Describe the end of a training in a few words, as "diverged at update 90" or "held-out loss 5.00, BLEU 9.0"."""
    failure = run.parts.get("diverged") or run.parts.get("stuck")  # the text of the mark, None without one
    if failure:
        return failure.split(":")[0]
    bleu = f", BLEU {run.bleu:.1f}" if run.score else ""
    return f"held-out loss {held_out_loss(run):.2f}{bleu}"


class Best(NamedTuple):
    """Result of a method at a depth, at the best of its learning rates: that of the lowest mean held-out loss.

    A rate fails if the training of one of its seeds diverged or was stuck, and is then never the best.

    method, depth: as in Cell
    lr: the best rate, None if all failed
    edge: "≤ " or "≥ " if the best is the lowest or highest of several rates, and a better one may lie beyond; else "",
        also if all failed
    failed: failed rate, as a text -> how the training of its last failed seed ended
    runs: the runs at the best rate, one of each seed; at the lowest rate if all failed
    held_out: last validation loss of each of these runs, in bits per token; empty if all rates failed
    bleu: BLEU of each of these runs that has one
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
        """Return the entries of the result's row in the table, whose header is in `table`."""
        depth = f"{self.depth}L-{self.depth}L"
        lr = "-" if self.lr is None else self.edge + format_rate(self.lr)
        hours = [run.hours or 0 for run in self.runs]  # None for a log without the line that begins an attempt
        training_time = duration(3600 * fmean(hours))

        bleu = format_spread(self.bleu, 1)
        if self.bleu and fmean(self.bleu) < LOW_BLEU:
            bleu += " (too short)"  # the training: such a model does not translate yet; the table's note says so

        failures = "; ".join(f"{failed}: {end}" for failed, end in self.failed.items())
        return [self.method, depth, lr, format_spread(self.held_out, 2), bleu, training_time, failures or "-"]


def format_spread(values: list[float], digits: int) -> str:
    """Format the mean of values, and if there are several their range, as "3.50 [3.00, 4.00]"; "-" for no value.

    digits: decimals.
    """
    if not values:
        return "-"
    mean = f"{fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def best_of(grid: Grid, records: dict[str, RecordedRun], method: str, depth: int) -> Best:
    """Return the result of a method at a depth, at the best of the grid's learning rates.

    If several rates are equally good, the lowest is taken. records: name of a cell -> its finished run, for all cells
    of the grid.
    """
    runs: dict[float, list[RecordedRun]] = {}  # rate -> a run of each seed
    losses: dict[float, list[float]] = {}  # rate -> held-out loss of each of these
    failed: dict[str, str] = {}  # as in Best
    for lr in sorted(grid.lrs):
        runs[lr] = [records[grid.name(Cell(depth, method, lr, seed))] for seed in grid.seeds]
        losses[lr] = [held_out_loss(run) for run in runs[lr]]
        for run, loss in zip(runs[lr], losses[lr]):
            if math.isinf(loss):
                failed[format_rate(lr)] = outcome(run)

    # A failed seed makes the mean of its rate infinite. So a failed rate has the lowest mean only if all rates failed.
    best = min(runs, key=lambda lr: fmean(losses[lr]))  # the first of equal ones, which is the lowest rate
    all_failed = format_rate(best) in failed

    edge = ""
    if len(runs) > 1 and not all_failed:
        if best == min(runs):
            edge = "≤ "
        elif best == max(runs):
            edge = "≥ "

    return Best(
        method=method,
        depth=depth,
        lr=None if all_failed else best,
        edge=edge,
        failed=failed,
        runs=runs[best],
        held_out=[] if all_failed else losses[best],
        # A run has no score if it failed or the data have no references. With one its bleu is not None, but for mypy.
        bleu=[run.bleu for run in runs[best] if run.score and run.bleu is not None],
    )


def table(grid: Grid, rows: list[Best]) -> str:
    """Format the results as a table, and below it notes on the terms and marks that occur in it.

    rows: the results in the table's order.
    """
    header = ["method", "layers", "best rate", "held-out loss", "BLEU", "training", "failed"]
    text = render([header, *(row.row() for row in rows)])

    # a term or mark is explained if it is found in the table's text
    notes = ["held-out loss: label-smoothed, bits per token; best rate: the learning rate of the lowest one"]
    if "stuck at" in text:
        notes.append("stuck: stopped, for it was hardly better than guessing by how often each word occurs")
    if len(grid.seeds) > 1:
        notes.append(f"mean [least, largest] of {len(grid.seeds)} seeds")
    if "≤" in text or "≥" in text:
        notes.append("≤, ≥: the lowest or highest rate tried; a better one may lie beyond")
    if "too short" in text:
        notes.append(f"too short: BLEU below {LOW_BLEU:g}, no translations yet; give more --updates")
    _, warmup_note = grid.warmup_updates()
    if warmup_note:
        notes.append(warmup_note)

    for row in rows:
        for run in row.runs:
            if run.score and run.score["signature"] not in notes:  # sacreBLEU's, each once
                notes.append(run.score["signature"])

    return "\n".join([text, "", *notes])


def picture(grid: Grid, rows: list[Best]) -> Picture:
    """Make the picture of the results: held-out loss and BLEU by depth, each with the range of the seeds.

    If the grid has a single depth, it shows the training loss by update instead.
    """
    title = counted(grid.updates, "update")
    if len(grid.lrs) > 1:
        title += f", best of {len(grid.lrs)} rates"

    panels: list[Panel] = []
    for start in range(0, len(grid.methods), LINES_PER_PANEL):  # further methods get panels of their own
        methods = grid.methods[start : start + LINES_PER_PANEL]
        shown = [row for row in rows if row.method in methods]
        if len(grid.depths) == 1:
            panels += _by_update(shown)
        else:
            panels += _by_depth(grid, title, methods, shown)
    return Picture("Methods at their best rates", panels, columns=2)


def _by_update(rows: list[Best]) -> list[Panel]:
    """Make panels of the training loss by update, with a line for each run at the best rates."""
    runs: list[RecordedRun] = []
    for row in rows:
        runs += row.runs
    return list(training_losses(runs).panels)


def _by_depth(grid: Grid, title: str, methods: Sequence[str], rows: list[Best]) -> list[Panel]:
    """Make a panel of held-out loss and one of BLEU by depth, with a line for each method.

    title: of each panel; methods: to show; rows: their results. BLEU has no panel if all models are below LOW_BLEU, and
    the loss has none if all trainings failed.
    """
    quantities = (  # label of the y axis, field of Best, least value that is worth a panel
        ("held-out loss (bits per token)", "held_out", 0.0),
        ("BLEU", "bleu", LOW_BLEU),
    )
    panels = []
    for y, field, least in quantities:
        if any(value >= least for row in rows for value in getattr(row, field)):
            series = [_series(rows, method, field, rank) for rank, method in enumerate(methods)]
            x = "layers of encoder and of decoder"
            panels.append(Panel(title=title, x=x, y=y, series=series, log="x", ticks=grid.depths))
    return panels


def _series(rows: list[Best], method: str, field: str, rank: int) -> Series:
    """Make a method's line by depth: the mean of its seeds, a band from the lowest to the highest, marks of failures.

    rows: results of all methods in the panel; field: what the line shows, "held_out" or "bleu" of Best; rank: place of
    the method in the panel, from 0, which decides the line's style.
    """
    values_at: dict[float, list[float]] = {}  # depth -> one value a seed, [] if the method failed there
    for row in rows:
        if row.method == method:
            values_at[float(row.depth)] = getattr(row, field)

    points = {depth: fmean(values) for depth, values in values_at.items() if values}
    band = {depth: (min(values), max(values)) for depth, values in values_at.items() if len(values) > 1}
    failed = [depth for depth in values_at if depth not in points]

    style = style_of_setting(rank, get_method(method).title)
    return Series(style, points, failed=failed, band=band)


def compare(grid: Grid, plot: Path | None = None, as_json: bool = False) -> str:
    """Train the cells that are not finished yet, write OUT/result.txt, draw the picture; return the table, or JSON.

    plot: file of the picture, None for none; as_json: whether to return a JSON list with an object for each method and
    depth, the fields of Best with the number of `runs`. Raises a UserError, before anything is trained, for an invalid
    grid, data or picture, for a cell that was begun with other settings, and for flags that fairseq-train refuses;
    later, naming the log, if a program fails.
    """
    grid.check()
    grid.direction()
    if plot:
        check_file("--plot", plot)
        if plot.suffix not in METADATA:
            raise UserError(f"--plot {plot}", f"name a file that ends in one of {', '.join(METADATA)}")

    warmup, note = grid.warmup_updates()
    print(note or f"warm-up: {counted(warmup, 'update')}", file=sys.stderr)
    share = grid.share()
    jobs = grid.jobs_that_fit(share.processes)
    threads = from_environment() or counted(share.threads, "thread")
    why_fewer = "" if jobs == share.processes else f": more do not fit into {free_memory() / GIB:.1f} GiB"
    print(f"{counted(jobs, 'training')} at a time, {threads} each{why_fewer}", file=sys.stderr)

    work = Work(grid, jobs)
    work.check_flags()
    grid.out.mkdir(parents=True, exist_ok=True)
    work.run()

    rows = [best_of(grid, work.records, method, depth) for depth, method in product(grid.depths, grid.methods)]
    text = table(grid, rows)
    (grid.out / "result.txt").write_text(text + "\n", encoding="utf-8")
    if plot:
        logging.getLogger("fontTools").setLevel(logging.WARNING)  # it lists each glyph that goes into a PDF
        draw(picture(grid, rows), plot)
    if as_json:
        return json.dumps([row._asdict() | {"runs": len(row.runs)} for row in rows])
    return text
