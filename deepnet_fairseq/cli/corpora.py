"""Commands that make data."""

from __future__ import annotations

import os
from pathlib import Path

from .. import register
from ..errors import UserError

VOCAB = 32_000  # of a language model


def make_corpus(args) -> None:
    """the embedded artificial language pair"""
    from ..data import language

    corpus = language.make_corpus(language.SIZES, args.seed, args.nouns, args.verbs)
    language.write_corpus(corpus, Path(args.dest))
    print(f"wrote {', '.join(f'{n:,} {split}' for split, n in language.SIZES.items())} pairs to {args.dest}")


def prepare_text(args) -> None:
    """parallel text -> joint BPE -> binarised data"""
    register()
    from ..data.parallel_text import prepare_text

    prefixes = {"train": args.train, "valid": args.valid, "test": args.test}
    prepare_text((args.source, args.target), prefixes, Path(args.dest), args.vocab, args.drop_empty)


def prepare_corpus(args) -> None:
    """a corpus of the papers, from its published files to binarised data"""
    from ..data import miniature
    from ..data.download import fetch_all
    from ..data.recipes import Options, find

    recipe, dest = find(args.recipe), Path(args.dest)
    downloads = Path(args.downloads) if args.downloads else dest / "downloads"
    same = ("workers", "text", "vocab", "shards", "temperature", "spm")
    options = Options(
        dest,
        downloads / "miniature" if args.miniature else downloads,
        fetch=miniature.write if args.miniature else fetch_all,
        pairs=tuple(args.pairs.split(",")) if args.pairs else None,
        **{name: getattr(args, name) for name in same},
    )
    if args.plan:
        print(recipe.plan(options))
    else:
        register()
        recipe.build(options)


def prepare_lm(args) -> None:
    """plain text -> SentencePiece or GPT-2's BPE -> binarised data for language models"""
    register()
    from ..data.lm_text import prepare_lm

    if args.dict and not Path(args.dict).is_file():
        raise UserError(f"--dict {args.dict}: no such file")
    if "," in args.train:
        raise UserError(f"{args.train}: one training file only; join them first")
    for kind, names in ONLY.items():
        for name in names if kind != args.bpe else ():
            if getattr(args, name) is not None:
                raise UserError(f"--{name.replace('_', '-')}: only with --bpe {kind}")
    texts = {split: [Path(path) for path in getattr(args, split).split(",")] for split in ("train", "valid", "test")}
    dictionary = Path(args.dict) if args.dict else None
    prepare_lm(texts, Path(args.dest), SEGMENTERS[args.bpe](args), dictionary, args.workers)


def _sentencepiece(args):
    from ..data.lm_text import Segmenter, train_sentencepiece

    if args.spm:
        if args.vocab is not None:
            raise UserError("--spm is a vocabulary made already: leave out --vocab")
        segmenter = Segmenter("sentencepiece", {"sentencepiece_model": Path(args.spm)})
        return lambda folder: segmenter
    return lambda folder: train_sentencepiece(Path(args.train), VOCAB if args.vocab is None else args.vocab, folder)


def _gpt2(args):
    from ..data.lm_text import Segmenter, fetch_gpt2

    if bool(args.encoder_json) != bool(args.vocab_bpe):
        raise UserError("--encoder-json and --vocab-bpe: give both, or neither")
    paths = {"encoder.json": args.encoder_json, "vocab.bpe": args.vocab_bpe}
    if not args.encoder_json:
        folder = Path(args.downloads) if args.downloads else Path(args.dest).resolve().parent / "gpt2_bpe"
        paths = fetch_gpt2(folder)
    files = {"gpt2_encoder_json": Path(paths["encoder.json"]), "gpt2_vocab_bpe": Path(paths["vocab.bpe"])}
    segmenter = Segmenter("gpt2", files)
    return lambda folder: segmenter


SEGMENTERS = {"sentencepiece": _sentencepiece, "gpt2": _gpt2}
ONLY = {"sentencepiece": ("vocab", "spm"), "gpt2": ("encoder_json", "vocab_bpe", "downloads")}


def add(command) -> None:
    """Registers `deepnet corpus`, `prepare-text`, `prepare`, `prepare-lm`; command: as parser() gives it."""
    sub = command("corpus", make_corpus)
    sub.add_argument("dest", metavar="DEST", help="folder for SPLIT.qaa and SPLIT.qab")
    sub.add_argument("--nouns", type=int, default=120)
    sub.add_argument("--verbs", type=int, default=60)
    sub.add_argument("--seed", type=int, default=1)

    sub = command("prepare-text", prepare_text)
    for name in ("source", "target", "train", "valid", "test", "dest"):
        sub.add_argument(name, metavar=name.upper())
    sub.add_argument("--vocab", type=int, default=10_000, help="SentencePiece pieces (default 10,000)")
    sub.add_argument("--drop-empty", action="store_true", help="leave out pairs with an empty side")

    sub = command("prepare", prepare_corpus)
    sub.add_argument("recipe", metavar="RECIPE", help="which corpus; any other word lists them")
    sub.add_argument("dest", metavar="DEST", help="folder to fill; started again, the command goes on where it stopped")
    sub.add_argument("--plan", action="store_true", help="say what would be done: files, tools, counts")
    sub.add_argument("--from", dest="text", type=Path, metavar="FOLDER", help="text that is tokenised already")
    sub.add_argument("--pairs", metavar="de-en,fr-en", help="these language pairs only")
    sub.add_argument("--downloads", metavar="DIR", help="where downloads lie (default DEST/downloads)")
    sub.add_argument("--workers", type=int, metavar="N", default=os.cpu_count(), help="processes (default: all cores)")
    sub.add_argument("--vocab", type=int, metavar="N", help="BPE merges or SentencePiece pieces (default the recipe's)")
    sub.add_argument("--shards", type=int, metavar="N", help="parts of the binarised training data")
    sub.add_argument("--temperature", type=float, metavar="T", help="of the sampling of languages for the vocabulary")
    sub.add_argument("--spm", type=Path, metavar="FILE", help="a SentencePiece model to take instead of training one")
    sub.add_argument("--miniature", action="store_true", help="generated files in place of the downloads")

    sub = command("prepare-lm", prepare_lm)
    sub.add_argument("train", metavar="TRAIN", help="UTF-8, a sentence or paragraph a line, documents set apart by "
                     "empty lines; so are VALID and TEST, which may be several, separated by commas")  # fmt: skip
    sub.add_argument("valid", metavar="VALID")
    sub.add_argument("test", metavar="TEST")
    sub.add_argument("dest", metavar="DEST", help="folder to make, for fairseq-train")
    sub.add_argument("--bpe", choices=tuple(SEGMENTERS), default="sentencepiece", help="default sentencepiece")
    sub.add_argument("--vocab", type=int, metavar="N", help=f"SentencePiece pieces, from TRAIN (default {VOCAB:,})")
    sub.add_argument("--spm", metavar="FILE", help="a SentencePiece model to take instead of training one")
    sub.add_argument("--encoder-json", metavar="FILE", help="of GPT-2's BPE; by default fetched, as is --vocab-bpe")
    sub.add_argument("--vocab-bpe", metavar="FILE")
    sub.add_argument("--downloads", metavar="DIR", help="where they are fetched to (default gpt2_bpe beside DEST)")
    sub.add_argument("--dict", metavar="FILE", help="fairseq's dictionary of an earlier model (default: all pieces)")
    sub.add_argument("--workers", type=int, metavar="N", default=os.cpu_count(), help="processes (default: all cores)")
