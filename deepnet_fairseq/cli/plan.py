"""`deepnet plan`, which says what a training will need: memory, time and flags that make it fit.

The command is a function of the parsed flags, `args`; args.rest are the flags of fairseq-train and others that
tools/plan parses.
"""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import UserError
from ..files import whole


def plan(args) -> None:
    """Compute parameters, memory and time of a training, or of many (--rows).

    Says which flags make it fit into the memory of a GPU.
    Takes those flags of fairseq-train on which memory and time depend: --arch and all flags of the model
    (--encoder-layers, --method, --share-all-embeddings, --dropout, --checkpoint-activations, ...), --max-tokens (of one
    GPU), --update-freq, --fp16, --bf16, --memory-efficient-fp16, --memory-efficient-bf16, --optimizer, --criterion,
    --zero-sharding, --cpu; and beside them

      --vocab SIZE[,SIZE]   symbols of the vocabulary, or of source's and target's (default 32000)
      --length TOKENS       tokens of a sentence, or of a language model's sample (default 32, or 1024)
      --gpus N              number of GPUs of the training (default 1)
      --gpu-memory GIB      memory of each GPU (default 80)

    How it is computed, and how far it is from measured peaks: docs/planning.md.

    example:
      deepnet plan --arch deepnet_transformer_100_100 --max-tokens 4096 --update-freq 16 --gpus 8 --fp16 --flops 100
    """
    from ..tools.plan.setting import check_number, parse_setting
    from ..tools.plan.summary import as_dict, as_text

    for name in ("flops", "updates", "epochs", "corpus_tokens", "side_by_side"):
        given = getattr(args, name)
        if given is not None:
            check_number(f"--{name.replace('_', '-')}", given)

    if args.rows:  # a file of trainings, a line NAME FLAGS each
        _rows(args)
        return
    if args.chosen:
        raise UserError(f"--chosen {args.chosen}", "is only for many trainings; give their file by --rows too")
    setting = parse_setting(args.rest)
    speed = _speed(args, setting)
    if args.json:
        print(json.dumps(as_dict(setting, speed)))
    else:
        print(as_text(setting, speed))


def _rows(args) -> None:
    """Print the plan of many trainings, one a line of the file --rows.

    args: the flags of `deepnet plan`. The file --chosen, if it is given, gets a line for each training: its name, a
    tab, and the flags that make it fit, or "!" if none do. UserError for flags that have no effect with --rows, and for
    a file without a training.
    """
    # imported here because it needs more than torch, and the plan of one training does not
    from ..data.lines import read_lines
    from ..tools.plan import rows

    if args.rest:
        raise UserError("--rows", "the flags of each training stand in its line; drop them here")
    for name in ("json", "updates", "epochs", "corpus_tokens"):
        if getattr(args, name):
            raise UserError(f"--{name.replace('_', '-')}", "has no effect with --rows; leave it out")
    if args.rows != "-" and not Path(args.rows).exists():
        raise UserError(f"--rows {args.rows}", "no such file")

    trainings = rows.read_rows(read_lines(Path(args.rows)), args.flops)
    if not trainings:
        raise UserError(f"--rows {args.rows}", "no training in it; give a line NAME FLAGS for each")

    if args.chosen:
        with whole(Path(args.chosen)) as path:
            path.write_text("".join(f"{row.name}\t{row.flags}\n" for row in trainings))
    print(rows.as_text(trainings, args.flops, args.side_by_side))


def _speed(args, setting):
    """Return what tools.plan.needs.speed computes from --flops: time and rate of a training; None without that flag.

    args: the flags of `deepnet plan`; setting: the training, a tools.plan.setting.Setting. UserError for --epochs
    without --corpus-tokens, and for --epochs or --updates without --flops.
    """
    from ..tools.plan.needs import TERA, speed, updates_of

    if args.epochs is not None and args.corpus_tokens is None:
        raise UserError("--epochs", "give --corpus-tokens, the target tokens of the training data")
    updates = args.updates if args.epochs is None else updates_of(setting, args.epochs, args.corpus_tokens)

    if args.flops is not None:
        return speed(setting, args.flops * TERA, updates)
    if updates is not None:
        raise UserError("--updates and --epochs", "the hours depend on a GPU's speed; add --flops TFLOPS")
    return None


def add(command) -> None:
    """Register `deepnet plan` and its flags.

    command: function (name, function, usage="") that makes a subcommand's parser and returns it, see __init__.
    """
    sub = command("plan", plan, "[--arch ARCH] [--vocab SIZE] [--max-tokens N] [--gpus N] [flags of fairseq-train]")
    sub.add_argument(
        "--json", action="store_true", help="print a line of JSON instead of tables, in bytes, FLOP and seconds"
    )
    sub.add_argument(
        "--flops", type=float, metavar="TFLOPS", help="TFLOP/s that one GPU achieves in training, to compute the time"
    )
    length = sub.add_mutually_exclusive_group()
    length.add_argument("--updates", type=int, metavar="N", help="length of the training in updates; needs --flops")
    length.add_argument(
        "--epochs", type=float, metavar="E", help="length of the training in epochs; needs --corpus-tokens and --flops"
    )
    sub.add_argument(
        "--corpus-tokens", type=int, metavar="N", help="number of target tokens in the training data, for --epochs"
    )
    sub.add_argument(
        "--rows",
        metavar="FILE",
        help="plan many trainings, for each of which FILE has a line NAME FLAGS (-: standard input)",
    )
    sub.add_argument(
        "--chosen", metavar="FILE", help="with --rows: file to write, with each NAME and the flags that make it fit"
    )
    sub.add_argument(
        "--side-by-side",
        type=int,
        default=1,
        metavar="N",
        help="with --rows: trainings at a time, for time and disk (default 1)",
    )
