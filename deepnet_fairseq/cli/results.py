"""Commands that read finished runs: scores, tests, and what is set or drawn beside the papers' numbers."""

from __future__ import annotations

import json
import logging
from pathlib import Path

# sacreBLEU's, and th, words by PyThaiNLP; none of them is downloaded
TOKENIZERS = ("13a", "intl", "char", "none", "zh", "ja-mecab", "ko-mecab", "th")


def score(args) -> None:
    """BLEU, chrF, length and speed of what fairseq-generate printed, or perplexities

    With --data, against the raw references of a prepared corpus; without, against those in the output (lines T-n), as
    they are. BLEU is sacreBLEU's, with the tokenizer of the target language. The 95% intervals are of 1,000 bootstrap
    samples. In the JSON, "bleu" is the number to put beside the paper's.
    """
    from ..files import check_file, whole
    from ..study.scoring.scores import score, score_table

    out = args.out and Path(args.out)
    if out:
        check_file("--out", out, (Path(args.generated),))
    found = score(Path(args.generated), args.data, args.paper, args.partial, args.tokenize)
    text = json.dumps(found)
    print(text if args.json else score_table(found))
    if out:
        with whole(out) as part:
            part.write_text(text + "\n", encoding="utf-8")


def significance(args) -> None:
    """whether systems differ from a baseline: paired bootstraps of BLEU and chrF

    p is the chance of a difference as large between systems that are equally good, * below 0.05. Where the runs have
    many directions, each that all of them have is tested by itself.
    """
    from ..study.scoring.paired import significance, table

    logging.getLogger("sacrebleu").setLevel(logging.WARNING)
    systems = [Path(system) for system in args.systems]
    print(table(significance(Path(args.baseline), systems, args.data, args.tokenize)))


def table_report(args) -> None:
    """a table of a paper, measured beside published, from recorded runs

    Reads RUNS/EXPERIMENT, one folder a run, and the records in RUNS/EXPERIMENT.jsonl, one line a run. Trains nothing:
    what was not run says so.
    """
    from ..study.tables import render_report

    out = args.out and Path(args.out)
    text = render_report(Path(args.runs), args.table, out)
    print(f"wrote {out}" if out else text, end="\n" if out else "")


def figures(args) -> None:
    """Figures 3-8 and 10 of the DeepNet paper, 3 and 4 of NormFormer's, measured beside published, from recorded runs.

    Reads RUNS/figureN and the like, trains nothing, and writes figureN.png and its numbers, figureN.md. 10 is 9 too;
    `depth` draws the losses of the quickstart's runs, RUNS/quickstart; inverted_gain those of its script.
    """
    from ..study.figures import chosen, redraw

    runs = Path(args.runs)
    out = Path(args.out) if args.out else runs
    for figure in chosen(runs, args.only):
        print(redraw(runs, figure, out))


def add(command) -> None:
    """Registers `deepnet score`, `significance`, `report` and `figures`; command: as parser() gives it."""
    sub = command("score", score)
    sub.add_argument("generated", metavar="GENERATED", help="what fairseq-generate printed, or a folder of "
                     "[SUBSET/]SRC-TGT.txt; for --paper perplexity what fairseq-eval-lm or fairseq-validate "
                     "--log-format json logged, or a folder of SUBSET.txt")  # fmt: skip
    _add_data(sub)
    sub.add_argument("--paper", metavar="KIND[,SET=KIND]", help="what `bleu` shall be, as in the paper: tokenised, "
                     "sacrebleu, spbleu or m2m; others by test set. perplexity: of language models' logs")  # fmt: skip
    sub.add_argument("--partial", action="store_true", help="although directions of the corpus are missing")
    sub.add_argument("--json", action="store_true", help="print JSON for programs instead of a table")
    sub.add_argument("--out", metavar="FILE", help="JSON file to write too, whole or not at all")

    sub = command("significance", significance)
    sub.add_argument("baseline", metavar="BASELINE", help="a run's folder, or what fairseq-generate printed")
    sub.add_argument("systems", nargs="+", metavar="SYSTEM", help="the same of the systems to compare with it")
    _add_data(sub)

    sub = command("report", table_report)
    sub.add_argument("runs", metavar="RUNS", help="folder with table1, iwslt14 and so on, each with one folder a run")
    sub.add_argument("--table", required=True, metavar="NAME", help="1, 2, 3, iwslt14, opus100, admin_wmt14, "
                     "admin_iwslt14, normformer_clm, normformer_ablation, normformer_mlm")  # fmt: skip
    sub.add_argument("--out", metavar="FILE", help="Markdown file to write; without it the page is printed")

    sub = command("figures", figures)
    sub.add_argument("runs", metavar="RUNS", help="folder with figure3, figure4 and so on, each with one folder a run")
    sub.add_argument("--only", metavar="N,N", help="figures to draw, as 4,5,normformer4; without it all that have runs")
    sub.add_argument("--out", metavar="DIR", help="folder to write to, made if it is not there; default RUNS")


def _add_data(sub) -> None:
    sub.add_argument("--data", metavar="BIN", help="binarised data that was translated; recipe.json lies beside it")
    sub.add_argument("--tokenize", metavar="NAME", choices=TOKENIZERS, help="sacreBLEU's tokenizer: "
                     "%(choices)s (default: by target language zh, ja-mecab, ko-mecab or th, else 13a)")  # fmt: skip
