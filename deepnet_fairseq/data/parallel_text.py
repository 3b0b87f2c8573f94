"""Prepare any parallel text: joint BPE by SentencePiece, then fairseq's binarised data."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from itertools import chain, product
from pathlib import Path
from tempfile import NamedTemporaryFile

import sentencepiece

from ..errors import UserError
from ..files import whole
from ..languages import check_pair
from .binarise import binarise, check_dest
from .like import find_vocabulary
from .lines import REMOVE, Pairs, note_letters, one_line, read_lines, read_pairs, write_columns

MIN_TRAIN_PAIRS = 100


def prepare_text(
    langs: tuple[str, str], prefixes: dict[str, str], dest: Path, vocab: int = 10_000, drop_empty: bool = False,
    like: str | None = None,
) -> None:  # fmt: skip
    """Read and check everything, then write `dest`, which appears in one move.

    langs: source and target suffix; prefixes: split -> prefix, several for valid and test separated by commas (fairseq
    then calls them valid, valid1, ...); vocab: SentencePiece pieces of the joint vocabulary; like: a model, as for
    find_vocabulary, whose pieces and dictionaries are taken in place of new ones. `dest` gets the binarised
    data, spm.model, the segmented text under text/, and as raw/test.LANG, raw/valid.LANG and so on the raw text that
    scores compare with. Raises a UserError, before `dest` exists, for unusable text.
    """
    check_pair("SOURCE and TARGET", *langs)
    check_dest(dest)
    if dest.exists() and any(dest.iterdir() if dest.is_dir() else [dest]):
        raise UserError(f"{dest}: exists already; remove it or name another folder")
    if "," in prefixes["train"]:
        raise UserError(f"{prefixes['train']}: one training prefix only; join the files first")
    known = find_vocabulary(like, langs) if like is not None else None
    texts = {}
    for split in ("train", "valid", "test"):
        for number, prefix in enumerate(prefixes[split].split(",")):
            texts[f"{split}{number or ''}"] = read_parallel(prefix, *langs, drop_empty)
    for name, text in texts.items():
        print(f"| {name}: {len(text):,} sentence pairs")
    note_letters(langs, chain.from_iterable(texts.values()))
    if known is not None:
        print(f"| pieces and dictionary of {like}")
        model = known.pieces.read_bytes()
    elif (pairs := len(texts["train"])) < MIN_TRAIN_PAIRS:
        raise UserError(f"{pairs} training pairs: too few to train on; give at least {MIN_TRAIN_PAIRS}")
    else:
        print(f"| training a joint BPE of {vocab:,} pieces on {2 * pairs:,} sentences")
        model = sentencepiece_model((pair[i] for i in (0, 1) for pair in texts["train"]), vocab, character_coverage=1.0)

    with whole(dest) as part:
        (part / "text").mkdir(parents=True)
        (part / "spm.model").write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        print(f"| segmenting into {len(processor):,} pieces")
        for name, text in texts.items():
            sides = [processor.encode(list(lines), out_type=str) for lines in zip(*text, strict=True)]
            rows = (tuple(map(" ".join, pair)) for pair in zip(*sides, strict=True))
            write_columns([part / "text" / f"{name}.{lang}" for lang in langs], rows)
            if name != "train":
                write_columns([part / "raw" / f"{name}.{lang}" for lang in langs], text)
        dictionaries = known.write_dictionaries(part) if known is not None else None
        if known is not None:
            for name, lang in product(texts, langs):
                known.note_unseen(lang, name, read_lines(part / "text" / f"{name}.{lang}"))
        print("| binarising")
        binarise(langs, {name: part / "text" / name for name in texts}, part, dictionary=dictionaries)
    print(f"| wrote {dest}; train with --source-lang {langs[0]} --target-lang {langs[1]}")


def read_parallel(prefix: str, source_lang: str, target_lang: str, drop_empty: bool = False) -> Pairs:
    """Read PREFIX.source_lang and PREFIX.target_lang, each line through one_line.

    Raises a UserError for a missing file, bad UTF-8, unequal numbers of lines, or empty lines.
    """
    source, target = Path(f"{prefix}.{source_lang}"), Path(f"{prefix}.{target_lang}")
    pairs = list(read_pairs(source, target, "drop" if drop_empty else f"{REMOVE}, or pass --drop-empty", one_line))
    if not pairs:
        raise UserError(f"{source}: no sentence in it")
    return pairs


def sentencepiece_model(sentences: Iterable[str], vocab: int, **options) -> bytes:
    """Train a SentencePiece BPE model; `options` are SentencePiece's. UserError if the text does not allow `vocab`.

    The model leaves characters as they are (by SentencePiece's own rules 10² becomes 102), except white space, which
    becomes a blank, because white space separates the pieces in fairseq's files.
    """
    if vocab < 1:
        raise UserError(f"--vocab {vocab}: must be 1 or more")
    model = io.BytesIO()
    options = {"model_type": "bpe", "vocab_size": vocab, "minloglevel": 2} | options
    try:
        with NamedTemporaryFile("w", suffix=".tsv") as rules:
            rules.writelines(f"{code:X}\t20\n" for code in range(0x3001) if chr(code).isspace() and code != ord(" "))
            rules.flush()
            options |= {"normalization_rule_tsv": rules.name, "model_writer": model}
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(sentences), **options)
    except RuntimeError as error:
        if limit := re.search(r"<= (\d+)", str(error)):
            raise UserError(f"--vocab {vocab}: this text supports at most {limit.group(1)} pieces") from None
        if limit := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
            raise UserError(f"--vocab {vocab}: below this text's {limit.group(1)} characters; raise it") from None
        raise UserError(f"--vocab {vocab}: SentencePiece cannot train on this text ({error})") from error
    return model.getvalue()
