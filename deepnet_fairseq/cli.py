"""The `deepnet` command: each subcommand parses, calls one room of the package, prints."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from . import archs
from .data.corpus import SIZES
from .errors import UserError


def list_archs(args) -> None:
    """architecture names, depths, widths and parameter counts"""
    from .building import parameter_count
    from .table import render

    rows = [["architecture", "N-M", "width", "ffn", "heads", "parameters"]]
    for name, preset in archs.PRESETS.items():
        depth = f"{preset['encoder_layers']}-{preset['decoder_layers']}"
        widths = [str(preset[f"encoder_{f}"]) for f in ("embed_dim", "ffn_embed_dim", "attention_heads")]
        rows.append([name, depth, *widths, f"{parameter_count(name, args.vocab):,}"])
    print(render(rows))
    print(f"\nparameters with one shared embedding of {args.vocab:,} symbols (--vocab), method deepnorm")


def coefficients(args) -> None:
    """alpha and beta of each stack"""
    from .methods import get_method

    if min(args.encoder_layers, args.decoder_layers) < 1:
        raise UserError(f"{args.encoder_layers} {args.decoder_layers}: a stack needs at least 1 layer")
    method = get_method(args.method)
    if not hasattr(method, "coefficients"):
        raise UserError(f"--method {args.method}: computes {method.equation} and has no coefficients")
    built = method(args.encoder_layers, args.decoder_layers)
    found = {stack: vars(built.coefficients(stack)) for stack in ("encoder", "decoder")}
    if args.json:
        print(json.dumps({"method": args.method, "N": args.encoder_layers, "M": args.decoder_layers} | found))
        return
    for stack, values in found.items():
        print(f"{stack}  " + "  ".join(f"{name} = {value:.6f}" for name, value in values.items()))


def report_init(args) -> None:
    """expected and measured std of every kind of weight in a built model"""
    import torch

    from .building import build
    from .config import namespace
    from .init_report import as_table, init_report
    from .methods import get_method
    from .table import render

    depth = {k: v for k, v in vars(args).items() if k in ("encoder_layers", "decoder_layers") and v is not None}
    if args.arch not in archs.PRESETS:
        raise UserError(f"--arch {args.arch}: no such architecture; `deepnet archs` lists them")
    fields = depth | {"method": args.method, "init_profile": args.init_profile}
    cfg = namespace(args.arch, **fields)
    torch.manual_seed(args.seed)
    method = get_method(args.method)(cfg.encoder_layers, cfg.decoder_layers)
    profile = args.init_profile or method.init_profiles[0]
    rows = init_report(build(args.arch, **fields), method, profile)
    if args.json:
        print(json.dumps({"arch": args.arch, "profile": profile} | fields | {"rows": [r.as_dict() for r in rows]}))
        return
    print(f"{args.arch}, {cfg.encoder_layers}-{cfg.decoder_layers}, {args.method}, {profile}\n")
    print(render(as_table(rows)))


def make_corpus(args) -> None:
    """the embedded artificial language pair"""
    from .data import corpus

    sizes = {"train": args.train, "valid": args.valid, "test": args.test}
    corpus.write_corpus(corpus.make_corpus(sizes, args.seed, args.nouns, args.verbs), Path(args.dest))
    print(f"wrote {', '.join(f'{n:,} {split}' for split, n in sizes.items())} pairs to {args.dest}")


def prepare_text(args) -> None:
    """parallel text -> joint BPE -> binarised data"""
    from .data.prepare import prepare_text

    prefixes = {"train": args.train, "valid": args.valid, "test": args.test}
    prepare_text((args.source, args.target), prefixes, Path(args.dest), args.vocab, args.drop_empty)


def compare(args) -> None:
    """a table and a plot of several runs: loss, BLEU, time"""
    from .analysis.comparison import compare

    print(compare([Path(run) for run in args.runs], Path(args.reference), Path(args.plot)))


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="deepnet", description="Very deep Transformers for machine translation.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name, function):
        sub = commands.add_parser(name, help=function.__doc__, description=function.__doc__)
        sub.set_defaults(run=function)
        return sub

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

    sub = command("corpus", make_corpus)
    sub.add_argument("dest", metavar="DEST", help="folder for SPLIT.qaa and SPLIT.qab")
    for split, size in SIZES.items():
        sub.add_argument(f"--{split}", type=int, default=size, help=f"sentence pairs (default {size:,})")
    sub.add_argument("--nouns", type=int, default=120)
    sub.add_argument("--verbs", type=int, default=60)
    sub.add_argument("--seed", type=int, default=1)

    sub = command("prepare-text", prepare_text)
    for name in ("source", "target", "train", "valid", "test", "dest"):
        sub.add_argument(name, metavar=name.upper())
    sub.add_argument("--vocab", type=int, default=10_000, help="SentencePiece pieces (default 10,000)")
    sub.add_argument("--drop-empty", action="store_true", help="leave out pairs with an empty side")

    sub = command("compare", compare)
    sub.add_argument("runs", nargs="+", metavar="RUN", help="folder with train.log and generated.txt")
    sub.add_argument("--reference", required=True, help="reference translations, one a line")
    sub.add_argument("--plot", required=True, help="PNG to write")
    return top


def main(argv: list[str] | None = None) -> None:
    args = parser().parse_args(argv)
    try:
        args.run(args)
    except UserError as error:
        sys.exit(f"deepnet: error: {error}")
    except BrokenPipeError:  # deepnet archs | head
        sys.stderr.close()
    except OSError as error:  # a file that is missing, in the way, or not writable: its text names it
        sys.exit(f"deepnet: error: {error}")


if __name__ == "__main__":
    main()
