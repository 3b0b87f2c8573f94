"""python -m benchmarks COMMAND: speed, deployed, launches or threads print tables in Markdown, graphs lines of JSON."""

from __future__ import annotations

import argparse
import logging
import sys

import torch

from deepnet_fairseq import register
from deepnet_fairseq.errors import UserError
from deepnet_fairseq.tools.environment import environment


def integers(text: str) -> list[int]:
    """Return the integers of a text, which commas separate, as [1, 32] for "1,32"."""
    return [int(number) for number in text.split(",")]


# The next five functions are the commands. A name and a docstring are what --help says of a command; the parsed flags
# go to the function of that name in the command's module, which is imported only then.


def speed(args: argparse.Namespace) -> None:
    """Training and translating: our model beside stock fairseq's and torchscale's, on the same batches."""
    from .speed import speed as run

    run(args)


def deployed(args: argparse.Namespace) -> None:
    """One checkpoint, translated by fairseq-generate (stock and ours), CTranslate2 and transformers."""
    from .deployed import deployed as run

    run(args)


def graphs(args: argparse.Namespace) -> None:
    """Updates with and without CUDA graphs, beside stock fairseq; needs a GPU."""
    from .graphs import graphs as run

    run(args)


def launches(args: argparse.Namespace) -> None:
    """Kernel launches and host-device synchronisations of an update, counted on a GPU that is not there."""
    from .fake_gpu import launches as run

    run(args)


