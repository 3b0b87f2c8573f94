"""The command that makes the corpora of the papers."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UserError


def prepare(args) -> None:
    """a corpus of the papers, from its published files to binarised data"""
    try:
        _prepare(args)
    except ModuleNotFoundError as error:
        raise UserError(f"prepare: needs {error.name}; pip install 'deepnet_fairseq[data]' brings it") from error


def _prepare(args) -> None:
    from ..data.processes import die_with_parent
    from ..data.recipes import Options, find

    if args.miniature:
        die_with_parent()  # with it goes the server
    recipe, dest = find(args.recipe), Path(args.dest)
    downloads = Path(args.downloads) if args.downloads else dest / "downloads"
    options = Options(
        dest=dest,
        downloads=downloads / "miniature" if args.miniature else downloads,
        mirror=args.mirror,
        miniature=args.miniature,
        moses=args.moses,
        workers=args.workers,
        pairs=tuple(args.pairs.split(",")) if args.pairs else None,
        text=args.text,
        vocab=args.vocab,
        shards=args.shards,
        temperature=args.temperature,
        spm=args.spm,
    )
    print(recipe.plan(options)) if args.plan else recipe.build(options)


def add(command) -> None:
    """Registers `deepnet prepare` and its flags; command: as parser() gives it."""
    sub = command("prepare", prepare)
    sub.add_argument("recipe", metavar="RECIPE", help="which corpus; any other word lists them")
    sub.add_argument("dest", metavar="DEST", help="folder to fill; started again, the command goes on where it stopped")
    sub.add_argument("--plan", action="store_true", help="say what would be done: files, steps, tools, counts")
    sub.add_argument("--from", dest="text", type=Path, metavar="FOLDER", help="text that is tokenised already")
    sub.add_argument("--pairs", metavar="de-en,fr-en", help="these language pairs only")
    sub.add_argument("--downloads", metavar="DIR", help="where downloads lie (default DEST/downloads)")
    sub.add_argument("--mirror", metavar="URL", default=os.environ.get("DEEPNET_MIRROR"),
                     help="take each file from URL/HOST/PATH (default $DEEPNET_MIRROR)")  # fmt: skip
    sub.add_argument("--moses", type=Path, metavar="DIR", help="a checkout of mosesdecoder: its Perl scripts tokenise")
    sub.add_argument("--workers", type=int, metavar="N", default=os.cpu_count(), help="processes (default: all cores)")
    sub.add_argument("--vocab", type=int, metavar="N", help="BPE merges or SentencePiece pieces (default the recipe's)")
    sub.add_argument("--shards", type=int, metavar="N", help="parts of the binarised training data")
    sub.add_argument("--temperature", type=float, metavar="T", help="of the sampling of languages for the vocabulary")
    sub.add_argument("--spm", type=Path, metavar="FILE", help="a SentencePiece model to take instead of training one")
    sub.add_argument("--miniature", action="store_true", help="the files are those of `deepnet serve-miniature`")
