"""Commands for a new installation: where it is, and whether it works."""

from __future__ import annotations

from pathlib import Path


def quickstart(args) -> None:
    """Train DeepNorm and Post-LN on a made language, translate, score, compare.

    The same deep model with DeepNorm and as vanilla Post-LN, on the same data with the same seed, budget and
    hyper-parameters; one that learns no more than how often each word occurs is stopped after a third of the updates.
    Under 10 minutes on 2 CPU cores. A second call skips what is done and resumes what is not. Ends with a table and
    OUT/loss.png.

    example:
      deepnet quickstart --methods deepnorm,pre_ln --out quickstart
    """
    from ..tools.quickstart import Setting, compare

    methods = tuple(args.methods.split(","))
    print(compare(Setting(methods, args.depth, args.updates, args.seed, Path(args.out))))


def add(command) -> None:
    """Registers `deepnet quickstart`; command: as parser() gives it."""
    sub = command("quickstart", quickstart)
    sub.add_argument("--methods", default="deepnorm,post_ln", help="any that `deepnet methods` lists, with commas "
                     "between (default deepnorm,post_ln)")  # fmt: skip
    sub.add_argument("--depth", type=int, default=18, help="layers of encoder and of decoder (default 18)")
    sub.add_argument("--updates", type=int, default=1200, help="updates of each training (default 1200)")
    sub.add_argument("--seed", type=int, default=1, help="seed of data and trainings (default 1)")
    sub.add_argument("--out", default="quickstart", help="folder of data and runs (default quickstart)")
