"""Commands that look at what would be built, and where: architectures, coefficients, initialisation, environment."""

from __future__ import annotations

import json

from .. import archs
from ..errors import UserError


def list_archs(args) -> None:
    """architecture names, depths, widths and parameter counts"""
    from ..building import parameter_count
    from ..text_table import render

    rows = [["architecture", "layers", "width", "ffn", "heads", "parameters"]]
    for name, preset in archs.PRESETS.items():
        stacks = archs.STACKS[archs.MODELS[name]]
        depth = "-".join(str(preset[f"{stack}_layers"]) for stack in stacks)
        widths = [str(preset[f"{stacks[0]}_{f}"]) for f in ("embed_dim", "ffn_embed_dim", "attention_heads")]
        rows.append([name, depth, *widths, f"{parameter_count(name, args.vocab):,}"])
    print(render(rows))
    print(f"\nlayers: N-M of encoder and decoder; {archs.LM} is a decoder alone, {archs.MASKED_LM} an encoder alone")
    print(f"parameters with one shared embedding of {args.vocab:,} symbols (--vocab), the architecture's own method")


def coefficients(args) -> None:
    """alpha and beta of each stack"""
    from ..methods import get_method

    depths = {"encoder": args.encoder_layers, "decoder": args.decoder_layers}
    if min(depths.values()) < 0 or not any(depths.values()):
        raise UserError(
            f"{args.encoder_layers} {args.decoder_layers}: a stack needs at least 1 layer, 0 where it is not"
        )
    method = get_method(args.method)
    built = method(args.encoder_layers, args.decoder_layers)
    found = {stack: built.coefficients(stack) for stack, depth in depths.items() if depth}
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
    from ..initialisation import as_table, init_report
    from ..methods import get_method
    from ..text_table import render

    depth = {k: v for k, v in vars(args).items() if k in ("encoder_layers", "decoder_layers") and v is not None}
    if args.arch not in archs.PRESETS:
        raise UserError(f"--arch {args.arch}: no such architecture; `deepnet archs` lists them")
    for name in set(depth) - {f"{stack}_layers" for stack in archs.STACKS[archs.MODELS[args.arch]]}:
        raise UserError(f"--{name.replace('_', '-')}: {args.arch} has no such stack; drop it")
    chosen = {"method": args.method} if args.method else {}
    fields = depth | chosen | {"init_profile": args.init_profile}
    cfg = namespace(args.arch, **fields)
    fields = fields | {"method": cfg.method}
    torch.manual_seed(args.seed)
    method = get_method(cfg.method).from_config(cfg)
    profile = args.init_profile or method.init_profiles[0]
    rows = init_report(build(args.arch, **fields), method, profile)
    if args.json:
        print(json.dumps({"arch": args.arch, "profile": profile} | fields | {"rows": [r.as_dict() for r in rows]}))
        return
    print(f"{args.arch}, {'-'.join(str(n) for n in archs.depths(cfg) if n)}, {cfg.method}, {profile}\n")
    print(render(as_table(rows)))


def environment(args) -> None:
    """commit, versions and hardware, as a recorded run keeps them"""
    from ..environment import environment

    print(json.dumps(environment(args.gpus), indent=1))


def add(command) -> None:
    """Registers `deepnet environment`, `archs`, `coefficients` and `init-report`; command: as parser() gives it."""
    sub = command("environment", environment)
    sub.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs of the training, 0 for the CPU")

    sub = command("archs", list_archs)
    sub.add_argument("--vocab", type=int, default=10_000, help="rows of the shared embedding (default 10,000)")

    sub = command("coefficients", coefficients)
    sub.add_argument("encoder_layers", type=int, metavar="N", help="0 for a decoder alone (deepnet_lm)")
    sub.add_argument("decoder_layers", type=int, metavar="M", help="0 for an encoder alone (deepnet_masked_lm)")
    sub.add_argument("--method", default="deepnorm")
    sub.add_argument("--json", action="store_true")

    sub = command("init-report", report_init)
    sub.add_argument("--arch", default=archs.MODEL_NAME)
    sub.add_argument("--encoder-layers", type=int)
    sub.add_argument("--decoder-layers", type=int)
    sub.add_argument("--method", help="the architecture's own by default")
    sub.add_argument("--init-profile")
    sub.add_argument("--seed", type=int, default=1)
    sub.add_argument("--json", action="store_true")
