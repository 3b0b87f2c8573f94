"""The command that makes data for language models."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UserError

VOCAB = 32_000


def prepare_lm(args) -> None:
    """plain text -> SentencePiece or GPT-2's BPE -> binarised data for language models"""
    from ..data.monolingual.prepare import prepare_lm

    if args.workers < 1:
        raise UserError(f"--workers {args.workers}: must be at least 1")
    if args.dict and not Path(args.dict).is_file():
        raise UserError(f"--dict {args.dict}: no such file")
    if "," in args.train:
        raise UserError(f"{args.train}: one training file only; join them first")
    texts = {split: [Path(path) for path in getattr(args, split).split(",")] for split in ("train", "valid", "test")}
    dictionary = Path(args.dict) if args.dict else None
    prepare_lm(texts, Path(args.dest), SEGMENTERS[args.bpe](args), dictionary, args.workers)


def _sentencepiece(args):
    from ..data.monolingual.prepare import train_sentencepiece
    from ..data.monolingual.segmenter import Segmenter

    _only(args, "gpt2", "encoder_json", "vocab_bpe", "downloads")
    if args.spm:
        if args.vocab:
            raise UserError("--spm is a vocabulary made already: leave out --vocab")
        given = Segmenter("sentencepiece", {"sentencepiece_model": Path(args.spm)})
        return lambda folder: given
    return lambda folder: train_sentencepiece(Path(args.train), args.vocab or VOCAB, folder)


def _gpt2(args):
    from ..data.monolingual.prepare import fetch_gpt2
    from ..data.monolingual.segmenter import Segmenter

    _only(args, "sentencepiece", "vocab", "spm")
    if bool(args.encoder_json) != bool(args.vocab_bpe):
        raise UserError("--encoder-json and --vocab-bpe: give both, or neither")
    paths = {"encoder.json": args.encoder_json, "vocab.bpe": args.vocab_bpe}
    if not args.encoder_json:
        folder = Path(args.downloads) if args.downloads else Path(args.dest).resolve().parent / "gpt2_bpe"
        try:
            paths = fetch_gpt2(folder)
        except ModuleNotFoundError as error:
            raise UserError(f"--bpe gpt2: needs {error.name}; pip install 'deepnet_fairseq[data]' brings it") from error
    files = {"gpt2_encoder_json": Path(paths["encoder.json"]), "gpt2_vocab_bpe": Path(paths["vocab.bpe"])}
    given = Segmenter("gpt2", files)
    return lambda folder: given


SEGMENTERS = {"sentencepiece": _sentencepiece, "gpt2": _gpt2}


def _only(args, kind: str, *names: str) -> None:
    for name in names:
        if getattr(args, name) is not None:
            raise UserError(f"--{name.replace('_', '-')}: only with --bpe {kind}")


def add(command) -> None:
    """Registers `deepnet prepare-lm` and its flags; command: as parser() gives it."""
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
