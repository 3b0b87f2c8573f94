"""`deepnet prepare KIND`, which makes data: of one's own text, of a paper's corpus, or of a made language.

A kind is a function of the parsed flags, `args`; its docstring is its help, and __init__.py prints the Shown that it
returns: text, and data for --json. register() lets fairseq know the package's models.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from .. import register
from ..errors import UserError
from . import Shown

PIECES = 10_000  # default size of the vocabulary of parallel text
LM_PIECES = 32_000  # default size of the vocabulary of a language model
SPLITS = ("train", "valid", "test")
USES = {"train": "train on", "valid": "validate on", "test": "test on"}  # split -> its use, in help texts
# arguments of add_argument for two flags that several kinds have
WORKERS: dict = {
    "type": int, "metavar": "N", "default": os.cpu_count(),
    "help": "number of processes that work side by side (default: one for each core)",
}  # fmt: skip
SAMPLE: dict = {
    "type": int, "metavar": "N",
    "help": "lines of text, drawn evenly, from which SentencePiece learns (default 1,000,000, or what fits in memory)",
}  # fmt: skip


def prepare(args) -> None:
    """Make binarised data, of your text or of a paper's corpus.

    `deepnet prepare KIND --help` explains each kind.

    example:
      deepnet prepare text de en corpus/train corpus/valid corpus/test data-bin/de-en
    """


def language(args) -> Shown:
    """Write sentence pairs of two made-up languages, as the quickstart does.

    example:
      deepnet prepare language text
      deepnet prepare text qaa qab text/train text/valid text/test data-bin --vocab 1000
    """
    from ..data import language

    corpus = language.make_corpus(language.SIZES, seed=args.seed, nouns=args.nouns, verbs=args.verbs)
    language.write_corpus(corpus, Path(args.dest))
    pairs = ", ".join(f"{count:,} {split}" for split, count in language.SIZES.items())
    return Shown(f"wrote {pairs} pairs to {args.dest}", {"wrote": args.dest, "pairs": language.SIZES})


def parallel_text(args) -> Shown:
    """Cut parallel text into pieces, and binarise it.

    The pieces are those of one SentencePiece model for both languages, whose files have a sentence a line, and
    the same number of lines. DEST gets the binarised data, the vocabulary, and the plain text to score against.

    examples, of corpus/train.de, corpus/train.en and so on; the second for a model that is to be fine-tuned:
      deepnet prepare text de en corpus/train corpus/valid corpus/test data-bin/de-en
      deepnet prepare text de en news/train news/valid news/test data-bin/news --like checkpoints/averaged.pt
    """
    register()
    from ..data.parallel_text import prepare_text

    if args.like is not None:  # no pieces are learnt, so flags of the learning have no effect
        for name in ("vocab", "vocab_sample"):
            if getattr(args, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UserError(flag, "--like takes the model's own pieces; leave one of them out")

    prepare_text(
        langs=(args.source, args.target),
        prefixes={"train": args.train, "valid": args.valid, "test": args.test},
        dest=Path(args.dest),
        vocab=PIECES if args.vocab is None else args.vocab,
        drop_empty=args.drop_empty,
        sample_lines=args.vocab_sample,
        workers=args.workers,
        like=args.like,
    )
    return _wrote(args)


def corpus(args) -> Shown:
    """Make a paper's corpus, from its published files on.

    With --plan it says what would be downloaded and done, and does nothing.

    examples:
      deepnet prepare corpus iwslt14_de_en data/iwslt14 --plan
      deepnet prepare corpus opus100 data/opus100 --pairs de-en,en-fr
    """
    from ..data import miniature
    from ..data.download import fetch_all
    from ..data.recipes import Options, find

    recipe = find(args.recipe)
    dest = Path(args.dest)
    downloads = Path(args.downloads) if args.downloads else dest / "downloads"
    options = Options(
        dest=dest,
        downloads=downloads / "miniature" if args.miniature else downloads,  # generated files stay apart from real ones
        fetch=miniature.write if args.miniature else fetch_all,
        workers=args.workers,
        pairs=tuple(args.pairs.split(",")) if args.pairs else None,
        text=args.text,
        vocab=args.vocab,
        vocab_sample=args.vocab_sample,
        shards=args.shards,
        temperature=args.temperature,
        spm=args.spm,
    )

    if args.plan:
        plan = recipe.plan(options)
        return Shown(plan, {"plan": plan})
    register()
    recipe.build(options)
    return _wrote(args)


def plain_text(args) -> Shown:
    """Cut text into pieces, and binarise it for a language model.

    Pieces are SentencePiece's, learnt on TRAIN, or GPT-2's byte-level BPE.

    examples:
      deepnet prepare lm wiki.train wiki.valid wiki.test data-bin/wiki --vocab 32000
      deepnet prepare lm wiki.train wiki.valid wiki.test data-bin/wiki --bpe gpt2
    """
    register()
    from ..data.lines import rereadable
    from ..data.lm_text import prepare_lm
    from ..files import check_folder

    if args.dict and not Path(args.dict).exists():
        raise UserError(f"--dict {args.dict}", "no such file")
    if "," in args.train:
        raise UserError(args.train, "one training file only; join them first")
    for kind, names in FLAGS_OF_BPE.items():
        for name in names:
            if kind != args.bpe and getattr(args, name) is not None:
                raise UserError(f"--{name.replace('_', '-')}", f"only with --bpe {kind}")
    check_folder("DEST", Path(args.dest))

    with ExitStack() as copies:
        # Each file is read several times. In args a pipe, which can be read once, is replaced by a copy of its content.
        for name in (*SPLITS, "dict", "spm", "encoder_json", "vocab_bpe"):
            given = getattr(args, name)
            if given is not None:
                files = given.split(",") if name in SPLITS else [given]
                paths = [str(copies.enter_context(rereadable(Path(file)))) for file in files]
                setattr(args, name, ",".join(paths))

        texts = {split: [Path(path) for path in getattr(args, split).split(",")] for split in SPLITS}
        dictionary = Path(args.dict) if args.dict else None
        prepare_lm(
            texts=texts,
            dest=Path(args.dest),
            make_segmenter=SEGMENTERS[args.bpe](args),
            dictionary=dictionary,
            workers=args.workers,
        )
    return _wrote(args)


def _wrote(args) -> Shown:
    """Return a Shown that prints nothing, because the preparation has printed what it did; --json gives the folder."""
    return Shown("", {"wrote": args.dest})


def _sentencepiece(args):
    """Return a function (folder, training text) -> data.lm_text.Segmenter, which cuts text into SentencePiece's pieces.

    Without --spm the function trains a SentencePiece model on the training text and writes it into the folder; with
    --spm it ignores both. prepare_lm calls it. Raises a UserError for flags that do not go together.
    """
    from ..data.lm_text import Segmenter, train_sentencepiece

    if args.spm:
        if args.vocab is not None or args.vocab_sample is not None:
            raise UserError("--spm is a vocabulary made already", "leave out --vocab and --vocab-sample")
        segmenter = Segmenter("sentencepiece", {"sentencepiece_model": Path(args.spm)})
        return lambda folder, text: segmenter
    vocab = LM_PIECES if args.vocab is None else args.vocab
    return lambda folder, text: train_sentencepiece(text, vocab, folder, args.vocab_sample)


def _gpt2(args):
    """Return a function (folder, training text) -> data.lm_text.Segmenter, which cuts text by GPT-2's byte-level BPE.

    The function ignores both, since GPT-2's vocabulary is fixed; it has them because prepare_lm calls all such
    functions alike. The files of the BPE are downloaded here, unless they are given by flags.
    """
    from ..data.lm_text import Segmenter, fetch_gpt2

    if bool(args.encoder_json) != bool(args.vocab_bpe):
        raise UserError("--encoder-json and --vocab-bpe", "give both, or neither")
    paths = {"encoder.json": args.encoder_json, "vocab.bpe": args.vocab_bpe}
    if not args.encoder_json:
        folder = Path(args.downloads) if args.downloads else Path(args.dest).resolve().parent / "gpt2_bpe"
        paths = fetch_gpt2(folder)
    files = {"gpt2_encoder_json": Path(paths["encoder.json"]), "gpt2_vocab_bpe": Path(paths["vocab.bpe"])}
    segmenter = Segmenter("gpt2", files)
    return lambda folder, text: segmenter


SEGMENTERS = {"sentencepiece": _sentencepiece, "gpt2": _gpt2}  # by the value of --bpe
FLAGS_OF_BPE = {  # value of --bpe -> flags of `deepnet prepare lm` that have an effect with this value alone
    "sentencepiece": ("vocab", "vocab_sample", "spm"),
    "gpt2": ("encoder_json", "vocab_bpe", "downloads"),
}


def add(command) -> None:
    """Register `deepnet prepare` with its kinds, and their flags.

    command: function (name, function, among=subparsers) that makes the parser of a subcommand or a kind, see __init__.
    """
    kinds = command("prepare", prepare).add_subparsers(required=True, metavar="KIND", title="kinds")

    sub = command("text", parallel_text, among=kinds)
    sub.add_argument("source", metavar="SOURCE", help="code of the source language, the ending of its files")
    sub.add_argument("target", metavar="TARGET", help="code of the target language, the ending of its files")
    for split in SPLITS:
        sub.add_argument(
            split,
            metavar=split.upper(),
            help=f"start of two files' names, {split.upper()}.SOURCE and {split.upper()}.TARGET: text to {USES[split]}",
        )
    sub.add_argument("dest", metavar="DEST", help="folder to make, with the binarised data for fairseq-train")
    sub.add_argument(
        "--vocab", type=int, metavar="N", help=f"number of SentencePiece pieces to learn (default {PIECES:,})"
    )
    sub.add_argument("--vocab-sample", **SAMPLE)
    sub.add_argument(
        "--like", metavar="MODEL", help="checkpoint, its data or its export, whose pieces and dictionary to use"
    )
    sub.add_argument(
        "--drop-empty", action="store_true", help="leave out sentence pairs with an empty line on either side"
    )
    sub.add_argument("--workers", **WORKERS)

    sub = command("lm", plain_text, among=kinds)
    sub.add_argument("train", metavar="TRAIN", help="text file to train on: a sentence a line, an empty line between "
                     "documents; - is standard input")  # fmt: skip
    sub.add_argument("valid", metavar="VALID", help="text file to validate on, or several with commas between")
    sub.add_argument("test", metavar="TEST", help="text file to test on, or several with commas between")
    sub.add_argument("dest", metavar="DEST", help="folder to make, with the binarised data for fairseq-train")
    sub.add_argument(
        "--bpe", choices=tuple(SEGMENTERS), default="sentencepiece", help="what cuts the text (default sentencepiece)"
    )
    sub.add_argument(
        "--vocab",
        type=int,
        metavar="N",
        help=f"number of SentencePiece pieces to learn of TRAIN (default {LM_PIECES:,})",
    )
    sub.add_argument("--vocab-sample", **SAMPLE)
    sub.add_argument("--spm", metavar="FILE", help="a SentencePiece model to take instead of training one")
    sub.add_argument(
        "--encoder-json", metavar="FILE", help="GPT-2's encoder.json, for --bpe gpt2 (default: downloaded)"
    )
    sub.add_argument("--vocab-bpe", metavar="FILE", help="GPT-2's vocab.bpe, for --bpe gpt2 (default: downloaded)")
    sub.add_argument(
        "--downloads", metavar="DIR", help="folder for GPT-2's downloaded files (default: gpt2_bpe beside DEST)"
    )
    sub.add_argument(
        "--dict", metavar="FILE", help="dict.txt of a model that is to read DEST (default: a new one is made of TRAIN)"
    )
    sub.add_argument("--workers", **WORKERS)

    sub = command("corpus", corpus, among=kinds)
    sub.add_argument(
        "recipe", metavar="RECIPE", help="name of the corpus; a word that is no such name prints the names"
    )
    sub.add_argument("dest", metavar="DEST", help="folder to fill; started again, the command goes on where it stopped")
    sub.add_argument("--plan", action="store_true", help="print what would be downloaded and made, and do nothing")
    sub.add_argument(
        "--from",
        dest="text",
        type=Path,
        metavar="FOLDER",
        help="folder of your own text or test sets, see docs/corpora.md",
    )
    sub.add_argument(
        "--pairs",
        metavar="de-en,fr-en",
        help="language pairs to make, beside those that DEST has (default: all; m2m102 needs some)",
    )
    sub.add_argument("--downloads", metavar="DIR", help="folder of the downloaded files (default: DEST/downloads)")
    sub.add_argument("--workers", **WORKERS)
    sub.add_argument(
        "--vocab", type=int, metavar="N", help="number of BPE merges or SentencePiece pieces (default: the recipe's)"
    )
    sub.add_argument(
        "--vocab-sample",
        **SAMPLE | {"help": "lines of text, drawn evenly, from which SentencePiece learns (default: the recipe's)"},
    )
    sub.add_argument(
        "--shards",
        type=int,
        metavar="N",
        help="parts of the training data, of which fairseq reads one an epoch (default 1)",
    )
    sub.add_argument(
        "--temperature", type=float, metavar="T", help="the larger, the more small languages shape the vocabulary "
        "(default 5; 1 keeps proportions)"
    )  # fmt: skip
    sub.add_argument("--spm", type=Path, metavar="FILE", help="a SentencePiece model to take instead of training one")
    sub.add_argument(
        "--miniature", action="store_true", help="make a small corpus of generated files, without downloads"
    )

    sub = command("language", language, among=kinds)
    sub.add_argument("dest", metavar="DEST", help="folder for train.qaa, train.qab, and the same of valid and test")
    sub.add_argument("--nouns", type=int, default=120, metavar="N", help="number of nouns in a language (default 120)")
    sub.add_argument("--verbs", type=int, default=60, metavar="N", help="number of verbs in a language (default 60)")
    sub.add_argument("--seed", type=int, default=1, metavar="N", help="random seed of the sentences (default 1)")
