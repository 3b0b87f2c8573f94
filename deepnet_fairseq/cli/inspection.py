"""Commands that look at a training to come (check), at weights (verify), and at this installation (path).

A command is a function of the parsed flags, `args`; args.rest are words that the parser does not know. Its docstring is
its help, and __init__.py prints the Shown that it returns: text, data for --json, and exit status. register() lets
fairseq know the package's models.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .. import register
from ..errors import UserError
from . import Shown
from .methods import options_of


def check(args) -> Shown:
    """Watch a training's first updates, and say whether it will train.

    Takes every flag of fairseq-train: DATA and those of the run to come. The verdict is "stable", "at risk",
    "diverging" (status 3), or "unknown" after too few updates (status 1). Leaves no file behind. docs/probes.md
    says how often it is right.

    example:
      deepnet check --compress-warmup 20 fairseq-train DATA --arch deepnet_transformer_50_50 --max-tokens 4096 \\
          --optimizer adam --lr 1e-3 --lr-scheduler inverse_sqrt --warmup-updates 4000
    """
    register()
    from ..tools.check import DIVERGING, UNKNOWN, WINDOW, as_dict, judge, train_briefly, verdict_text

    least = {"updates": 2 * WINDOW, "compress_warmup": 1, "seconds": 1}  # flag -> its lowest value
    for name, minimum in least.items():
        given = getattr(args, name)
        if given is not None and given < minimum:
            raise UserError(f"--{name.replace('_', '-')} {given:g}", f"give at least {minimum}")
    flags = args.rest[1:] if args.rest[:1] == ["fairseq-train"] else args.rest  # the word may be left out

    def progress(update: int, loss: float) -> None:
        """On a terminal, print an update's loss in place of the line of the update before; update: counted from 0."""
        if sys.stderr.isatty():
            print(f"\rupdate {update + 1}, loss {loss:.2f} ", end="", file=sys.stderr, flush=True)

    short_training = train_briefly(
        flags, updates=args.updates, warmup=args.compress_warmup, seconds=args.seconds, progress=progress
    )
    if sys.stderr.isatty():
        print(end="\r" + " " * 40 + "\r", file=sys.stderr)  # wipes the line of progress

    statuses = {DIVERGING: 3, UNKNOWN: 1}
    status = statuses.get(judge(short_training).kind, 0)
    return Shown(verdict_text(short_training), as_dict(short_training), status)


def verify(args) -> Shown:
    """Check anybody's model against a method's formulas.

    Compared are the deviation of each kind of weight at the start, and the factors of the shortcuts. MODEL is a
    checkpoint of ours, fairseq's or torchscale's, a .safetensors file, a Hugging Face folder with one, or a saved
    state dict. Code in it is not run. The status is 3 where something does not fit; then the audit says what it is
    instead. A live module is audited from Python, docs/verify.md.

    example:
      deepnet verify checkpoints/checkpoint_last.pt --method deepnorm
    """
    from ..core.methods import get_method
    from ..tools.verify import verify
    from ..tools.verify.reading import read_names

    rename = read_names(Path(args.names)) if args.names else str  # str returns a name as it is
    options = options_of(get_method(args.method), args.option)
    audit = verify(args.model, args.method, options=options, rename=rename)
    return Shown(audit.text(), audit.as_dict(), status=0 if audit.fits else 3)


def path(args) -> Shown:
    """Print the package's folder, for fairseq's --user-dir.

    example:
      fairseq-train DATA --user-dir "$(deepnet path)" --arch deepnet_transformer_18_18 ...
    """
    if args.environment:
        from ..tools.environment import environment

        facts = environment(args.gpus)
        return Shown(json.dumps(facts, indent=1), facts)
    folder = str(Path(__file__).resolve().parents[1])
    return Shown(folder, {"path": folder})


def add(command) -> None:
    """Register `deepnet check`, `verify` and `path`, with their flags.

    command: function (name, function, usage="") that makes a subcommand's parser and returns it, see __init__.
    """
    sub = command("check", check, "[options] fairseq-train DATA [flags of fairseq-train]")
    sub.add_argument("--updates", type=int, default=40, metavar="N", help="number of updates to watch (default 40)")
    sub.add_argument(
        "--seconds",
        type=float,
        default=60,
        metavar="S",
        help="end after S seconds, even with fewer updates (default 60)",
    )
    sub.add_argument(
        "--compress-warmup", type=int, metavar="K", help="reach the peak learning rate after K updates already"
    )

    sub = command("verify", verify)
    sub.add_argument("model", metavar="MODEL", help="file of weights, or folder with one")
    sub.add_argument("--method", required=True, metavar="NAME", help="method whose formulas to compare with")
    sub.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the method, as base_depth=4; may be given again for others",
    )
    sub.add_argument("--names", metavar="FILE", help="TOML file that gives weights fairseq's names, see docs/verify.md")

    sub = command("path", path)
    sub.add_argument("--environment", action="store_true", help="print commit, versions and hardware instead, as JSON")
    sub.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="with --environment: describe N GPUs; 0, the default: the CPU"
    )
