"""`deepnet bench`: speed and memory, ours beside stock fairseq and torchscale."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import UserError


def bench(args) -> None:
    """speed and memory of this model beside stock fairseq's and torchscale's

    All candidates of a depth and width run in turn in this process, on the same batches. Results go to --out as JSON,
    whole after each depth and width; a table goes to the standard output.
    """
    import torch

    from ..bench.candidate import candidates
    from ..bench.markdown import render
    from ..bench.report import run
    from ..bench.settings import MEASURES, PRECISIONS, Settings, shapes
    from ..whole_file import check_file

    if args.render:
        print(render(json.loads(Path(args.render).read_text(encoding="utf-8"))))
        return
    out = args.out and Path(args.out)
    if out:
        check_file("--out", out)
    only = tuple(args.only.split(","))
    if unknown := set(only) - set(MEASURES):
        raise UserError(f"--only {', '.join(sorted(unknown))}: no measure; there are {', '.join(MEASURES)}")
    if args.precision not in PRECISIONS:
        raise UserError(f"--precision {args.precision}: there are {', '.join(PRECISIONS)}")
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    settings = Settings(
        device=device,
        precision=args.precision,
        max_tokens=args.max_tokens or (512 if device == "cpu" else 4096),
        vocabulary=args.vocabulary,
        dropout=args.dropout,
        lengths=args.lengths,
        seed=args.seed,
        warmup=args.warmup,
        repeats=args.repeats,
        seconds=args.seconds,
        clock=args.clock,
        sentences=tuple(map(int, args.sentences.split(","))),
        beams=tuple(map(int, args.beams.split(","))),
        checkpoint_activations=args.checkpoint_activations,
    )
    found = candidates(args.candidates, args.method, args.optimizer, args.ours, tuple(args.variant))
    print(render(run(shapes(args.depths, args.widths), found, settings, only, out)))


def add(command) -> None:
    sub = command("bench", bench)
    sub.add_argument(
        "--depths", default="6-6,18-18,100-100,500-500", help="ENCODER-DECODER layers (default %(default)s)"
    )
    sub.add_argument("--widths", default="tiny,base", help="of `deepnet archs` (default %(default)s)")
    sub.add_argument("--candidates", default="ours,stock,torchscale", help="default %(default)s")
    sub.add_argument("--only", default="build,train,memory,generate,checkpoint", help="measures (default: all)")
    sub.add_argument("--method", default="post_ln", help="of our model (default %(default)s, what the others compute)")
    sub.add_argument("--optimizer", help="of our model (default: deepnet_adam where there is one, else adam)")
    sub.add_argument("--ours", default="", metavar="FLAGS", help="further flags of our model, in one string")
    sub.add_argument(
        "--variant", action="append", default=[], metavar="NAME=FLAGS", help="our model once more with FLAGS besides"
    )
    sub.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    sub.add_argument("--precision", default="fp32", help="fp32, bf16 or fp16 (default %(default)s)")
    sub.add_argument("--max-tokens", type=int, help="of a batch (default 4096, on a CPU 512)")
    sub.add_argument("--checkpoint-activations", action="store_true", help="in training, for all candidates")
    sub.add_argument("--dropout", type=float, default=0.1)
    sub.add_argument("--vocabulary", type=int, default=10_000, help="types of the shared dictionary (default 10,000)")
    sub.add_argument("--lengths", metavar="FILE", help="lines SOURCE TARGET to draw lengths from (default: IWSLT-14's)")
    sub.add_argument("--sentences", default="1,32", help="of the batches to translate (default %(default)s)")
    sub.add_argument("--beams", default="1,5", help="default %(default)s")
    sub.add_argument("--warmup", type=int, default=2, help="steps before the first that counts (default %(default)s)")
    sub.add_argument("--repeats", type=int, default=5, help="default %(default)s")
    sub.add_argument("--seconds", type=float, default=600, help="limit for a candidate in a cell (default %(default)g)")
    sub.add_argument("--clock", choices=("wall", "process"), default="wall", help="process: on a machine in use")
    sub.add_argument("--seed", type=int, default=1)
    sub.add_argument("--out", metavar="FILE", help="JSON to write")
    sub.add_argument("--render", metavar="FILE", help="only print the table of this JSON")
