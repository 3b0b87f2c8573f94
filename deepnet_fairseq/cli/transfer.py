"""The command that carries a learning rate over depth."""

from __future__ import annotations

import json
import math
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

from .. import register
from ..errors import UserError
from . import numbers

SEARCH = {"factor": 2.0, "steps": 2, "seeds": 1}  # flags and their defaults
OF_COMMAND = SEARCH | {"depths": "6,12,18", "updates": None, "coordinates": 3, "out": None}
OF_RUNS = ("up_to", "target")


def transfer(args) -> None:
    """the best learning rate of a deep model, from short trainings of shallow ones at several rates

    Takes a fairseq-train command: DATA and its flags. Trains it at --depths and at rates around its --lr, says where
    the best rate lies at each depth and what follows at the command's own; or, with --runs, says it of trainings that
    are there. What is trained is kept in --out, and not trained again. The exit status is 3 where rates were asked for
    and none is recommended. docs/transfer.md
    """
    from ..files import check_file, whole
    from ..study.optimum import NOISE

    if not args.runs and not args.rest:
        raise UserError("give a fairseq-train command, DATA and its flags, or --runs with a folder of trainings")
    _refuse_idle(args)
    for name, default in (OF_COMMAND | {"noise": NOISE}).items():
        setattr(args, name, default if getattr(args, name) is None else getattr(args, name))
    if not 0 < args.noise < math.inf:
        raise UserError(f"--noise {args.noise:g}: must be more than 0")
    if args.json:
        check_file("--json", Path(args.json))
    said = _of_runs(args) if args.runs else _of_command(args)
    if args.json:
        with whole(Path(args.json)) as part:
            part.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    advice = [told for one in said["transfers"] for told in one["advice"]]
    if advice and all("refused" in told for told in advice):
        sys.exit(3)


def _refuse_idle(args) -> None:
    """UserError for a flag that would change nothing."""
    idle: tuple[str, ...] = OF_RUNS
    why = "goes with --runs alone"
    if args.runs:
        idle, why = tuple(OF_COMMAND), "with --runs nothing is trained"
    elif args.updates == 0:
        idle, why = (*OF_RUNS, *SEARCH, "noise"), "with --updates 0 nothing is trained"
    for name in idle:
        if getattr(args, name) is not None:
            raise UserError(f"--{name.replace('_', '-')}: {why}; drop it")


def _of_runs(args) -> dict:
    from ..study.runs import recorded_below
    from ..study.transfer import analyse
    from ..study.transfer_report import as_dict, held_out, text
    from ..study.trials import by_method, counted, trial_of
    from ..text_table import render

    if args.rest:
        raise UserError(f"unknown: {' '.join(args.rest)}; with --runs no command is given")
    targets = numbers("--target", args.target, "50,100") if args.target else []
    if min(targets, default=1) < 1:
        raise UserError(f"--target {args.target}: a stack needs at least 1 layer")
    wanted = args.method.split(",") if args.method else None
    groups = by_method(trial_of(run) for run in recorded_below(Path(args.runs), over=True))
    groups = [group for group in groups if wanted is None or group[0].method in wanted]
    if not groups:
        raise UserError(f"--runs {args.runs}: holds no finished runs{' of ' + args.method if args.method else ''}")
    known = [[t for t in group if args.up_to is None or t.layers <= args.up_to] for group in groups]
    if not any(known):
        shallowest = min(trial.layers for group in groups for trial in group)
        raise UserError(f"--up-to {args.up_to}: no run is that shallow; the shallowest has {counted(shallowest)}")
    transfers = [analyse(group, args.noise) for group in known if group]
    print("\n\n".join(text(one, targets) for one in transfers))
    if args.up_to is not None and targets:
        print(f"\npredicted from depths to {args.up_to}, beside what was found:\n")
        print(render(held_out(groups, args.up_to, targets, args.noise)))
        print("\nerror: octaves, of the rate found; factor: found over predicted; lost: bits at the tried rate nearest")
        print("to the one before it, against the best, all: nothing was learnt, -: none lies within half an octave")
    return as_dict(transfers, targets, {})


