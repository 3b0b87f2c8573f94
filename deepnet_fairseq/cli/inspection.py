"""Commands before a training: what would be built, and where; its first updates; an audit of weights."""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from .. import register, text_table
from ..errors import UserError

HEADER = ["method", "a residual branch computes", "paper", "extra parameters", "last LN", "folds", "to train"]
OF_MODIFIERS = ["in any method", "makes of it", "paper", "extra parameters", "folds"]


def list_archs(args) -> None:
    """architecture names, depths, widths and parameter counts"""
    from ..core import archs
    from ..core.models import parameter_count
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
    from ..core.methods import get_method

    depths = {"encoder": args.encoder_layers, "decoder": args.decoder_layers}
    if min(depths.values()) < 0 or not any(depths.values()):
        depths_said = f"{args.encoder_layers} {args.decoder_layers}"
        raise UserError(f"{depths_said}: a stack needs at least 1 layer, 0 where it is not")
    method = get_method(args.method)
    options = dict(option_value(method, word) for word in args.option)
    built = method(args.encoder_layers, args.decoder_layers, **options)
    found = {stack: built.coefficients(stack) for stack, depth in depths.items() if depth}
    if not any(found.values()):
        raise UserError(f"--method {args.method}: computes {method.equation} and has no coefficients")
    for stack, values in found.items():
        print(f"{stack}  " + "  ".join(f"{name} = {value:.6f}" for name, value in values.items()))


def report_init(args) -> None:
    """expected and measured std of every kind of weight in a built model"""
    import torch

    from ..core import archs
    from ..core.config import namespace
    from ..core.initialisation import as_table, init_report
    from ..core.models import build
    from ..core.modifiers import from_config
    from ..text_table import render

    depth = {k: v for k, v in vars(args).items() if k in ("encoder_layers", "decoder_layers") and v is not None}
    if args.arch not in archs.PRESETS:
        raise UserError(archs.unknown(f"--arch {args.arch}"))
    for name in set(depth) - {f"{stack}_layers" for stack in archs.STACKS[archs.MODELS[args.arch]]}:
        raise UserError(f"--{name.replace('_', '-')}: {args.arch} has no such stack; drop it")
    fields = depth | ({"method": args.method} if args.method else {}) | {"init_profile": args.init_profile}
    cfg = namespace(args.arch, **fields)
    torch.manual_seed(args.seed)
    method = from_config(cfg)
    profile = args.init_profile or method.init_profiles[0]
    rows = init_report(build(args.arch, **fields), method, profile)
    print(f"{args.arch}, {'-'.join(str(n) for n in archs.depths(cfg) if n)}, {cfg.method}, {profile}\n")
    print(render(as_table(rows)))


def environment(args) -> None:
    """commit, versions and hardware, as a recorded run keeps them"""
    from ..tools.environment import environment

    print(json.dumps(environment(args.gpus), indent=1))


def row_of(name: str) -> tuple[list[str], str | None]:
    """A method's line under HEADER, measured on built models where it can be; what is in the way of folding, if so.

    Extra parameters are those beside Post-LN at 6L-6L of width 512. UserError for a name that none has.
    """
    from ..core.methods import get_method
    from ..tools.export.fold import why_not_foldable

    method, model = get_method(name), _example(name)
    extra = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in _example("post_ln").parameters())
    why, last = why_not_foldable(model), "no" if model.encoder.layer_norm is None else "yes"
    more, folds = f"{extra:+,}" if extra else "0", "no" if why else "yes"
    return [name, method.equation, method.paper, more, last, folds, " ".join(method.train_flags)], why


def rows_of_modifiers() -> list[list[str]]:
    """A line each under OF_MODIFIERS, measured around deepnorm."""
    from ..core.modifiers import MODIFIERS
    from ..tools.export.fold import why_not_foldable

    rows, plain = [], sum(p.numel() for p in _example("deepnorm").parameters())
    for name, one in MODIFIERS.items():
        model = _example("deepnorm", name)
        extra = sum(p.numel() for p in model.parameters()) - plain
        folds = "no" if why_not_foldable(model) else "yes"
        rows.append([one.flag(), one.equation, one.paper, f"{extra:+,}" if extra else "0", folds])
    return rows


