"""`deepnet bench`: speed and memory, ours beside stock fairseq and torchscale."""

from __future__ import annotations

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
        print(rendered(args.render))
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


def rendered(path: str) -> str:
    """The tables of a recorded benchmark in Markdown; UserError, naming the file, if it is none."""
    from ..files import WRONG_VALUES, read_object
    from ..tools.bench.results import render

    mend = "is not what `deepnet bench --out` writes"
    measurements = read_object(Path(path), mend)
    try:
        return render(measurements)
    except WRONG_VALUES as error:
        raise UserError(f"--render {path}: {mend}") from error


def add(command) -> None:
    """Registers `deepnet bench` and its flags; command: as parser() gives it."""
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