def threads(args: argparse.Namespace) -> None:
    """Updates on a CPU with one thread and with two, on idle cores and beside a busy one, by width."""
    from .threads import threads as run

    run(args)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; `run` of what it parses is the command's function."""
    main_parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = main_parser.add_subparsers(required=True, metavar="COMMAND")
    # flags that two commands share
    of_models = argparse.ArgumentParser(add_help=False)
    of_models.add_argument(
        "--candidates", default="ours,stock,torchscale", help="models to compare (default: %(default)s)"
    )
    variant = "compare also our model with these further flags of fairseq-train, under this name"
    of_models.add_argument("--variant", action="append", default=[], metavar="NAME=FLAGS", help=variant)

    def add(run, **others) -> argparse.ArgumentParser:
        """Add a command that calls `run` with the parsed flags; return its parser. others: options of add_parser."""
        command = commands.add_parser(run.__name__, help=run.__doc__, description=run.__doc__, **others)
        command.set_defaults(run=run)
        return command

    sub = add(speed, parents=[of_models])
    gpu = torch.cuda.is_available()
    widths = "tiny (64), base (512) or large (1,024) (default: %(default)s)"
    layers = "layers as ENCODER-DECODER (default: %(default)s)"
    types = "symbols of the dictionary, which is made up (default: %(default)s)"
    sub.add_argument(
        "--depths", default="6-6,18-18", help="ENCODER-DECODER layers, with commas between (default: %(default)s)"
    )
    sub.add_argument(
        "--widths",
        default="tiny",
        help="tiny (64), base (512), large (1,024), with commas between (default: %(default)s)",
    )
    sub.add_argument("--only", default="train,generate", help="what to time (default: %(default)s)")
    sub.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if gpu else "cpu", help="default: cuda if torch sees a GPU"
    )
    sub.add_argument(
        "--precision", choices=("fp32", "bf16", "fp16"), default="fp32", help="number format (default: %(default)s)"
    )
    most = 4096 if gpu else 512
    sub.add_argument("--max-tokens", type=int, default=most, help="tokens of a training batch (default: %(default)s)")
    sub.add_argument("--vocabulary", type=int, default=10_000, help=types)
    sub.add_argument(
        "--sentences",
        type=integers,
        default=[1, 32],
        help="numbers of sentences in a batch to translate (default: 1,32)",
    )
    sub.add_argument("--beams", type=integers, default=[1, 5], help="beam sizes to translate with (default: 1,5)")
    sub.add_argument(
        "--warmup", type=int, default=2, help="repeats at first that do not count, in training on a CPU (default: 2)"
    )
    sub.add_argument("--repeats", type=int, default=5, help="number of timed repeats (default: %(default)s)")
    sub.add_argument(
        "--clock",
        choices=("wall", "process"),
        default="wall",
        help="time that passes (wall, default), or processor time (process), for a machine in use",
    )

    sub = add(deployed)
    sub.add_argument("checkpoint", metavar="CHECKPOINT", help="translation model that `deepnet export` can write")
    sub.add_argument("data", metavar="DATA", help="folder of the model's binarised data")
    sub.add_argument("--subset", default="test", help="part of DATA to translate (default: %(default)s)")
    sub.add_argument(
        "--sentences", type=int, default=1000, help="number of sentences to translate (default: %(default)s)"
    )
    sub.add_argument(
        "--alone", type=int, default=100, help="number of sentences in batches of one sentence (default: %(default)s)"
    )
    sub.add_argument(
        "--batches",
        default="default,32,1",
        help="kinds of batches: fairseq's of 12,000 tokens (default), 32 sentences, one (default: %(default)s)",
    )
    sub.add_argument(
        "--candidates",
        default="stock,ours,ctranslate2,ctranslate2-int8,transformers",
        help="programs to compare (default: %(default)s)",
    )
    sub.add_argument("--beam", type=int, default=5, help="beam size (default: %(default)s)")
    joined = ("sentencepiece", "subword_nmt")
    sub.add_argument("--joined", choices=joined, help="what cut the text, to join it before BLEU (default: nothing)")
    rounds = "how often to time each candidate (default: %(default)s)"
    sub.add_argument("--rounds", type=int, default=3, help=rounds)
    sub.add_argument("--threads", type=int, default=1, help="threads of each program (default: %(default)s)")

    sub = add(graphs)
    sub.add_argument(
        "--candidates", default="stock,plain,graphs", help="ways to train to compare (default: %(default)s)"
    )
    sub.add_argument("--depth", default="18-18", help=layers)
    sub.add_argument("--width", default="base", help=widths)
    sub.add_argument("--max-tokens", type=int, default=4096, help="tokens of a batch (default: %(default)s)")
    sub.add_argument("--update-freq", type=int, default=1, help="batches of an update (default: %(default)s)")
    sub.add_argument("--vocabulary", type=int, default=10_000, help=types)
    sub.add_argument("--batches", type=int, default=6, help="number of different batches (default: %(default)s)")
    sub.add_argument("--updates", type=int, default=6, help="updates that are timed as a whole (default: %(default)s)")
    sub.add_argument("--rounds", type=int, default=3, help=rounds)
    sub.add_argument(
        "--kernels", type=int, default=0, metavar="N", help="print also the N longest kernels of an update (default: 0)"
    )
    sub.add_argument(
        "--flags", nargs=argparse.REMAINDER, default=[], help="all words behind it are further flags of fairseq-train"
    )

    sub = add(launches, parents=[of_models])
    sub.add_argument("--depth", default="18-18", help=layers)
    sub.add_argument("--width", default="base", help=widths)
    sub.add_argument(
        "--precision",
        choices=("fp32", "bf16", "fp16", "amp"),
        default="fp16",
        help="number format of training (default: %(default)s)",
    )

    sub = add(threads)
    sub.add_argument(
        "--widths", type=integers, default=[64, 128, 256, 512], help="widths of the models (default: 64,128,256,512)"
    )
    sub.add_argument("--threads", type=integers, default=[1, 2], help="numbers of threads of an update (default: 1,2)")
    sub.add_argument(
        "--busy", type=integers, default=[0, 1], help="numbers of other programs that keep a core busy (default: 0,1)"
    )
    sub.add_argument(
        "--seconds", type=float, default=6.0, help="rough length of a repeat in seconds (default: %(default)g)"
    )
    sub.add_argument("--rounds", type=int, default=3, help="how often to time each condition (default: %(default)s)")
    sub.add_argument(
        "--smoke", action="store_true", help="try the program: one update of a one-layer model of each width"
    )
    sub.add_argument(
        "--out", default="results/threads/records.jsonl", help="file to write the records to (default: %(default)s)"
    )
    return main_parser


def main(argv: list[str] | None = None) -> None:
    """Print a line about the machine, then run one command; a mistake of the user ends it with one line and status 1.

    argv: the words of the command line, None for those of this process.
    """
    args = parser().parse_args(argv)
    register()
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        on_gpu = getattr(args, "device", "cpu") == "cuda"  # only `speed` has --device
        machine = environment(gpus=int(on_gpu))
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        print(f"{machine['hardware']}, {torch.get_num_threads()} threads, commit {machine['commit']}; {versions}\n")
        args.run(args)
    except UserError as error:
        sys.exit(f"benchmarks: error: {error}")


if __name__ == "__main__":
    main()
