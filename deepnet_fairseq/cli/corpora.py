"""Commands that make data."""

from __future__ import annotations

from pathlib import Path

from ..data.corpus import SIZES


def make_corpus(args) -> None:
    """the embedded artificial language pair"""
    from ..data import corpus

    sizes = {"train": args.train, "valid": args.valid, "test": args.test}
    corpus.write_corpus(corpus.make_corpus(sizes, args.seed, args.nouns, args.verbs), Path(args.dest))
    print(f"wrote {', '.join(f'{n:,} {split}' for split, n in sizes.items())} pairs to {args.dest}")


def prepare_text(args) -> None:
    """parallel text -> joint BPE -> binarised data"""
    from ..data.prepare import prepare_text

    prefixes = {"train": args.train, "valid": args.valid, "test": args.test}
    prepare_text((args.source, args.target), prefixes, Path(args.dest), args.vocab, args.drop_empty)


def add(command) -> None:
    """Registers `deepnet corpus` and `prepare-text` and their flags; command: as parser() gives it."""
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
