"""Commands that tell whether a training will hold: by its first updates, and by DeepNet's theorems."""

from __future__ import annotations

import argparse
import json
import sys

from ..errors import UserError

SMALLEST_LR = 1e-10  # of `theory`; below it rounding in float64 shows


def check(args) -> None:
    """will this fairseq-train command train? The first updates, watched, and a verdict

    Takes every flag of fairseq-train: DATA and those of the run to come. Leaves no file behind. The exit status is 3
    where the verdict is "diverging".
    """
    from ..stability.short_training import train_briefly
    from ..stability.verdict import DIVERGING, LATEST, as_dict, judge, text

    if args.updates < 2 * LATEST:
        raise UserError(f"--updates {args.updates}: give at least {2 * LATEST}")
    if args.compress_warmup is not None and args.compress_warmup < 1:
        raise UserError(f"--compress-warmup {args.compress_warmup}: must be at least 1")
    if args.seconds <= 0:
        raise UserError(f"--seconds {args.seconds:g}: must be more than 0")
    flags = args.rest[1:] if args.rest[:1] == ["fairseq-train"] else args.rest
    training = train_briefly(flags, args.updates, args.compress_warmup, args.seconds, _progress)
    if sys.stderr.isatty():
        print(end="\r" + " " * 40 + "\r", file=sys.stderr)
    print(json.dumps(as_dict(training)) if args.json else text(training))
    if judge(training).kind == DIVERGING:
        sys.exit(3)


def _progress(update: int, loss: float) -> None:
    if sys.stderr.isatty():
        print(f"\rupdate {update + 1}, loss {loss:.2f} ", end="", file=sys.stderr, flush=True)


def theory(args) -> None:
    """bounds of DeepNet's Theorems 4.2 and 4.3 and the measured update of one SGD step, over depth

    Models with LN(alpha x + f(x)) only, built at N = M layers and freshly initialised; the batch is random tokens.
    """
    from ..text_table import render
    from ..theory.growth import as_dict, as_table, check_arch, check_method, measure, slopes

    check_arch(args.arch)
    if not SMALLEST_LR <= args.lr <= 1:
        raise UserError(f"--lr {args.lr}: must be at least {SMALLEST_LR} and at most 1")
    methods, depths = args.method.split(","), _depths(args.depths)
    for method in methods:
        check_method(method)
    found = {
        m: [measure(m, depth, args.arch, args.lr, args.init_profile, args.seed) for depth in depths] for m in methods
    }
    if args.json:
        settings = {"arch": args.arch, "lr": args.lr, "seed": args.seed, "init_profile": args.init_profile}
        rows = [as_dict(row) for rows in found.values() for row in rows]
        print(json.dumps(settings | {"rows": rows, "slopes": {m: slopes(rows) for m, rows in found.items()}}))
        return
    print(render(as_table([row for rows in found.values() for row in rows])))
    print(
        f"\nbounds, and measured updates of encoder output and decoder features, per unit of --lr ({args.lr:g})\n"
        "|v,w|: mean sqrt(v^2 + w^2), Xavier is 1.414; ratio: update over bound; slope: p of a growth as N^p\n"
        "all moved: the model's update when biases, LayerNorms, embeddings, q and k take the step too"
    )


def _depths(text: str) -> list[int]:
    try:
        depths = [int(word) for word in text.split(",")]
    except ValueError as error:
        raise UserError(f"--depths {text}: give whole numbers with commas between, as in 6,18,50") from error
    if min(depths) < 1:
        raise UserError(f"--depths {text}: a stack needs at least 1 layer")
    return depths


def add(command) -> None:
    """Registers `deepnet check` and `theory` and their flags; command: as parser() gives it."""
    sub = command("check", check)
    sub.add_argument("--updates", type=int, default=40, help="how many to watch (default 40)")
    sub.add_argument("--seconds", type=float, default=60, help="stop earlier after so long (default 60)")
    sub.add_argument("--compress-warmup", type=int, metavar="K", help="reach the peak learning rate after K updates")
    sub.add_argument("--json", action="store_true")
    sub.set_defaults(passes_flags_on=True)
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.usage = "deepnet check [--updates N] [--seconds S] [--compress-warmup K] [--json] DATA [flags of fairseq-train]"
    sub.allow_abbrev = False

    sub = command("theory", theory)
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.add_argument("--method", default="deepnorm,post_ln", metavar="METHODS", help="default deepnorm,post_ln")
    sub.add_argument("--depths", default="6,18,50,100", help="layers of each stack, default 6,18,50,100")
    sub.add_argument("--arch", default="deepnet_transformer_tiny", help="gives the widths; default the tiny one")
    sub.add_argument("--lr", type=float, default=1e-4, help="default 1e-4, where the update is linear in it")
    sub.add_argument("--init-profile")
    sub.add_argument("--seed", type=int, default=1, help="of weights and tokens")
    sub.add_argument("--json", action="store_true")
