"""Commands that read finished runs."""

from __future__ import annotations

import json
import logging
from pathlib import Path


def score(args) -> None:
    """BLEU, chrF, length and speed of what fairseq-generate printed, or perplexities, as JSON

    With --data, against the raw references of a prepared corpus; without, against those in the output (lines T-n), as
    they are. "bleu" is the number to put beside the paper's; "sacrebleu" and "chrf" come with the 95% interval of 1000
    bootstrap samples.
    """
    from ..analysis.scoring import score
    from ..atomic_output import check_file, whole

    out = args.out and Path(args.out)
    if out:
        check_file("--out", out, (Path(args.generated),))
    text = json.dumps(score(Path(args.generated), args.data, args.paper, args.partial))
    print(text)
    if out:
        with whole(out) as part:
            part.write_text(text + "\n", encoding="utf-8")


def significance(args) -> None:
    """whether systems differ from a baseline: paired bootstraps of BLEU and chrF

    p is the chance of a difference as large between systems that are equally good, * below 0.05. Where the runs have
    many directions, each that all of them have is tested by itself.
    """
    from ..analysis.scoring.paired import significance, table

    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    systems = [Path(system) for system in args.systems]
    print(table(significance(Path(args.baseline), systems, args.data)))


def add(command) -> None:
    """Registers `deepnet score` and `significance` and their flags; command: as parser() gives it."""
    sub = command("score", score)
    sub.add_argument("generated", metavar="GENERATED", help="what fairseq-generate printed, or a folder of "
                     "[SUBSET/]SRC-TGT.txt; for --paper perplexity what fairseq-eval-lm or fairseq-validate "
                     "--log-format json logged, or a folder of SUBSET.txt")  # fmt: skip
    _add_data(sub)
    sub.add_argument("--paper", metavar="KIND[,SET=KIND]", help="what `bleu` shall be, as in the paper: tokenised, "
                     "sacrebleu or spbleu; others by test set. perplexity: of a language model's logs")  # fmt: skip
    sub.add_argument("--partial", action="store_true", help="although directions of the corpus are missing")
    sub.add_argument("--out", metavar="FILE", help="JSON to write too, whole or not at all")

    sub = command("significance", significance)
    sub.add_argument("baseline", metavar="BASELINE", help="a run's folder, or what fairseq-generate printed")
    sub.add_argument("systems", nargs="+", metavar="SYSTEM", help="the same of the systems to compare with it")
    _add_data(sub)


def _add_data(sub) -> None:
    sub.add_argument("--data", metavar="BIN", help="binarised data that was translated; recipe.json lies beside it")
