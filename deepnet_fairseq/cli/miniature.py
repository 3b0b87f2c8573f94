"""The command that stands in for the servers of the corpora."""

from __future__ import annotations

import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path


def serve_miniature(args) -> None:
    """a miniature of a corpus on a loopback server: `deepnet prepare --miniature --mirror URL`"""
    from ..data.miniature import build, serve

    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the temporary folder goes
    pairs = tuple(args.pairs.split(",")) if args.pairs else None
    with suppress(KeyboardInterrupt), tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or Path(temporary)) / args.recipe
        build(args.recipe, folder, pairs)
        with serve(folder, args.port) as url:
            print(url, flush=True)
            if args.until_stdin_closes:
                sys.stdin.buffer.read()
            else:
                signal.pause()


def add(command) -> None:
    """Registers `deepnet serve-miniature` and its flags; command: as parser() gives it."""
    sub = command("serve-miniature", serve_miniature)
    sub.add_argument("recipe", metavar="RECIPE", help="whose files; any other word lists them")
    sub.add_argument("--pairs", metavar="de-en,en-fr", help="these language pairs only")
    sub.add_argument("--port", type=int, default=0, help="default: a free one; the URL is the first line printed")
    sub.add_argument(
        "--folder", type=Path, metavar="DIR", help="keep the files in DIR/RECIPE (default: a temporary folder)"
    )
    sub.add_argument("--until-stdin-closes", action="store_true", help="end when standard input does")
