"""`deepnet bench`, ours beside stock fairseq and torchscale; `deepnet deployed`, a checkpoint where it is used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from .. import register
from ..errors import UserError
from . import numbers

MEASURES = "build,train,memory,generate,checkpoint"
ON_GPU = "kernels"  # one more measure


def bench(args) -> None:
    """speed and memory of this model beside stock fairseq's and torchscale's

    All candidates of a depth and width run in turn in this process, on the same batches. Results go to --out as JSON,
    whole after each depth and width; a table goes to the standard output.
    """
    if args.render:
        from ..tools.bench.results import render

        print(rendered([args.render], "bench", lambda records: render(records[0])))
        return
    import torch

    register()
    from ..files import check_file
    from ..tools.bench.results import failures, render, run
    from ..tools.bench.settings import Settings, candidates, shapes

    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    measures = MEASURES if args.device == "cpu" else f"{MEASURES},{ON_GPU}"
    only = tuple((args.only or measures).split(","))
    if unknown := set(only) - set(measures.split(",")):
        known = f"there are {measures}" if args.device == "cuda" else f"there are {measures}; {ON_GPU} on a GPU"
        raise UserError(f"--only {','.join(sorted(unknown))}: no measure; {known}")
    out = args.out and Path(args.out)
    if out:
        check_file("--out", out)
    found = candidates(args.candidates, args.method, args.optimizer, args.ours, tuple(args.variant))
    args.max_tokens = args.max_tokens or (4096 if args.device == "cuda" else 512)
    for name in ("sentences", "beams"):
        setattr(args, name, tuple(numbers(f"--{name}", getattr(args, name), "1,32")))
    settings = Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)})
    measurements = run(shapes(args.depths, args.widths), found, settings, only, out)
    print(render(measurements))
    if failed := failures(measurements):
        raise UserError(f"failed: {'; '.join(failed)}")


def rendered(paths: list[str], command: str, render: Callable[[list[dict]], str]) -> str:
    """Tables in Markdown of what `command` recorded; UserError, naming the files, if they are nothing of it."""
    from ..files import WRONG_VALUES, read_object

    mend = f"is not what `deepnet {command} --out` writes"
    records = [read_object(Path(path), mend) for path in paths]
    try:
        return render(records)
    except WRONG_VALUES as error:
        raise UserError(f"--render {' '.join(paths)}: {mend}") from error


def deployed(args) -> None:
    """one checkpoint translated by fairseq-generate (stock, ours), CTranslate2 and transformers: speed, BLEU, size

    Each run is a process of its own, in rounds. --out is written after each round; a second call makes those that it
    lacks. What cannot run here, as a library that is missing, says so in the table.
    """
    if args.render:
        from ..tools.bench.deployed_table import render

        print(rendered(args.render, "deployed", render))
        return
    if not (args.checkpoint and args.data and args.out):
        raise UserError("deployed: give CHECKPOINT, DATA and --out FILE, or --render FILE")
    register()
    from ..files import check_file
    from ..tools.bench.deployed import Settings, run
    from ..tools.bench.deployed_table import render
    from ..tools.bench.results import failures

    check_file("--out", Path(args.out), (Path(args.checkpoint),))
    for name in ("batches", "candidates"):
        setattr(args, name, tuple(getattr(args, name).split(",")))
    args.versions = tuple(args.version)
    record = run(Settings(**{field.name: getattr(args, field.name) for field in fields(Settings)}), Path(args.out))
    print(render([record]))
    if failed := failures(record):
        raise UserError(f"failed: {'; '.join(failed)}")


def add(command) -> None:
    """Registers `deepnet bench`, `deployed` and their flags; command: as parser() gives it."""
    add_deployed(command("deployed", deployed))
    sub = command("bench", bench)
    add_what(sub)
    sub.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    sub.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    sub.add_argument("--max-tokens", type=int, help="of a batch (default 4096, on a CPU 512)")
    sub.add_argument("--checkpoint-activations", action="store_true", help="in training, for all candidates")
    sub.add_argument("--dropout", type=float, default=0.1, help="default %(default)s")
    sub.add_argument("--vocabulary", type=int, default=10_000, help="types of the shared dictionary (default 10,000)")
    sub.add_argument("--lengths", metavar="FILE", help="lines SOURCE TARGET, to draw lengths from (default: IWSLT-14)")
    sub.add_argument("--sentences", default="1,32", help="of the batches to translate (default %(default)s)")
    sub.add_argument("--beams", default="1,5", help="default %(default)s")
    sub.add_argument("--warmup", type=int, default=2, help="steps before the first that counts (default %(default)s)")
    sub.add_argument("--repeats", type=int, default=5, help="default %(default)s")
    sub.add_argument("--seconds", type=float, default=600, help="limit for a candidate in a cell (default %(default)g)")
    sub.add_argument("--clock", choices=("wall", "process"), default="wall", help="process: on a machine in use")
    sub.add_argument("--seed", type=int, default=1)
    sub.add_argument("--out", metavar="FILE", help="JSON to write")
    sub.add_argument("--render", metavar="FILE", help="only print the table of this JSON")


def add_deployed(sub) -> None:
    """Flags of `deepnet deployed`."""
    sub.add_argument("checkpoint", nargs="?", metavar="CHECKPOINT", help="of a translation model that folds")
    sub.add_argument("data", nargs="?", metavar="DATA", help="its binarised data")
    sub.add_argument("--out", metavar="FILE", help="the record, JSON, to write or to go on with")
    sub.add_argument("--subset", default="test", help="default %(default)s")
    sub.add_argument("--sentences", type=int, default=1000, help="the first so many (default %(default)s)")
    sub.add_argument("--alone", type=int, default=100, help="and so many one at a time (default %(default)s)")
    kinds = "default (fairseq's, of 12,000 tokens), 32 and 1 (sentences); default: all"
    sub.add_argument("--batches", default="default,32,1", help=f"some of {kinds}")
    programs = "stock,ours,ctranslate2,ctranslate2-int8,transformers"
    sub.add_argument("--candidates", default=programs, help="default %(default)s")
    other = "also ours in another version, by its folder deepnet_fairseq"
    sub.add_argument("--version", action="append", default=[], metavar="NAME=FOLDER", help=other)
    sub.add_argument("--beam", type=int, default=5, help="default %(default)s")
    found = "spm.model or codes beside the data"
    sub.add_argument("--subwords", default="", metavar="FILE", help=f"what cut the text, by default {found}")
    sub.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    sub.add_argument("--threads", type=int, default=1, help="default %(default)s")
    sub.add_argument("--seconds", type=float, default=3600, help="limit for a run (default %(default)g)")
    sub.add_argument("--render", nargs="+", metavar="FILE", help="only print the table of these records")


def add_what(sub) -> None:
    """Flags that say who is measured, at which sizes, by which measures."""
    depths = "6-6,18-18,100-100,500-500"
    sub.add_argument("--depths", default=depths, help=f"ENCODER-DECODER layers (default {depths})")
    sub.add_argument(
        "--widths", default="tiny,base", help="of `deepnet archs`: tiny, base, large (default %(default)s)"
    )
    sub.add_argument("--only", help=f"some of {MEASURES}, and on a GPU {ON_GPU} (default: all)")
    sub.add_argument("--candidates", default="ours,stock,torchscale", help="default %(default)s")
    sub.add_argument("--method", default="post_ln", help="of our model (default %(default)s, what the others compute)")
    sub.add_argument("--optimizer", default="deepnet_adam", help="of our model (default %(default)s)")
    sub.add_argument("--ours", default="", metavar="FLAGS", help="further flags of our model, in one string")
    sub.add_argument(
        "--variant", action="append", default=[], metavar="NAME=FLAGS", help="our model once more with FLAGS besides"
    )
