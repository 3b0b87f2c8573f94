"""Commands that use or change trained models: translate, generate, export, average; and profile, which measures one.

A command is a function of the parsed flags, `args`; args.rest are words that the parser does not know. Its docstring is
its help, and __init__.py prints the Shown that it returns: text, and data for --json. register() lets fairseq know the
package's models. Admin's omegas are the factors of its shortcuts, one for each sublayer, measured before the training.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from .. import register
from ..errors import UserError
from . import Shown


def profile(args) -> Shown:
    """Measure Admin's omegas on the first training batch.

    Omegas are the factors of Admin's shortcuts, one for each sublayer.

    Takes every flag of fairseq-train: give those of the run to come, for the profile holds for its architecture, data,
    dropout and seed.

    example:
      deepnet profile DATA --arch deepnet_transformer_18_18 --max-tokens 4096 --out profile.json
      fairseq-train DATA --arch deepnet_transformer_18_18 --max-tokens 4096 --method admin --admin-profile profile.json
    """
    register()
    from ..files import check_file
    from ..tools.profile import profile_run

    check_file("--out", Path(args.out))
    measured = profile_run(args.rest)
    measured.write(Path(args.out))

    last_omegas = []  # that of the last sublayer of each stack
    for stack in ("encoder", "decoder"):
        omegas = measured.omegas_of(stack)
        if omegas:
            last_omegas.append(f"{stack} {omegas[-1]:.4f}")
    text = f"""wrote {len(measured.omega)} omegas to {args.out}; of the last sublayers: {", ".join(last_omegas)}
