"""The `deepnet` command: each subcommand parses, calls one room of the package, and returns what is to be shown."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import logging
import sys
import textwrap
from typing import Any, NamedTuple

from .. import __version__
from ..errors import UserError
from ..user_dir import import_user_dir

FILES = ("start", "reproduce", "inspection", "methods", "models", "plan", "corpora", "results")
GROUPS = {  # title -> commands, as --help lists them
    "Train and compare": ("quickstart", "compare", "reproduce", "check", "plan", "profile"),
    "Look inside": ("methods", "verify"),
    "Translate and export": ("translate", "generate", "average", "export"),
    "Data and reports": ("prepare", "score", "report"),
    "This installation": ("path",),
}
MOVED = {  # commands of release 0.1
    "archs": "methods --archs", "coefficients": "methods NAME --layers N,M", "corpus": "prepare language DEST",
    "environment": "path --environment", "figures": "report RUNS --figures", "prepare-lm": "prepare lm",
    "init-report": "methods NAME --weights ARCH", "prepare-text": "prepare text",
    "significance": "score BASELINE SYSTEM...",
}  # fmt: skip
# commands that name methods and do not pass on fairseq's flags, of which --user-dir is one
OWN_METHODS = ("methods", "verify", "plan", "export", "average", "translate", "quickstart", "report")


class Help(argparse.HelpFormatter):
    """Fill paragraphs of a description; those with indented lines, as examples, stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = []
        for paragraph in text.split("\n\n"):
            is_example = "\n  " in paragraph
            paragraphs.append(paragraph if is_example else textwrap.fill(paragraph, width))
        return "\n\n".join(paragraphs)


class Parser(argparse.ArgumentParser):
    """Parser of a command whose files may stand before, between and behind its flags.

    argparse alone fills an optional positional argument with nothing as soon as a flag follows: MODEL --beam 2 FILE
    would have no FILE (cpython#59317). Its intermixed parsing takes the flags first, and then the rest. It is left out
    where a command passes on flags that it does not know, whose values would be taken for files.
    """

    _in_steps = False  # while the intermixed parsing calls parse_known_args for its two steps

    def parse_known_args(self, args=None, namespace=None):
        """Parse the flags and files in any order; see argparse."""
        optional = any(action.nargs in ("?", "*", "+") for action in self._get_positional_actions())
        if self._in_steps or self.get_default("passes_flags_on") or not optional:
            return super().parse_known_args(args, namespace)

        words = list(sys.argv[1:] if args is None else args)
        if "--" in words:  # the second step would not know which words stood behind it
            end = words.index("--")
            files = [f"./{word}" if word.startswith("-") and word != "-" else word for word in words[end + 1 :]]
            words = words[:end] + files

        self._in_steps = True
        try:
            return self.parse_known_intermixed_args(words, namespace)
        finally:
            self._in_steps = False


class Shown(NamedTuple):
    """Output of a command. text: for people, "" for none; data: for --json; status: of the process."""

    text: str
    data: Any
    status: int = 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands, of which each sets `run` to the function that does it.

    A file of this folder has a function add(command), which registers its subcommands: command(name, function) returns
    the parser to add flags to, and function(args) returns a Shown and so gets --json; one that prints by itself returns
    None. The function's docstring is the help: a sentence, what more there is to say, an example. With `usage`, what is
    shown behind the name, the command takes flags that it does not know: function finds them in args.rest. among: the
    subparsers to register with, those of a command of several.
    """
    top = Parser(prog="deepnet", usage="deepnet COMMAND ...", formatter_class=Help)
    top.add_argument("--version", action="version", version=f"deepnet_fairseq {__version__}")
    commands = top.add_subparsers(required=True, prog="deepnet", metavar="COMMAND", help=argparse.SUPPRESS)
    sentences: dict[str, str] = {}  # command -> first sentence of its help

    def command(name: str, function, usage: str = "", among=commands) -> argparse.ArgumentParser:
        text = inspect.cleandoc(function.__doc__)
        sentences[name] = text.split("\n")[0]

        settings: dict[str, Any] = {"description": text, "allow_abbrev": not usage, "formatter_class": Help}
        if usage:
            settings["usage"] = f"deepnet {name} {usage}"
        if among is not commands:  # the top's own help lists the commands in GROUPS, argparse those of a command
            settings["help"] = sentences[name]
        sub = among.add_parser(name, **settings)

        shows = "Shown" in str(function.__annotations__.get("return"))
        sub.set_defaults(run=function, passes_flags_on=bool(usage), shows=shows)
        if shows:
            sub.add_argument("--json", action="store_true", help="print JSON for programs")
        if name in OWN_METHODS:
            sub.add_argument("--user-dir", metavar="FOLDER", help="folder of your own that registers methods")
        return sub

    for file in FILES:
        importlib.import_module(f"{__name__}.{file}").add(command)

    lines = ["Very deep Transformers for machine translation.", "", "`deepnet COMMAND --help` explains a command."]
    for title, names in GROUPS.items():
        lines += ["", f"{title}:"]
        for name in names:
            if name in sentences:
                lines.append(f"  {name:12}{sentences[name]}")
    top.description = "\n".join(lines)
    return top


def numbers(flag: str, text: str, example: str) -> list[int]:
    """Return the numbers of a flag's comma-separated list; UserError, naming the flag, for anything else."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise UserError(f"{flag} {text}: give whole numbers with commas between, as {example}") from error


def main(argv: list[str] | None = None) -> None:
    """Run one subcommand; a mistake of the user ends it with one line and status 1."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in MOVED:
        sys.exit(f"deepnet: error: `deepnet {words[0]}` is now `deepnet {MOVED[words[0]]}`")

    behind: list[str] = []  # flags of fairseq-train, behind the -- of `deepnet reproduce`
    if words[:1] == ["reproduce"]:
        try:
            words, behind = importlib.import_module(f"{__name__}.reproduce").split(words)
        except UserError as error:
            sys.exit(f"deepnet: error: {error}")

    args, rest = parser().parse_known_args(words)
    args.behind = behind
    args.rest = rest
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    try:
        if rest and not args.passes_flags_on:
            raise UserError(f"unknown: {' '.join(rest)}; `deepnet COMMAND --help` lists the flags")
        if getattr(args, "user_dir", None):
            import_user_dir(args.user_dir)

        as_json = args.shows and args.json
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            shown = args.run(args)  # with --json progress goes to stderr

        if shown is not None:
            text = json.dumps(shown.data) if args.json else shown.text
            if text:
                print(text)
            if shown.status:
                sys.exit(shown.status)
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
    except BrokenPipeError:  # deepnet methods --archs | head
        sys.stderr.close()
    except OSError as error:  # a file that is missing, in the way, or not writable; a full disk is not named
        place = error.filename or getattr(args, "dest", None) or getattr(args, "out", None)
        sys.exit(f"deepnet: error: {place}: {error.strerror or error}; name another place, or free some space")
