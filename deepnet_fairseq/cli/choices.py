"""The command that answers multiple-choice items."""

from __future__ import annotations

import json
from pathlib import Path

from ..atomic_output import check_file
from ..choices.scoring import NORMALISATIONS
from ..errors import UserError


def score_choices(args) -> None:
    """multiple-choice items, answered by what a language model finds likeliest

    An item is a line of FILE: {"context": "...", "choices": ["...", "..."]}, if wanted with "answer" (number of the
    right choice, the first is 0), "id" and "unconditional_context".
    """
    from ..choices import items, report
    from ..choices.model import load
    from ..choices.pieces import Reader
    from ..choices.scoring import score
    from ..data.monolingual import segmenter

    if args.batch_tokens < 1:
        raise UserError(f"--batch-tokens {args.batch_tokens}: must be at least 1")
    if args.results:
        check_file("--results", Path(args.results), (Path(args.file), Path(args.path)))
    read = items.read_items(Path(args.file))
    model, folder = load(args.path, args.data, args.cpu)
    reader = Reader(segmenter.read(folder), model.dictionary, args.delimiter)
    scored = score(read, model, reader, args.normalise, args.batch_tokens)
    if args.results:
        report.write_results(Path(args.results), scored)
    found = report.summary(scored, args.normalise)
    print(json.dumps(found) if args.json else report.as_text(found))


def add(command) -> None:
    """Registers `deepnet score-choices` and its flags; command: as parser() gives it."""
    sub = command("score-choices", score_choices)
    sub.add_argument("file", metavar="FILE")
    sub.add_argument("--path", required=True, metavar="CHECKPOINT", help="of --task language_modeling")
    sub.add_argument("--data", metavar="DEST", help="made by `deepnet prepare-lm` (default: where it was trained from)")
    sub.add_argument("--normalise", choices=tuple(NORMALISATIONS), default="tokens",
                     help="log-likelihood as it is, per piece (default), per byte, or less that of the choice behind "
                     "unconditional_context (default \"Answer:\")")  # fmt: skip
    sub.add_argument("--delimiter", default=" ", metavar="TEXT",
                     help="between context and choice where neither has white space (default a blank)")  # fmt: skip
    sub.add_argument("--batch-tokens", type=int, default=4096, metavar="N", help="tokens at once (default 4096)")
    sub.add_argument("--cpu", action="store_true")
    sub.add_argument("--results", metavar="OUT", help="scores and prediction of every item, as JSON lines")
    sub.add_argument("--json", action="store_true", help="print the summary as JSON")
