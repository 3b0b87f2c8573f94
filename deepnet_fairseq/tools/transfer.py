"""`deepnet transfer`: short trainings of a fairseq-train command at small depths, over a grid of peak learning rates.

Each is a process of its own, and a record, FOLDER/NAME.run.json, whole or absent: what is there is not trained again.
And the coordinate check, in this process: how far does each layer's output move in the first updates, by depth?
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import math
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from ..core import archs
from ..core.methods import get_method
from ..core.modifiers import MODIFIERS
from ..core.probes.model_update import layer_outputs
from ..errors import UserError
from ..files import WRONG_VALUES, read_object, whole
from ..plugin import config
from ..plugin.admin_profile import held_training_batch
from ..plugin.divergence import stuck
from ..plugin.trainer import batches, build_trainer, parse, refuse_others, step
from ..study.depth_study import neighbours
from ..study.logs import short
from ..study.runs import RECORD, RecordedRun
from ..study.trials import Trial, trial_of
from ..text_table import render
from .check import ATTEMPTS
from .environment import environment

UPDATES = {  # of a schedule, the flags in updates, which are compressed; its other numbers are proportions
    "inverse_sqrt": ("warmup_updates",),
    "polynomial_decay": ("warmup_updates", "total_num_update"),
    "cosine": ("warmup_updates", "lr_period_updates"),
    "fixed": ("warmup_updates",),
}
RATES = ("warmup_init_lr", "end_learning_rate", "min_lr", "stop_min_lr")  # which go with the peak
PART = 10  # of --max-update is a proxy, by default
REACH = 4  # steps beyond the grid, at most, that a search for the best goes
GENTLE = 0.1  # of --lr in the coordinate check: outputs still have much in common with what they were
LOGGED, VALIDATED = 20, 6  # times in a proxy
USER_DIR = str(Path(__file__).resolve().parents[1])
ENDED = re.compile(r"error: (diverged at update \d+|stuck at update \d+[^;]*)")


@dataclass(frozen=True)
class Command:
    """A fairseq-train command whose learning rate is asked for.

    words: its DATA and flags; args: as fairseq reads them; layers: of the stacks that the model has.
    """

    words: tuple[str, ...]
    args: argparse.Namespace
    layers: dict[str, int]

    @property
    def depth(self) -> int:
        """Layers of the deepest stack, by which depths are named."""
        return max(self.layers.values())

    @property
    def width(self) -> int:
        """Of the first stack's residual stream."""
        return getattr(self.args, f"{next(iter(self.layers))}_embed_dim")

    def at(self, depth: int) -> dict[str, int]:
        """Layers of each stack of a proxy, in proportion; UserError where that is no whole number."""
        found = {stack: depth * layers / self.depth for stack, layers in self.layers.items()}
        if depth < 1 or not all(layers.is_integer() and layers for layers in found.values()):
            shape = "-".join(map(str, self.layers.values()))
            raise UserError(f"--depths {depth}: {shape} layers in proportion are no whole numbers of layers at it")
        return {stack: int(layers) for stack, layers in found.items()}


def read_command(words: list[str]) -> Command:
    """UserError, naming the flag, for what cannot be trained in miniature; fairseq's own refusals end the program."""
    args = parse(words)
    refuse_others(args, "deepnet transfer")
    args = config.namespace(**vars(args))  # with what no flag says
    if len(args.lr) != 1:
        raise UserError(f"--lr {','.join(map(str, args.lr))}: give one peak rate, around which the others lie")
    if not args.max_update:
        raise UserError("--max-update: give the length of the training to come; a proxy's schedule is a part of it")
    if args.lr_scheduler not in UPDATES:
        known = ", ".join(UPDATES)
        raise UserError(f"--lr-scheduler {args.lr_scheduler}: cannot be compressed in proportion; take one of {known}")
    if getattr(args, "force_anneal", None):
        raise UserError("--force-anneal: counts epochs, of which a proxy has fewer; take a schedule in updates")
    layers = {stack: getattr(args, f"{stack}_layers") for stack in archs.STACKS[archs.model_of(args)]}
    return Command(tuple(words), args, layers)


@dataclass(frozen=True)
class Proxy:
    """A short training. name: of its record; flags: behind the command's own words, which they override."""

    name: str
    layers: dict[str, int]
    rate: float
    seed: int
    updates: int
    flags: tuple[str, ...]