@cache
def _example(method: str, *modifiers: str):
    from ..core.models import blueprint

    turned_on: dict[str, Any] = dict.fromkeys(modifiers, True)
    return blueprint(method=method, encoder_layers=6, decoder_layers=6, vocab=10, **turned_on)


def methods_page(rows: list[tuple[list[str], str | None]]) -> str:
    """The table, why methods do not fold, modifiers, options."""
    from ..core.methods import get_method
    from ..core.modifiers import MODIFIERS

    cells = [[f"`{first}`", *rest] for (first, *rest), _ in rows]
    reasons = [f"- `{cells[0]}`: {why}" for cells, why in rows if why]
    options, owners = [], [*(get_method(cells[0]) for cells, _ in rows), *MODIFIERS.values()]
    owner: Any  # a method or a modifier
    for owner in owners:
        for key, option in owner.options.items():
            kind = {bool: "flag", type(None): "text"}.get(type(option.default), "number")
            values = " / ".join(option.choices) or kind
            options.append([f"`{owner.flag(key)}`", values, str(option.default), option.help])
    why = ["", "Why some do not fold into a plain Transformer:", "", *reasons, ""]
    modifiers = [[f"`{first}`", *rest] for first, *rest in rows_of_modifiers()]
    tables = [[HEADER, *cells], [OF_MODIFIERS, *modifiers], [["option", "values", "default", "meaning"], *options]]
    methods, others, settings = map(text_table.markdown, tables)
    return "\n".join([methods, *why, others, "", settings])


def list_methods(args) -> None:
    """methods and what goes with any: equation, paper, extra parameters, last LayerNorm, does it fold"""
    from ..core.methods import METHODS, get_method
    from ..text_table import render

    if args.flags:
        for name in args.flags.split(","):
            print(*("--method", name, *get_method(name).train_flags))
        return
    if args.names or args.norm:
        print(*(name for name in sorted(METHODS) if args.norm in (None, get_method(name).norm)))
        return
    rows = [row_of(name) for name in sorted(METHODS)]
    if args.into:
        page = Path(args.into)
        before, mark, rest = page.read_text(encoding="utf-8").partition("<!-- methods -->\n")
        _, end, after = rest.partition("<!-- /methods -->")
        if not end:
            raise UserError(f"--into {page}: has no <!-- methods --> and <!-- /methods -->")
        page.write_text(f"{before}{mark}{methods_page(rows).strip()}\n{end}{after}", encoding="utf-8")
    elif args.markdown:
        print(methods_page(rows))
    else:
        print(render([HEADER, *(cells for cells, _ in rows)]))
        print("\n" + render([OF_MODIFIERS, *rows_of_modifiers()]))
        print("\nextra parameters: beside post_ln, 6L-6L of width 512; options: fairseq-train --help, docs/methods.md")


def check(args) -> None:
    """will this fairseq-train command train? The first updates, watched, and a verdict

    Takes every flag of fairseq-train: DATA and those of the run to come. Leaves no file behind. The exit status is 3
    where the verdict is "diverging".
    """
    register()
    from ..tools.check import DIVERGING, LATEST, as_dict, judge, text, train_briefly

    if args.updates < 2 * LATEST:
        raise UserError(f"--updates {args.updates}: give at least {2 * LATEST}")
    if args.compress_warmup is not None and args.compress_warmup < 1:
        raise UserError(f"--compress-warmup {args.compress_warmup}: must be at least 1")
    if args.seconds <= 0:
        raise UserError(f"--seconds {args.seconds:g}: must be more than 0")
    flags = args.rest[1:] if args.rest[:1] == ["fairseq-train"] else args.rest

    def progress(update: int, loss: float) -> None:
        if sys.stderr.isatty():
            print(f"\rupdate {update + 1}, loss {loss:.2f} ", end="", file=sys.stderr, flush=True)

    short_training = train_briefly(flags, args.updates, args.compress_warmup, args.seconds, progress)
    if sys.stderr.isatty():
        print(end="\r" + " " * 40 + "\r", file=sys.stderr)
    print(json.dumps(as_dict(short_training)) if args.json else text(short_training))
    if judge(short_training).kind == DIVERGING:
        sys.exit(3)