now train with the same flags and --method admin --admin-profile {shlex.quote(args.out)}"""
    return Shown(text, {"wrote": args.out, "omega": measured.omega})


TARGETS_OF_FLAG = {  # flag of `deepnet export` -> the values of --to with which it has an effect
    "fp16": ("transformer",),
    "quantization": ("ctranslate2",),
    "data": ("ctranslate2", "huggingface"),
    "subwords": ("ctranslate2", "huggingface"),
    "beam": ("huggingface",),
    "lenpen": ("huggingface",),
}


def export(args) -> Shown:
    """Write a trained model as a plain Transformer, to serve it.

    Readers are stock fairseq (transformer), CTranslate2 and Hugging Face's transformers. `deepnet methods NAME` says
    which methods become one.

    example:
      deepnet export checkpoints/averaged.pt --to ctranslate2 --out served --quantization int8
    """
    register()
    from ..files import check_file, check_folder
    from ..tools.export.transformer import fold_checkpoint

    if args.to == "ctranslate2" and args.fp16:
        raise UserError("--fp16", "with --to ctranslate2 say --quantization float16")
    for flag, targets in TARGETS_OF_FLAG.items():
        value = getattr(args, flag)
        is_given = value is not None and value is not False  # a user may give 0 and "" too
        if args.to not in targets and is_given:
            raise UserError(f"--{flag}", f"only with --to {' or '.join(targets)}; leave it out")
    if args.to == "transformer":
        check_file("--out", Path(args.out), (Path(args.checkpoint),))
    else:
        check_folder("--out", Path(args.out))

    folded = fold_checkpoint(args.checkpoint)
    written = WRITERS[args.to](args, folded)
    text = f"converted {args.checkpoint}; largest difference of log-probabilities {folded.difference:.1e}"
    return Shown(f"{text}\n{written}", {"wrote": args.out, "difference": folded.difference})


def _to_transformer(args, folded) -> str:
    """Write a checkpoint for stock fairseq; return the line to print, as the other functions of WRITERS do.

    args: the flags of `deepnet export`; folded: a tools.export.transformer.Folded, the model as a plain Transformer.
    """
    from ..tools.export.transformer import write_transformer

    write_transformer(folded, Path(args.out), half=args.fp16)
    return f"wrote {args.out}; {folded.stock.reader} reads it without --user-dir"


def _to_ctranslate2(args, folded) -> str:
    """Write a folder for CTranslate2; return the line to print.

    args: the flags of `deepnet export`; folded: a tools.export.transformer.Folded, the model as a plain Transformer.
    """
    from ..tools.export.ctranslate2 import write_ctranslate2
    from ..tools.export.served import serve

    served = serve(folded, args.data, args.subwords)
    difference = write_ctranslate2(served, Path(args.out), args.quantization)
    return f"wrote {args.out}; its log-probability of a token differs by at most {difference:.1e}"


def _to_huggingface(args, folded) -> str:
    """Write a folder for Hugging Face's transformers; return the line to print. UserError for a beam below 1.

    args: the flags of `deepnet export`; folded: a tools.export.transformer.Folded, the model as a plain Transformer.
    """
    from ..tools.export.huggingface import write_huggingface
    from ..tools.export.served import serve
    from ..tools.translation import Settings

    search = None  # settings of generate() to write into the folder; None if neither flag is given
    if args.beam is not None or args.lenpen is not None:
        search = Settings()
        if args.beam is not None:
            search = replace(search, beam=args.beam)
        if args.lenpen is not None:
            search = replace(search, lenpen=args.lenpen)
        if search.beam < 1:
            raise UserError(f"--beam {search.beam}", "must be at least 1")

    served = serve(folded, args.data, args.subwords)
    name, difference = write_huggingface(served, Path(args.out), args.subwords, search)
    return f"wrote {args.out}, a {name}; its logits differ by at most {difference:.1e}"


# Value of --to -> function (flags, folded model) that writes the model and returns a line to print.
WRITERS = {"transformer": _to_transformer, "ctranslate2": _to_ctranslate2, "huggingface": _to_huggingface}


def translate(args) -> None:
    """Translate lines of text by a checkpoint, or a folder of `deepnet export`.

    A line of text in, a line of text out, in order; a blank line stays blank. A line with more pieces than the model
    has positions gives an empty one; it is named on stderr, and the status is then 1. Lines of a pipe are answered as
    they come. A checkpoint goes through CTranslate2 where its method folds and CTranslate2 is installed, else through
    the package's own decoder.

    example:
      echo "Ein Beispiel." | deepnet translate checkpoints/averaged.pt
      deepnet translate served news.de --beam 4 > news.en
    """
    from ..tools import translation

    settings = translation.Settings(
        beam=args.beam, lenpen=args.lenpen, max_tokens=args.max_tokens, threads=args.threads, int8=args.int8
    )
    translation.run(
        model=args.model,
        file=args.file,
        settings=settings,
        data=args.data,
        source=args.source_lang,
        target=args.target_lang,
        subwords=args.subwords,
        nbest=args.nbest,
    )


def average(args) -> Shown:
    """Average a run's last or best checkpoints, or the files given.

    example:
      deepnet average checkpoints --last 5 --out checkpoints/averaged.pt
    """
    register()
    from ..files import check_file
    from ..tools import averaging

    if args.last is None and args.best is None:
        if args.checkpoint_suffix:
            raise UserError("--checkpoint-suffix", "only with --last or --best; leave it out")
        paths = [Path(path) for path in args.inputs]
        for path in paths:
            if path.is_dir():
                raise UserError(path, "a folder; add --last K or --best K")
    else:
        folder = Path(args.inputs[0])
        if len(args.inputs) == 1 and not folder.exists():
            raise UserError(folder, "no such folder; give the one that holds the checkpoints")
        if len(args.inputs) > 1 or not folder.is_dir():
            raise UserError("--last and --best", "give the one folder that holds the checkpoints")
        if args.best is None:
            _check_number("--last", args.last)
            paths = averaging.last(folder, args.last, args.checkpoint_suffix)
        else:
            _check_number("--best", args.best)
            paths = averaging.best(folder, args.best, args.checkpoint_suffix)

    check_file("--out", Path(args.out), tuple(paths))
    averaging.average(paths, Path(args.out))
    names = [path.name for path in paths]
    return Shown(f"wrote {args.out}, the mean of {', '.join(names)}", {"wrote": args.out, "mean of": names})


def _check_number(flag: str, number: int) -> None:
    """Raise a UserError if a flag's value, a number of checkpoints, is below 1; flag: its name, for the message."""
    if number < 1:
        raise UserError(f"{flag} {number}", "must be at least 1")


def generate(args) -> Shown:
    """Translate a test set in several directions with one model, loaded once.

    Takes every flag of fairseq-generate but the languages. A direction that is in the folder already is left alone.

    example:
      deepnet generate DATA --path checkpoints/averaged.pt --directions de-en,fr-en --out generated --beam 5
    """
    register()
    from ..tools.generation import translate_directions

    translate_directions(args.directions.split(","), Path(args.out), args.rest)
    return Shown(f"translated {args.directions} into {args.out}", {"wrote": args.out})


