"""Commands that look at what would be built, and where: architectures, methods, initialisation, environment."""

from __future__ import annotations

import json

from .. import archs
from ..errors import UserError

HEADER = ["method", "a residual branch computes", "paper", "extra parameters", "last LN", "folds", "to train"]


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


def facts(name: str) -> dict:
    """What there is to say of a method, measured on a built model where it can be; UserError for a name that none has.

    method, equation, paper; extra_parameters beside Post-LN at 6L-6L of width 512; norm; final_norm (a LayerNorm at the
    end of each stack?); obstacle to folding, None if there is none; train_flags; options with help and default.
    """
    import torch

    from ..building import build
    from ..export.fold import obstacle
    from ..methods import get_method

    method = get_method(name)
    with torch.device("meta"):
        model, base = (build(method=m, encoder_layers=6, decoder_layers=6, vocab=10) for m in (name, "post_ln"))
    sizes = [sum(p.numel() for p in m.parameters()) for m in (model, base)]
    return {
        "method": name,
        "equation": method.equation,
        "paper": method.paper,
        "extra_parameters": sizes[0] - sizes[1],
        "norm": model.encoder.layers[0].norm_place,
        "final_norm": model.encoder.layer_norm is not None,
        "obstacle": obstacle(model),
        "train_flags": list(method.train_flags),
        "options": {
            method.flag(key): {"default": option.default, "choices": list(option.choices), "help": option.help}
            for key, option in method.options.items()
        },
    }


def as_cells(row: dict) -> list[str]:
    """One line of the table under HEADER."""
    folds = "no" if row["obstacle"] else "yes"
    last = "yes" if row["final_norm"] else "no"
    extra = f"{row['extra_parameters']:+,}" if row["extra_parameters"] else "0"
    return [row["method"], row["equation"], row["paper"], extra, last, folds, " ".join(row["train_flags"])]


def markdown(rows: list[dict]) -> str:
    """The table, why methods do not fold, their options."""
    cells = [[f"`{first}`", *rest] for first, *rest in map(as_cells, rows)]
    reasons = [f"- `{row['method']}`: {row['obstacle']}" for row in rows if row["obstacle"]]
    options = [
        [f"`{flag}`", " / ".join(option["choices"]) or _kind(option["default"]), str(option["default"]), option["help"]]
        for row in rows
        for flag, option in row["options"].items()
    ]
    why = ["", "Why some do not fold into a plain Transformer:", "", *reasons, ""]
    return "\n".join([*_grid(HEADER, cells), *why, *_grid(["option", "values", "default", "meaning"], options)])


def _kind(default) -> str:
    return {bool: "flag", type(None): "text"}.get(type(default), "number")


def _grid(header: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


def list_methods(args) -> None:
    """every method: equation, paper, extra parameters, last LayerNorm, does it fold into a plain Transformer"""
    from ..methods import METHODS, get_method
    from ..text_table import render

    if args.flags:
        for name in args.flags.split(","):
            print(*("--method", name, *get_method(name).train_flags))
        return
    if args.names or args.norm:
        print(*(name for name in sorted(METHODS) if args.norm in (None, get_method(name).norm)))
        return
    rows = [facts(name) for name in sorted(METHODS)]
    if args.json:
        print(json.dumps(rows, indent=1))
    elif args.markdown:
        print(markdown(rows))
    else:
        print(render([HEADER, *map(as_cells, rows)]))
        print("\nextra parameters: beside post_ln, 6L-6L of width 512; options: fairseq-train --help, docs/methods.md")


def add(command) -> None:
    """Registers `deepnet environment`, `archs`, `coefficients`, `init-report` and `methods`, and their flags."""
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

    sub = command("methods", list_methods)
    sub.add_argument("--json", action="store_true")
    sub.add_argument("--markdown", action="store_true", help="the table of docs/methods.md")
    sub.add_argument("--flags", metavar="METHODS", help="only print what trains each of METHODS, for scripts")
    sub.add_argument("--names", action="store_true", help="only print their names")
    sub.add_argument("--norm", choices=("post", "pre", "none"), help="only those whose LayerNorm is there")
