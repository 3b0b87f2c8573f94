"""Commands that look at what would be built, and where: architectures, coefficients, initialisation, environment."""

from __future__ import annotations

import json

from .. import archs
from ..errors import UserError


def list_archs(args) -> None:
    """architecture names, depths, widths and parameter counts"""
    from ..building import parameter_count
    from ..table import render

    rows = [["architecture", "N-M", "width", "ffn", "heads", "parameters"]]
    for name, preset in archs.PRESETS.items():
        depth = f"{preset['encoder_layers']}-{preset['decoder_layers']}"
        widths = [str(preset[f"encoder_{f}"]) for f in ("embed_dim", "ffn_embed_dim", "attention_heads")]
        rows.append([name, depth, *widths, f"{parameter_count(name, args.vocab):,}"])
    print(render(rows))
    print(f"\nparameters with one shared embedding of {args.vocab:,} symbols (--vocab), method deepnorm")


def coefficients(args) -> None:
    """alpha and beta of each stack"""
    from ..methods import get_method

    if min(args.encoder_layers, args.decoder_layers) < 1:
        raise UserError(f"{args.encoder_layers} {args.decoder_layers}: a stack needs at least 1 layer")
    method = get_method(args.method)
    built = method(args.encoder_layers, args.decoder_layers)
    found = {stack: built.coefficients(stack) for stack in ("encoder", "decoder")}
    if not any(found.values()):
        raise UserError(f"--method {args.method}: computes {method.equation} and has no coefficients")
    if args.json:
        print(json.dumps({"method": args.method, "N": args.encoder_layers, "M": args.decoder_layers} | found))
        return
    for stack, values in found.items():
        print(f"{stack}  " + "  ".join(f"{name} = {value:.6f}" for name, value in values.items()))


def report_init(args) -> None:
    """expected and measured std of every kind of weight in a built model"""
    import torch

    from ..building import build
    from ..config import namespace
    from ..init_report import as_table, init_report
    from ..methods import get_method
    from ..table import render

    depth = {k: v for k, v in vars(args).items() if k in ("encoder_layers", "decoder_layers") and v is not None}
    if args.arch not in archs.PRESETS:
        raise UserError(f"--arch {args.arch}: no such architecture; `deepnet archs` lists them")
    fields = depth | {"method": args.method, "init_profile": args.init_profile}
    cfg = namespace(args.arch, **fields)
    torch.manual_seed(args.seed)
    method = get_method(args.method).from_config(cfg)
    profile = args.init_profile or method.init_profiles[0]
    rows = init_report(build(args.arch, **fields), method, profile)
    if args.json:
        print(json.dumps({"arch": args.arch, "profile": profile} | fields | {"rows": [r.as_dict() for r in rows]}))
        return
    print(f"{args.arch}, {cfg.encoder_layers}-{cfg.decoder_layers}, {args.method}, {profile}\n")
    print(render(as_table(rows)))


def environment(args) -> None:
    """commit, versions and hardware, as a recorded run keeps them"""
    from ..environment import environment

    print(json.dumps(environment(args.gpus), indent=1))


def add(command) -> None:
    sub = command("environment", environment)
    sub.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs of the training, 0 for the CPU")

    sub = command("archs", list_archs)
    sub.add_argument("--vocab", type=int, default=10_000, help="rows of the shared embedding (default 10,000)")

    sub = command("coefficients", coefficients)
    sub.add_argument("encoder_layers", type=int, metavar="N")
    sub.add_argument("decoder_layers", type=int, metavar="M")
    sub.add_argument("--method", default="deepnorm")
    sub.add_argument("--json", action="store_true")

    sub = command("init-report", report_init)
    sub.add_argument("--arch", default=archs.MODEL_NAME)
    sub.add_argument("--encoder-layers", type=int)
    sub.add_argument("--decoder-layers", type=int)
    sub.add_argument("--method", default="deepnorm")
    sub.add_argument("--init-profile")
    sub.add_argument("--seed", type=int, default=1)
    sub.add_argument("--json", action="store_true")
