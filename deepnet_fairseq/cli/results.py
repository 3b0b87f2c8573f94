"""Commands that read finished runs."""

from __future__ import annotations

import json
from pathlib import Path


def compare(args) -> None:
    """a table and a plot of several runs: loss, BLEU, time"""
    from ..analysis.comparison import compare

    print(compare([Path(run) for run in args.runs], Path(args.reference), Path(args.plot)))


def score(args) -> None:
    """sacreBLEU of a fairseq-generate output, as JSON"""
    from ..analysis.scoring import score_generated

    value, signature = score_generated(Path(args.generated), args.tokenize)
    print(json.dumps({"bleu": round(value, 2), "signature": signature}))


def add(command) -> None:
    sub = command("compare", compare)
    sub.add_argument("runs", nargs="+", metavar="RUN", help="folder with train.log and generated.txt")
    sub.add_argument("--reference", required=True, help="reference translations, one a line")
    sub.add_argument("--plot", required=True, help="PNG to write")

    sub = command("score", score)
    sub.add_argument("generated", metavar="FILE", help="what fairseq-generate printed, with its references")
    sub.add_argument("--tokenize", default="13a", choices=("13a", "none", "intl", "char"), help="sacreBLEU's tokenizer")