def proxy(command: Command, depth: int, rate: float, seed: int, updates: int) -> Proxy:
    """Of `updates`, its schedule in proportion to the command's."""
    args, layers = command.args, command.at(depth)
    part = updates / args.max_update
    changed: dict[str, Any] = {f"{stack}_layers": number for stack, number in layers.items()}
    changed |= {"lr": f"{rate:.6g}", "seed": seed, "max_update": updates, "max_epoch": 0, "rollbacks": 0}
    changed |= {"patience": -1, "stop_time_hours": 0}  # which would end it early, as if it were whole
    changed |= {key: _shorter(value, part) for key, value in _given(args, UPDATES[args.lr_scheduler])}
    changed |= {key: f"{value * rate / args.lr[0]:.6g}" for key, value in _given(args, RATES)}
    changed |= {"log_format": "json", "log_interval": max(1, updates // LOGGED)}
    changed |= {"validate_interval": 10**6, "validate_interval_updates": -(-updates // VALIDATED)}
    if _can_be_stuck(args):
        changed["stop_stuck"] = _shorter(args.stop_stuck, part) if args.stop_stuck else max(1, updates // 2)
    flags = [word for key, value in changed.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    owners: list[Any] = [
        get_method(args.method),
        *(one for name, one in MODIFIERS.items() if getattr(args, name, False)),
    ]
    for owner in owners:
        if "updates" in owner.options:  # until its branches count fully
            name = owner.flag("updates")
            flags += [name, str(_shorter(getattr(args, name.removeprefix("--").replace("-", "_")), part))]
    shape = "-".join(map(str, dict.fromkeys(layers.values())))
    return Proxy(f"{args.method}-{shape}-lr{rate:.6g}-seed{seed}", layers, rate, seed, updates, (*flags, "--no-save"))


def _given(args: argparse.Namespace, keys: Iterable[str]) -> Iterator[tuple[str, float]]:
    """The flags that have a number above 0: fairseq has others for "none", and "${...}" where one follows another."""
    for key in keys:
        value = str(getattr(args, key, 0))
        if not value.startswith("$") and float(value) > 0:
            yield key, float(value)


def _can_be_stuck(args: argparse.Namespace) -> bool:
    """Is there what --stop-stuck goes by?"""
    try:
        stuck.check_settings(lambda _, key: key == "stop_stuck" or getattr(args, key, None))
    except UserError:
        return False
    return True


def _shorter(updates: float, part: float) -> int:
    return max(1, round(updates * part))


def train(command: Command, one: Proxy, folder: Path) -> RecordedRun:
    """Its record, from `folder` or by a training now, which leaves nothing else there unless it fails.

    UserError for a record of another command, and where the training failed in another way than by diverging.
    """
    record, work = folder / f"{one.name}{RECORD}", folder / f"{one.name}.part"
    words = [*command.words, *([] if command.args.user_dir else ["--user-dir", USER_DIR]), *one.flags]
    said = shlex.join(["fairseq-train", *words])
    if record.exists():
        run = RecordedRun(record)
        if run.command != said:
            raise UserError(f"{record}: is of another command; name a new folder with --out")
        return run
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    log, before = work / "train.log", _seconds()
    with open(log, "w", encoding="utf-8") as output, ended_by_signals():
        status = launch([*words, "--save-dir", str(work)], output)
    text = log.read_text(encoding="utf-8", errors="replace")
    ended = ENDED.search(text)
    if status and not ended:
        last = (text.strip().splitlines() or [f"status {status}"])[-1]
        raise UserError(f"{one.name}: the training failed: {last[:300]}; whole log: {log}")
    facts = {"method": command.args.method, "lr": one.rate, "updates": one.updates, "seed": one.seed}
    facts |= {f"{stack}_layers": number for stack, number in one.layers.items()} | {"width": command.width}
    gpus = 0 if command.args.cpu else torch.cuda.device_count()
    parts: dict[str, Any] = {"run": facts, "environment": environment(gpus), "command": said, "log": short(log)}
    parts["spent"] = {"training": {"processor_seconds": round(_seconds() - before, 1)}}
    if ended:
        parts[ended[1].split()[0]] = ended[1]
    with whole(record) as path:
        path.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(work)
    return RecordedRun(record)


def launch(words: list[str], output: IO[str]) -> int:
    """fairseq-train in a process of its own, what it prints to `output`; its status."""
    program = [sys.executable, "-m", "fairseq_cli.train", *words]
    return subprocess.run(program, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode


def _seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM raises SystemExit inside, so that a child is ended and waited for."""

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def search(
    command: Command,
    depths: list[int],
    steps: list[int],
    factor: float,
    updates: int,
    seeds: int,
    run: Callable[[Proxy], RecordedRun],
) -> list[Trial]:
    """Trains depth by depth, the shallowest first, until the best rate of each has neighbours on both sides.

    steps: k of the rates lr x factor^k that the first depth begins with; those that follow begin around the best of the
    one before. At most REACH steps beyond `steps` are tried. seeds: of the best rate and its neighbours.
    """
    trials: list[Trial] = []
    start, lowest, highest = steps, min(steps) - REACH, max(steps) + REACH
    first = command.args.seed

    def loss(depth: int, step: int, seed: int) -> float:
        trial = trial_of(run(proxy(command, depth, command.args.lr[0] * factor**step, seed, updates)))
        trials.append(trial)
        return trial.loss

    for depth in depths:
        tried: dict[int, float] = {}
        wanted = [step for step in start if lowest <= step <= highest]
        while wanted:
            tried |= {step: loss(depth, step, first) for step in wanted}
            wanted = neighbours(tried, lowest, highest)
        best = min(tried, key=tried.__getitem__)
        if math.isfinite(tried[best]):
            start = [best - 1, best, best + 1]
            for seed, step in itertools.product(range(first + 1, first + seeds), start):
                if step in tried:
                    loss(depth, step, seed)
    return trials


def coordinates(command: Command, depth: int, updates: int) -> dict[str, float]:
    """How far outputs have moved after some updates, by address: "decoder.6" a layer, "decoder" the stack.

    L2 norm over features of F(x, theta_i) - F(x, theta_0), mean over tokens, on one batch, without dropout. GENTLE of
    the command's --lr is reached in the last update. NaN where a training broke off.
    """
    layers = [word for stack, n in command.at(depth).items() for word in (f"--{stack}-layers", str(n))]
    args = parse([*command.words, *layers, "--no-save"])
    args.deepnet_probe = None  # it would write
    args.lr = [GENTLE * rate for rate in args.lr]
    if getattr(args, "warmup_updates", 0):
        args.warmup_updates = min(updates, args.warmup_updates)
    trainer = build_trainer(args)
    held = held_training_batch(trainer.get_train_iterator(1), trainer.device)  # Admin takes its profile here
    before = layer_outputs(trainer.get_model(), held)
    done = 0
    try:
        for samples in itertools.islice(batches(trainer), ATTEMPTS * updates):
            done += step(trainer, samples) is not None
            if done == updates:
                break
    except FloatingPointError:
        return dict.fromkeys(before, math.nan)
    after = layer_outputs(trainer.get_model(), held)
    return {address: (after[address] - x).norm(dim=-1).mean().item() for address, x in before.items()}


def kept_coordinates(command: Command, depth: int, updates: int, folder: Path | None) -> dict[str, float]:
    """coordinates(), beside the records if there is a folder for them, and read from there if it has them.

    UserError for those of another command.
    """
    if folder is None:
        return coordinates(command, depth, updates)
    shape = "-".join(map(str, dict.fromkeys(command.at(depth).values())))
    path, said = folder / f"{command.args.method}-{shape}-coordinates{updates}.json", shlex.join(command.words)
    if path.exists():
        known = read_object(path, "remove it")
        if known.get("command") != said:
            raise UserError(f"{path}: is of another command; name a new folder with --out")
        try:
            return {address: math.nan if x is None else float(x) for address, x in known["changes"].items()}
        except WRONG_VALUES as error:
            raise UserError(f"{path}: is broken ({error!r}); remove it") from error
    found = coordinates(command, depth, updates)
    changes = {address: x if math.isfinite(x) else None for address, x in found.items()}
    with whole(path) as part:
        part.write_text(json.dumps({"command": said, "changes": changes}, indent=1) + "\n", encoding="utf-8")
    return found


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder, made if it is not there, for one command at a time; UserError if another is at work in it.

    Where the file system knows no locks, whoever starts two commands sees to that.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            way_out = "wait for its end, or name another folder"
            raise UserError(f"--out {folder}: another `deepnet transfer` is at work in it; {way_out}") from error
        except OSError:
            pass
        yield
    finally:
        os.close(handle)


def growth(found: dict[int, dict[str, float]]) -> dict[str, float]:
    """Stack -> p of a change as depth^p, by the change of the stack's output at each depth.

    NaN where one broke off or did not move, and from fewer than two depths.
    """
    depths = list(found)
    stacks = [address for address in found[depths[0]] if "." not in address]
    x = np.log([float(depth) for depth in depths])
    with np.errstate(divide="ignore"):
        changes = {stack: np.log([found[depth][stack] for depth in depths]) for stack in stacks}
    known = {stack: len(depths) > 1 and bool(np.isfinite(y).all()) for stack, y in changes.items()}
    return {stack: float(np.polyfit(x, y, 1)[0]) if known[stack] else math.nan for stack, y in changes.items()}


def coordinates_table(found: dict[int, dict[str, float]], updates: int, width: int) -> str:
    """Rows of first, middle and last layers and of the stacks' outputs, columns of depths, and growth() of outputs."""
    grown = growth(found)
    rows = [["output of", *(f"{depth} layers" for depth in found), "as depth^"]]
    for stack, exponent in grown.items():
        own = {depth: [a for a in values if a.startswith(f"{stack}.")] for depth, values in found.items()}
        for name, part in (("first layer", 0.0), ("middle", 0.5), ("last", 1.0)):
            chosen = {depth: names[round(part * (len(names) - 1))] for depth, names in own.items()}
            rows.append([f"{stack}, {name}", *(f"{found[depth][a]:.3f}" for depth, a in chosen.items()), ""])
        rows.append(
            [
                stack,
                *(f"{values[stack]:.3f}" for values in found.values()),
                "-" if math.isnan(exponent) else f"{exponent:.2f}",
            ]
        )
    title = f"change of outputs in {updates} updates up to {GENTLE:g} of --lr, ||F(x, theta_i) - F(x, theta_0)||"
    title += f":\n\n{render(rows)}\n\n"
    return title + f"behind a LayerNorm outputs that have nothing in common are {math.sqrt(2 * width):.1f} apart"
