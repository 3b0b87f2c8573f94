"""Any parallel text -> SentencePiece joint BPE -> fairseq's binarised data."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path

import sentencepiece

from ..atomic_output import whole
from ..errors import UserError
from .binarise import binarise
from .parallel import ParallelText, read_parallel

MIN_TRAIN_PAIRS = 100
SPLITS = ("train", "valid", "test")


def prepare_text(
    langs: tuple[str, str], prefixes: dict[str, str], dest: Path, vocab: int = 10_000, drop_empty: bool = False
) -> None:
    """Reads and checks everything, then writes `dest` in one move.

    langs: source and target suffix; prefixes: split -> prefix, several for valid and test separated by commas (fairseq
    then calls them valid, valid1, ...); vocab: SentencePiece pieces of the joint vocabulary. `dest` gets the binarised
    data, spm.model, and the segmented text under text/. UserError, before `dest` is there, for text that does not do.
    """
    if dest.exists() and any(dest.iterdir() if dest.is_dir() else [dest]):
        raise UserError(f"{dest}: exists already; remove it or name another folder")
    if "," in prefixes["train"]:
        raise UserError(f"{prefixes['train']}: one training prefix only; join the files first")
    texts = {}
    for split in SPLITS:
        for number, prefix in enumerate(prefixes[split].split(",")):
            texts[f"{split}{number or ''}"] = read_parallel(prefix, *langs, drop_empty)
    for name, text in texts.items():
        print(f"| {name}: {len(text):,} sentence pairs")
    model = train_bpe(texts["train"], vocab)

    with whole(dest) as part:
        (part / "text").mkdir(parents=True)
        (part / "spm.model").write_bytes(model)
        print(f"| segmenting into {vocab:,} pieces")
        segment(sentencepiece.SentencePieceProcessor(model_proto=model), texts, langs, part / "text")
        print("| binarising")
        prefixes = {split: [part / "text" / name for name in texts if name.startswith(split)] for split in SPLITS}
        binarise(langs, prefixes, part)
    print(f"| wrote {dest}")


def train_bpe(text: ParallelText, vocab: int) -> bytes:
    """A SentencePiece BPE model over both sides; UserError if the text is too small for `vocab` pieces."""
    if len(text) < MIN_TRAIN_PAIRS:
        raise UserError(f"{len(text)} training pairs: too few to train on; give at least {MIN_TRAIN_PAIRS}")
    print(f"| training a joint BPE of {vocab:,} pieces on {2 * len(text):,} sentences")
    return sentencepiece_model(text.source + text.target, vocab, character_coverage=1.0)


def sentencepiece_model(sentences: Iterable[str], vocab: int, **options) -> bytes:
    """A SentencePiece BPE model; `options` are SentencePiece's. UserError if the text does not go with `vocab`."""
    model = io.BytesIO()
    options = {"model_type": "bpe", "vocab_size": vocab, "minloglevel": 2} | options
    try:
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences), model_writer=model, **options)
    except RuntimeError as error:
        if limit := re.search(r"<= (\d+)", str(error)):
            raise UserError(f"--vocab {vocab}: this text supports at most {limit.group(1)} pieces") from None
        if limit := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            raise UserError(f"--vocab {vocab}: below this text's {limit.group(1)} characters; raise it") from None
        raise UserError(f"--vocab {vocab}: SentencePiece cannot train on this text ({error})") from error
    return model.getvalue()


def segment(processor, texts: dict[str, ParallelText], langs: tuple[str, str], folder: Path) -> None:
    """Writes folder/NAME.LANG, pieces separated by blanks."""
    for name, text in texts.items():
        for lang, lines in zip(langs, (text.source, text.target), strict=True):
            pieces = processor.encode(lines, out_type=str)
            (folder / f"{name}.{lang}").write_text("".join(" ".join(p) + "\n" for p in pieces), encoding="utf-8")