def option_value(method, word: str) -> tuple[str, bool | int | float | str]:
    """Key and value of KEY=VALUE for a method; UserError for an option that it does not have."""
    key, _, text = word.partition("=")
    if key not in method.options:
        raise UserError(f"--option {word}: --method {method.name} has {', '.join(method.options) or 'no options'}")
    kind = type(method.options[key].default)
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise UserError(f"--option {word}: {key} is true or false")
        return key, text.lower() == "true"
    try:
        return key, kind(text) if kind in (int, float) else text
    except ValueError as error:
        raise UserError(f"--option {word}: {key} is a {'whole ' if kind is int else ''}number") from error


def verify(args) -> None:
    """is a model what a method says? Its first weights and shortcut factors, and what they fit instead

    MODEL: a checkpoint of ours, fairseq's or torchscale's, a .safetensors file, a saved state dict. Code in it is not
    run; a live module goes through Python, docs/verify.md. The exit status is 3 where something does not
    fit.
    """

    from ..core.methods import get_method
    from ..tools.verify import verify

    options = dict(option_value(get_method(args.method), word) for word in args.option)
    audit = verify(args.model, args.method, options=options)
    print(json.dumps(audit.as_dict()) if args.json else audit.text())
    if not audit.fits:
        sys.exit(3)


def add(command) -> None:
    """Registers this file's subcommands and their flags; command: as parser() gives it."""
    sub = command("environment", environment)
    sub.add_argument("--gpus", type=int, default=0, metavar="N", help="GPUs of the training, 0 for the CPU")

    sub = command("archs", list_archs)
    sub.add_argument("--vocab", type=int, default=10_000, help="rows of the shared embedding (default 10,000)")

    of_method: dict[str, Any] = {"action": "append", "default": [], "metavar": "KEY=VALUE"}
    of_method["help"] = "an option of the method, base_depth=4"
    sub = command("coefficients", coefficients)
    sub.add_argument("encoder_layers", type=int, metavar="N", help="0 for a decoder alone (deepnet_lm)")
    sub.add_argument("decoder_layers", type=int, metavar="M", help="0 for an encoder alone (deepnet_masked_lm)")
    sub.add_argument("--method", default="deepnorm")
    sub.add_argument("--option", **of_method)

    sub = command("init-report", report_init)
    sub.add_argument("--arch", default="deepnet_transformer")
    sub.add_argument("--encoder-layers", type=int)
    sub.add_argument("--decoder-layers", type=int)
    sub.add_argument("--method", help="the architecture's own by default")
    sub.add_argument("--init-profile")
    sub.add_argument("--seed", type=int, default=1)

    sub = command("methods", list_methods)
    sub.add_argument("--markdown", action="store_true", help="the table of docs/methods.md")
    sub.add_argument("--into", metavar="PAGE", help="write that table between the marks of a page")
    sub.add_argument("--flags", metavar="METHODS", help="only print what trains each of METHODS, for scripts")
    sub.add_argument("--names", action="store_true", help="only print their names")
    sub.add_argument("--norm", choices=("post", "pre", "none"), help="only those whose LayerNorm is there")

    sub = command("check", check, "[options] fairseq-train DATA [flags of fairseq-train]")
    sub.add_argument("--updates", type=int, default=40, help="how many to watch (default 40)")
    sub.add_argument("--seconds", type=float, default=60, help="stop earlier after so long (default 60)")
    sub.add_argument("--compress-warmup", type=int, metavar="K", help="reach the peak learning rate after K updates")
    sub.add_argument("--json", action="store_true")

    sub = command("verify", verify)
    sub.add_argument("model", metavar="MODEL", help="file or folder of weights")
    sub.add_argument("--method", required=True, help="whose formulas to compare with")
    sub.add_argument("--option", **of_method)
    sub.add_argument("--json", action="store_true")
