"""Commands that read finished runs: scores and tests, tables and figures beside the papers' numbers.

A command is a function of the parsed flags, `args`; its docstring is its help, and __init__.py prints the Shown that it
returns: text, and data for --json. A system is what translated: a model of which there is fairseq-generate's output.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from ..errors import UserError
from . import Shown

# sacreBLEU's tokenizers, and th, which splits words by PyThaiNLP; none of them has to be downloaded
TOKENIZERS = ("13a", "intl", "char", "none", "zh", "ja-mecab", "ko-mecab", "th")


def score(args) -> Shown:
    """Score translations, and test whether systems differ.

    BLEU, chrF, length and speed: with --data against the raw references of a prepared corpus; without, against
    those in the output (lines T-n), as they are. BLEU is sacreBLEU's, with the tokenizer of the target
    language; 95% intervals are of 1,000 bootstrap samples. --paper chooses which of several BLEUs is "bleu" in
    the JSON: the one that a paper reports, for all test sets or for each. With --paper perplexity GENERATED is
    what fairseq-eval-lm or fairseq-validate --log-format json logged, or a folder of SUBSET.txt.

    Several systems are compared by paired bootstraps: p is the chance of a difference as large between systems that
    are equally good, * below 0.05. Each direction that all of them have is tested by itself.

    examples:
      deepnet score generated.txt --data data-bin/de-en
      deepnet score baseline/generated.txt mine/generated.txt --data data-bin/de-en
    """
    from ..files import check_file, whole

    out = Path(args.out) if args.out else None
    if out:
        inputs = [Path(output) for output in (args.generated, *args.systems)]
        check_file("--out", out, tuple(inputs))

    shown = _differences(args) if args.systems else _scores(args)
    if out:
        with whole(out) as part:
            part.write_text(json.dumps(shown.data) + "\n", encoding="utf-8")
    return shown


def _scores(args) -> Shown:
    """Score the output GENERATED; return its tables, and as data the content of score.json."""
    from ..study.scoring.scores import score, score_table

    scores = score(Path(args.generated), data=args.data, paper=args.paper, partial=args.partial, tokenize=args.tokenize)
    return Shown(score_table(scores), scores)


def _differences(args) -> Shown:
    """Compare each output of SYSTEM with GENERATED; return the table, and as data a list of entries, one a test set.

    An entry has "set", (subset, direction) or None; "systems", their names; for each metric the list of their results,
    as dictionaries; and "notes". UserError for flags that are for a single output.
    """
    from ..study.scoring.paired import significance, significance_table

    if args.paper or args.partial:
        raise UserError("--paper and --partial", "are for the score of one system; drop them to compare systems")
    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    systems = [Path(system) for system in args.systems]
    comparisons = significance(Path(args.generated), systems, data=args.data, tokenize=args.tokenize)

    data = []  # an entry for each test set
    for test_set, comparison in comparisons.items():
        entry: dict[str, Any] = {"set": test_set, "systems": comparison.systems}
        for metric, results in comparison.results.items():
            entry[metric] = [vars(result) for result in results]
        entry["notes"] = comparison.notes
        data.append(entry)
    return Shown(significance_table(comparisons), data)


def report(args) -> Shown:
    """Set recorded runs beside a paper's table or figures.

    Nothing is trained. A table reads RUNS/EXPERIMENT, one folder a run, and the records in
    RUNS/EXPERIMENT.jsonl, one line a run; what was not run says so. Figures read RUNS/figureN and the like, and
    write figureN.png and its numbers, figureN.md, into RUNS or --out: 3 to 8, 10, depth, inverted_gain,
    normformer3 and normformer4.

    examples:
      deepnet report runs --table 1
      deepnet report runs --figures 4,5 --out pictures
    """
    if args.runs is None and args.figures:  # in `report --figures RUNS` RUNS was taken for the value of --figures
        args.runs = args.figures
        args.figures = ""
    if args.runs is None:
        raise UserError("RUNS", "give the folder of the runs")
    runs = Path(args.runs)
    out = Path(args.out) if args.out else None

    if args.figures is not None:
        from ..study.figures import parse_figures, redraw

        figures = parse_figures(runs, args.figures or None)  # "" is for all that have runs
        written = [redraw(runs, figure, out or runs) for figure in figures]
        return Shown("\n".join(written), {"wrote": written})

    from ..study.tables import render_report

    text = render_report(runs, args.table, out)
    return Shown(f"wrote {out}" if out else text.rstrip("\n"), {"table": args.table, "markdown": text})


def add(command) -> None:
    """Register `deepnet score` and `report`, with their flags.

    command: function (name, function) that makes a subcommand's parser and returns it, see __init__.
    """
    sub = command("score", score)
    sub.add_argument("generated", metavar="GENERATED", help="output of fairseq-generate, or a folder of SRC-TGT.txt")
    sub.add_argument("systems", nargs="*", metavar="SYSTEM", help="outputs of other systems on the same test set, to "
                     "compare with GENERATED")  # fmt: skip
    sub.add_argument("--data", metavar="BIN", help="binarised data that was translated, of `deepnet prepare`: its raw "
                     "references are scored against (default: those in GENERATED)")  # fmt: skip
    sub.add_argument(
        "--tokenize",
        metavar="NAME",
        choices=TOKENIZERS,
        help="sacreBLEU's tokenizer: one of %(choices)s (default: by the target language)",
    )
    sub.add_argument("--paper", metavar="KIND[,SET=KIND]", help="which BLEU is the JSON's main one: tokenised, "
                     "sacrebleu, spbleu or m2m; or perplexity")  # fmt: skip
    sub.add_argument(
        "--partial",
        action="store_true",
        help="score even if translations of some of the corpus's directions are missing",
    )
    sub.add_argument("--out", metavar="FILE", help="JSON file to write the scores to, beside what is printed")

    sub = command("report", report)
    sub.add_argument(
        "runs",
        metavar="RUNS",
        nargs="?",
        help="folder with subfolders table1, figure3, ..., each with a folder for a run",
    )
    what = sub.add_mutually_exclusive_group(required=True)
    what.add_argument("--table", metavar="NAME", help="name of the table; a word that is no such name prints the names")
    what.add_argument(
        "--figures",
        nargs="?",
        const="",
        metavar="N,N",
        help="names of figures, as 3,depth; without any, all that have runs",
    )
    sub.add_argument("--out", metavar="PATH", help="Markdown file for a table (default: print it), or folder for "
                     "figures (default: RUNS)")  # fmt: skip