def _of_command(args) -> dict:
    register()
    import torch

    from ..study.transfer import analyse
    from ..study.transfer_report import as_dict, text
    from ..tools.environment import environment
    from ..tools.transfer import PART, coordinates_table, held, kept_coordinates, read_command, search, train

    words = args.rest[1:] if args.rest[:1] == ["fairseq-train"] else args.rest
    command = read_command([*words, *(["--method", args.method] if args.method else [])])
    depths = sorted(set(numbers("--depths", args.depths, "6,12,18")))
    length = int(command.args.max_update)
    updates = max(1, length // PART) if args.updates is None else args.updates
    for flag, least in (("steps", 1), ("seeds", 1), ("coordinates", 0)):
        if getattr(args, flag) < least:
            raise UserError(f"--{flag} {getattr(args, flag)}: must be at least {least}")
    if not 0 <= updates <= length:
        raise UserError(f"--updates {updates}: must be from 0 to --max-update, {length}")
    if not 1 < args.factor < math.inf:
        raise UserError(f"--factor {args.factor:g}: must be more than 1")
    if not updates and not args.coordinates:
        raise UserError("--updates 0: leaves the coordinate check alone, and --coordinates 0 not even that; drop one")
    if updates and not args.out:
        raise UserError("--out: name a folder for the short trainings; what is in it is not trained again")
    for depth in depths:
        command.at(depth)
    folder = Path(args.out) if args.out else None
    said: dict = {"command": shlex.join(["fairseq-train", *command.words])}
    said |= {"environment": environment(0 if command.args.cpu else torch.cuda.device_count())}

    def run(one):
        known = train(command, one, Path(args.out))
        print(f"{one.name}: {_ended(known)}", file=sys.stderr, flush=True)
        return known

    with held(folder) if folder else nullcontext():
        n = args.coordinates
        moved = {depth: kept_coordinates(command, depth, n, folder) for depth in depths if n}
        if moved:
            print(coordinates_table(moved, n, command.width) + "\n", flush=True)
        if not updates:
            return as_dict([], [], moved) | said
        trials = search(command, depths, [-args.steps, 0, args.steps], args.factor, updates, args.seeds, run)
    found, targets = analyse(trials, args.noise), [command.depth]
    print(text(found, targets))
    return as_dict([found], targets, moved) | said


def _ended(run) -> str:
    from ..study.trials import loss_of

    return run.parts.get("diverged") or run.parts.get("stuck") or f"{loss_of(run):.3f} bits"


def add(command) -> None:
    """Registers `deepnet transfer` and its flags; command: as parser() gives it."""
    sub = command(
        "transfer", transfer, "--out FOLDER [options] DATA [flags of fairseq-train] | --runs FOLDER [options]"
    )
    sub.add_argument("--out", metavar="FOLDER", help="a record of each short training")
    sub.add_argument("--depths", help="layers of the short trainings (default 6,12,18)")
    sub.add_argument("--factor", type=float, help="from a rate to the next (default 2)")
    sub.add_argument("--steps", type=int, help="of it from --lr to the first rates below and above, before "
                     "those beside the best (default 2)")  # fmt: skip
    sub.add_argument(
        "--updates",
        type=int,
        help="of a short training (default a tenth of --max-update), 0 for the coordinate check alone",
    )
    sub.add_argument("--seeds", type=int, help="of the best rate and its neighbours (default 1)")
    sub.add_argument("--coordinates", type=int, metavar="N", help="updates of the coordinate "
                     "check, 0 for none (default 3)")  # fmt: skip
    sub.add_argument("--noise", type=float, help="bits that seeds differ by, of one seed (default 0.02)")
    sub.add_argument("--runs", metavar="FOLDER", help="trainings that are there: folders or records")
    sub.add_argument("--method", metavar="METHODS", help="with --runs, only these; else fairseq-train's")
    sub.add_argument("--up-to", type=int, metavar="LAYERS", help="with --runs, go by depths to this one")
    sub.add_argument("--target", metavar="LAYERS", help="with --runs, depths to recommend a rate for, as 50,100")
    sub.add_argument("--json", metavar="FILE", help="what was found, for --transfer of `deepnet plan` and `check`")