def add(command) -> None:
    """Register `deepnet translate`, `generate`, `profile`, `export` and `average`, with their flags.

    command: function (name, function, usage="") that makes a subcommand's parser and returns it, see __init__.
    """
    sub = command("translate", translate)
    sub.add_argument("model", metavar="MODEL", help="checkpoint, or folder of `deepnet export`")
    sub.add_argument("file", metavar="FILE", nargs="?", help="UTF-8 text, a sentence a line (default: standard input)")
    sub.add_argument("--source-lang", metavar="LANG", help="language of the text, which a multilingual model needs")
    sub.add_argument(
        "--target-lang", metavar="LANG", help="language of the translation, which a multilingual model needs"
    )
    sub.add_argument("--beam", type=int, default=5, metavar="N", help="beams of the search (default: 5)")
    sub.add_argument(
        "--lenpen", type=float, default=1.0, metavar="X", help="length penalty; above 1 favours long lines (default: 1)"
    )
    sub.add_argument("--nbest", type=int, metavar="N", help="print N translations of each line: its number, score and "
                     "text with tabs between (default: the text of the best)")  # fmt: skip
    sub.add_argument(
        "--max-tokens", type=int, default=2000, metavar="N", help="largest batch, in source tokens (default: 2000)"
    )
    sub.add_argument("--threads", type=int, metavar="N", help="number of threads (default: OMP_NUM_THREADS, else as "
                     "many as suit the model, docs/translating.md)")  # fmt: skip
    sub.add_argument("--int8", action="store_true", help="compute in 8 bits, by CTranslate2 only")
    sub.add_argument(
        "--data", metavar="DATA", help="binarised data of a checkpoint (default: where it was trained from)"
    )
    sub.add_argument("--subwords", metavar="FILE", help="what cuts a checkpoint's text: SentencePiece model or BPE "
                     "codes, or none (default: the file beside its data)")  # fmt: skip

    flags = "DATA --path CHECKPOINT --directions SRC-TGT,... --out FOLDER [fairseq-generate's]"
    sub = command("generate", generate, flags)
    sub.add_argument(
        "--directions", required=True, metavar="SRC-TGT,...", help="directions to translate in, as de-en,fr-en"
    )
    sub.add_argument(
        "--out", required=True, metavar="FOLDER", help="folder for SRC-TGT.txt and SRC-TGT.log of each direction"
    )

    flags = "DATA --arch ARCH --max-tokens N --out FILE [flags of fairseq-train]"
    sub = command("profile", profile, flags)
    sub.add_argument("--out", required=True, metavar="FILE", help="file to write the omegas to, for --admin-profile")

    sub = command("export", export)
    sub.add_argument("checkpoint", metavar="CHECKPOINT", help="checkpoint of fairseq-train, or an average of some")
    sub.add_argument(
        "--to", required=True, choices=tuple(WRITERS), help="what is to read the model; transformer is stock fairseq's"
    )
    sub.add_argument("--out", required=True, help="file to write with --to transformer, folder with the others")
    sub.add_argument("--fp16", action="store_true", help="with --to transformer: write weights in half precision")
    sub.add_argument("--quantization", metavar="TYPE", help="with --to ctranslate2: int8, int8_float32, float16, ... "
                     "(default: float32)")  # fmt: skip
    folders = "with --to ctranslate2 and huggingface"
    sub.add_argument("--data", help=f"{folders}: the run's binarised data (default: where it was trained from)")
    sub.add_argument("--subwords", metavar="FILE", help=f"{folders}: what cuts the text, or none, for a translator "
                     "of text that comes cut (default: the file beside the data)")  # fmt: skip
    sub.add_argument("--beam", type=int, metavar="N", help="with --to huggingface: beams of generate() (default: 5)")
    sub.add_argument(
        "--lenpen", type=float, metavar="X", help="with --to huggingface: length penalty of generate() (default: 1)"
    )

    sub = command("average", average)
    sub.add_argument("inputs", nargs="+", metavar="CHECKPOINT", help="checkpoints, or one folder with --last or --best")
    sub.add_argument("--out", required=True, metavar="FILE", help="checkpoint to write")
    which = sub.add_mutually_exclusive_group()
    which.add_argument("--last", type=int, metavar="K", help="average the last K checkpoints of epochs, or of updates "
                       "where there are none of epochs")  # fmt: skip
    which.add_argument("--best", type=int, metavar="K", help="average the K checkpoints of the best validation scores")
    said = "the same flag of the training to average, if the folder holds several trainings"
    sub.add_argument("--checkpoint-suffix", metavar="TEXT", help=said)
