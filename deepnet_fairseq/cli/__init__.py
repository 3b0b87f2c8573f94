"""The `deepnet` command: each subcommand parses, calls one room of the package, prints. One file a group of them."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys

from .. import __version__
from ..errors import UserError
from ..user_dir import import_user_dir

# in the order in which --help lists their commands
GROUPS = ("start", "inspection", "models", "plan", "corpora", "results")
# commands that build models and are no program of fairseq's, which has the flag itself
OWN_METHODS = ("coefficients", "init-report", "methods", "verify", "plan", "export", "average")


def parser() -> argparse.ArgumentParser:
    """The parser of all subcommands, of which each sets `run` to the function that does it.

    A file of this folder has a function add(command), which registers its subcommands: command(name, function) gives
    the parser to add flags to, function(args) runs it, and its docstring is its help. With `usage`, what is shown
    behind the name, the command takes flags that it does not know: function finds them in args.rest.
    """
    top = argparse.ArgumentParser(prog="deepnet", description="Very deep Transformers for machine translation.")
    top.add_argument("--version", action="version", version=f"deepnet_fairseq {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function, usage: str = "") -> argparse.ArgumentParser:
        text, shown = function.__doc__, f"deepnet {name} {usage}" if usage else None
        sub = commands.add_parser(
            name, help=text.split("\n")[0], description=text, usage=shown, allow_abbrev=not usage,
            formatter_class=argparse.RawDescriptionHelpFormatter if usage else argparse.HelpFormatter,
        )  # fmt: skip
        sub.set_defaults(run=function, passes_flags_on=bool(usage))
        if name in OWN_METHODS:
            sub.add_argument("--user-dir", metavar="FOLDER", help="folder of your own that registers methods")
        return sub

    for group in GROUPS:
        importlib.import_module(f"{__name__}.{group}").add(command)
    return top


def numbers(flag: str, text: str, example: str) -> list[int]:
    """Of a flag's comma-separated list; UserError, naming the flag, for anything else."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise UserError(f"{flag} {text}: give whole numbers with commas between, as {example}") from error


def main(argv: list[str] | None = None) -> None:
    """Runs one subcommand; a mistake of the user ends it with one line and status 1."""
    args, rest = parser().parse_known_args(argv)
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        if rest and not args.passes_flags_on:
            raise UserError(f"unknown: {' '.join(rest)}; `deepnet COMMAND --help` lists the flags")
        args.rest = rest
        if getattr(args, "user_dir", None):
            import_user_dir(args.user_dir)
        args.run(args)
    except UserError as error:
        sys.exit(f"deepnet: error: {error}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if not missing or missing == __package__.split(".")[0]:
            raise
        way = "pip install --no-build-isolation fairseq-fixed" if missing.startswith("fairseq") else "pip install it"
        sys.exit(f"deepnet: error: needs {missing}; {way} (docs/install.md)")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # deepnet archs | head
        sys.stderr.close()
    except OSError as error:  # a file that is missing, in the way, or not writable; a full disk is not named
        place = error.filename or getattr(args, "dest", None) or getattr(args, "out", None)
        sys.exit(f"deepnet: error: {place}: {error.strerror or error}; name another place, or free some space")
