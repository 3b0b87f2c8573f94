"""What a new installation is asked first: where it is, whether it works, what a YAML trains."""

from __future__ import annotations

from pathlib import Path

from .. import register


def path(args) -> None:
    """the package's folder: fairseq-train --user-dir "$(deepnet path)"

    For fairseq's programs, wherever the package is installed.
    """
    print(Path(__file__).resolve().parents[1])


def quickstart(args) -> None:
    """train by two methods on the embedded corpus, translate, score, compare

    The same deep model with DeepNorm and as vanilla Post-LN, on the same data with the same seed, budget and
    hyper-parameters; one that learns no more than how often each word occurs is stopped after a third of the updates.
    Under 10 minutes on 2 CPU cores. A second call skips what is done and resumes what is not. Ends with a table and
    OUT/loss.png.
    """
    from ..tools.quickstart import Setting, compare

    methods = tuple(args.methods.split(","))
    print(compare(Setting(methods, args.depth, args.updates, args.seed, Path(args.out))))


def train(args) -> None:
    """a training from a YAML, as fairseq-hydra-train, with each mistake in the file in one line

    FILE is one of configs/, or one's own; KEY=VALUE, +KEY=VALUE and ~KEY change it as they do there. It runs in the
    folder where it is called, makes none of hydra's folders, and has no -m. docs/yaml.md.
    """
    register()
    from ..plugin import yaml_file

    yaml_file.train(Path(args.config), args.settings)


def add(command) -> None:
    """Registers `deepnet path`, `quickstart` and `train`; command: as parser() gives it."""
    command("path", path)
    sub = command("quickstart", quickstart)
    sub.add_argument("--methods", default="deepnorm,post_ln", help="any that `deepnet methods` lists, with commas "
                     "between (default deepnorm,post_ln)")  # fmt: skip
    sub.add_argument("--depth", type=int, default=18, help="layers of encoder and of decoder (default 18)")
    sub.add_argument("--updates", type=int, default=1200, help="default 1200")
    sub.add_argument("--seed", type=int, default=1, help="default 1")
    sub.add_argument("--out", default="quickstart", help="folder of data and runs (default quickstart)")

    sub = command("train", train)
    sub.add_argument("--config", required=True, metavar="FILE", help="a YAML of fairseq's settings")
    sub.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="task.data=/text, +model.encoder_layers=50")
