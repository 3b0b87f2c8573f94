"""Commands that train several methods and compare them: quickstart on a made language, compare on the user's data.

A command is a function of the parsed flags, `args`; args.rest are words that the parser does not know. Its docstring is
its help; both commands print by themselves.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import UserError
from . import parse_integers


def quickstart(args) -> None:
    """Train DeepNorm and Post-LN on a made language, translate, score, compare.

    The same deep model with DeepNorm and as vanilla Post-LN, on the same data with the same seed, budget and
    hyper-parameters; one that learns no more than how often each word occurs is stopped after a third of the updates.
    On two idle cores it takes 5 to 10 minutes. A second call skips what is done and resumes what is not. Ends with a
    table and OUT/loss.png. `deepnet compare` does the same on your own data.

    example:
      deepnet quickstart --methods deepnorm,pre_ln --out quickstart
    """
    from ..tools.quickstart import quickstart

    text = quickstart(
        methods=args.methods.split(","),
        depth=args.depth,
        updates=args.updates,
        seed=args.seed,
        out=Path(args.out),
        user_dir=args.user_dir,
    )
    print(text)


def compare(args) -> None:
    """Train methods at several depths and learning rates on your data.

    DATA is binarised data of one language pair, as of `deepnet prepare text`. Each method is trained at each depth with
    each rate and seed, with the same data, updates and flags. Flags of fairseq-train may follow, as --encoder-embed-dim
    128; one that is an option of a method goes to the trainings of that method alone. A second call skips what is done
    and resumes what is not. A training that diverges or is stuck is a result. Ends with a table of the best rates,
    OUT/records.jsonl with a JSON line a training, and the picture of --plot.

    example:
      deepnet compare quickstart/data --methods deepnorm,pre_ln --depths 6,18 --lrs 5e-4,1e-3 --updates 1200
    """
    from ..tools.compare import Grid, compare

    data, flags = data_and_flags(args.rest)
    grid = Grid(
        data=data,
        methods=args.methods.split(","),
        depths=parse_integers("--depths", args.depths, "6,18"),
        lrs=parse_rates("--lrs", args.lrs),
        seeds=parse_integers("--seeds", args.seeds, "1,2"),
        updates=args.updates,
        out=Path(args.out),
        jobs=args.jobs,
        flags=flags,
        warmup=args.warmup,
        user_dir=args.user_dir,
    )
    plot = Path(args.plot) if args.plot else None
    print(compare(grid, plot, as_json=args.json))


def data_and_flags(words: list[str]) -> tuple[Path, list[str]]:
    """Split words that the parser does not know into (DATA, flags of fairseq-train with their values).

    DATA is the first folder with dictionaries (dict.LANG.txt) among the words that do not begin with a hyphen. If none
    is such a folder, DATA is the first of these words, although it may be the value of a flag. UserError if all words
    begin with a hyphen.
    """
    places = [place for place, word in enumerate(words) if not word.startswith("-")]  # of DATA and of values of flags
    if not places:
        raise UserError("DATA", "give the folder of binarised data")

    chosen = places[0]
    for place in places:
        has_dictionaries = any(Path(words[place]).glob("dict.*.txt"))
        if has_dictionaries:
            chosen = place
            break
    return Path(words[chosen]), words[:chosen] + words[chosen + 1 :]


def parse_rates(flag: str, text: str) -> list[float]:
    """Parse `text`, a comma-separated list of learning rates; UserError, naming the flag, for anything else."""
    try:
        return [float(rate) for rate in text.split(",")]
    except ValueError as error:
        raise UserError(f"{flag} {text}", "give numbers with commas between, as 5e-4,1e-3") from error


def add(command) -> None:
    """Register `deepnet quickstart` and `compare`, with their flags.

    command: function (name, function, usage="") that makes a subcommand's parser and returns it, see __init__.
    """
    sub = command("quickstart", quickstart)
    sub.add_argument("--methods", default="deepnorm,post_ln", help="methods to train, with commas between, of those "
                     "that `deepnet methods` lists (default deepnorm,post_ln)")  # fmt: skip
    sub.add_argument("--depth", type=int, default=18, help="layers of the encoder, and of the decoder (default 18)")
    sub.add_argument("--updates", type=int, default=1200, help="number of updates of each training (default 1200)")
    sub.add_argument(
        "--seed", type=int, default=1, help="random seed of the trainings; the data are always the same (default 1)"
    )
    sub.add_argument("--out", default="quickstart", help="folder for data and runs (default quickstart)")

    sub = command("compare", compare, "DATA --methods NAME,NAME --updates U [...] [flags of fairseq-train]")
    sub.add_argument("--methods", "--method", required=True, metavar="M,M", help="methods to train: names "
                     "that `deepnet methods` lists, or of your own in --user-dir")  # fmt: skip
    sub.add_argument(
        "--depths", default="6", metavar="N,N", help="layers of the encoder, and of the decoder (default 6)"
    )
    sub.add_argument("--lrs", "--lr", default="1e-3", metavar="LR,LR", help="peak learning rates (default 1e-3)")
    sub.add_argument("--seeds", "--seed", default="1", metavar="S,S", help="random seeds, a training each; the table "
                     "has their mean and range (default 1)")  # fmt: skip
    sub.add_argument(
        "--updates", "--max-update", type=int, required=True, metavar="U", help="number of updates of each training"
    )
    sub.add_argument("--warmup", type=float, default=1 / 6, metavar="SHARE", help="share of the updates in which the "
                     "learning rate rises (default 1/6); raised to 2 / (1 - beta2) updates, or half of all, where it "
                     "is less")  # fmt: skip
    sub.add_argument("--jobs", type=int, metavar="J", help="number of trainings at a time (default: on a GPU 1, on a "
                     "CPU as many as cores and memory take, docs/compare.md)")  # fmt: skip
    sub.add_argument("--user-dir", metavar="FOLDER", help="folder with Python files that register your own methods")
    sub.add_argument("--plot", metavar="FILE", help="picture of the results to draw, a .pdf, .svg or .png")
    sub.add_argument("--json", action="store_true", help="print JSON, for programs to read, in place of the table")
    sub.add_argument(
        "--out", "--save-dir", default="compare", metavar="FOLDER", help="folder for the runs (default compare)"
    )
