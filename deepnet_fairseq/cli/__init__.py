"""The `deepnet` command: each subcommand parses flags, calls a function of the package, and returns what to show.

A file of this folder holds some of the subcommands: for each a function of the parsed flags, `args`, whose docstring is
printed as its help; it returns a Shown, or prints by itself. The file's function add(command) registers them and their
flags: command(name, function, usage="", among=...) makes the subcommand's parser and returns it, see `parser`.
"""

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
from ..wording import did_you_mean

FILES = ("start", "reproduce", "inspection", "methods", "models", "plan", "corpora", "results")
GROUPS = {  # title -> commands, as --help lists them
    "Train and compare": ("quickstart", "compare", "reproduce", "check", "plan", "profile"),
    "Look inside": ("methods", "verify"),
    "Translate and export": ("translate", "generate", "average", "export"),
    "Data and reports": ("prepare", "score", "report"),
    "This installation": ("path",),
}
MOVED = {  # commands of release 0.1 -> what to call instead
    "archs": "methods --archs", "coefficients": "methods NAME --layers N,M", "corpus": "prepare language DEST",
    "environment": "path --environment", "figures": "report RUNS --figures", "prepare-lm": "prepare lm",
    "init-report": "methods NAME --weights ARCH", "prepare-text": "prepare text",
    "significance": "score BASELINE SYSTEM...",
}  # fmt: skip
# commands that get a flag --user-dir, because the user may name methods of his own. A command that passes flags on to
# fairseq needs none, since fairseq has a --user-dir. Only compare needs the methods itself too, and adds its own flag.
OWN_METHODS = ("methods", "verify", "plan", "export", "average", "translate", "quickstart", "report")


class Help(argparse.HelpFormatter):
    """argparse's formatter, which fills a description's paragraphs, but leaves those with indented lines (examples)."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Return the text in lines of `width` characters, without the indent; argparse calls this for descriptions."""
        paragraphs = []
        for paragraph in text.split("\n\n"):
            is_example = "\n  " in paragraph
            paragraphs.append(paragraph if is_example else textwrap.fill(paragraph, width))
        return "\n\n".join(paragraphs)


class Parser(argparse.ArgumentParser):
    """Parser of a command whose files may stand before, between and behind its flags.

    argparse alone fills an optional positional argument with nothing as soon as a flag follows: MODEL --beam 2 FILE
    would have no FILE (cpython#59317). The intermixed parsing of argparse takes the flags first, and the files in a
    second step. It is not used for a command that passes on flags which it does not know, because it would take their
    values for files.
    """

    _is_intermixed = False  # True while the intermixed parsing calls parse_known_args for its two steps

    def parse_known_args(self, args=None, namespace=None):
        """Return (namespace, unknown words) as argparse does, with flags and files in any order.

        args: the words to parse, by default this process's command line; namespace: gets the values, by default a new
        one.
        """
        takes_varying_number = any(action.nargs in ("?", "*", "+") for action in self._get_positional_actions())
        if self._is_intermixed or self.get_default("passes_flags_on") or not takes_varying_number:
            return super().parse_known_args(args, namespace)

        words = list(sys.argv[1:] if args is None else args)
        if "--" in words:
            # All words behind "--" are files. The second step of the intermixed parsing does not know that, and takes
            # a file -name for a flag. It takes ./-name, which is the same file, for a file.
            end = words.index("--")
            files = [f"./{word}" if word.startswith("-") and word != "-" else word for word in words[end + 1 :]]
            words = words[:end] + files

        self._is_intermixed = True
        try:
            return self.parse_known_intermixed_args(words, namespace)
        finally:
            self._is_intermixed = False


class Shown(NamedTuple):
    """What a subcommand's function returns, for `main` to print."""

    text: str  # for people; "" prints nothing
    data: Any  # what --json prints in its place
    status: int = 0  # exit status of the process


def parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands, whose flags are registered by add(command) of each of FILES.

    In what it parses, args.run is the subcommand's function, args.shows whether this returns a Shown,
    args.passes_flags_on whether it accepts unknown flags, and args.known_flags has its own, as "--json".
    """
    top = Parser(prog="deepnet", usage="deepnet COMMAND ...", formatter_class=Help)
    top.add_argument("--version", action="version", version=f"deepnet_fairseq {__version__}")
    commands = top.add_subparsers(required=True, prog="deepnet", metavar="COMMAND", help=argparse.SUPPRESS)
    sentences: dict[str, str] = {}  # command -> first line of its help

    def command(name: str, function, usage: str = "", among=commands) -> argparse.ArgumentParser:
        """Register a subcommand and return its parser, to which the caller adds flags.

        function: is called with the parsed args. Its docstring is the help: a sentence, what more there is to say, an
        example. If it is annotated to return a Shown, the subcommand gets a flag --json; otherwise it prints by itself
        and returns None. usage: shown behind the name in the help; with one the subcommand accepts flags that it does
        not know, which the function finds in args.rest. among: the subparsers to register with, for the kinds of
        `deepnet prepare`.
        """
        text = inspect.cleandoc(function.__doc__)
        sentences[name] = text.split("\n")[0]

        # no abbreviated flags where unknown ones are passed on: a flag of fairseq may be the beginning of one of ours
        settings: dict[str, Any] = {"description": text, "allow_abbrev": not usage, "formatter_class": Help}
        if usage:
            settings["usage"] = f"deepnet {name} {usage}"
        if among is not commands:  # argparse lists a kind of `deepnet prepare` by this; subcommands are listed below
            settings["help"] = sentences[name]
        sub = among.add_parser(name, **settings)

        returns_shown = "Shown" in str(function.__annotations__.get("return"))
        known_flags = sub._option_string_actions.keys()  # a view, which also has the flags that are added later
        sub.set_defaults(run=function, passes_flags_on=bool(usage), shows=returns_shown, known_flags=known_flags)
        if returns_shown:
            sub.add_argument("--json", action="store_true", help="print JSON, for programs to read, in place of text")
        if name in OWN_METHODS:
            sub.add_argument(
                "--user-dir", metavar="FOLDER", help="folder with Python files that register your own methods"
            )
        return sub

    for file in FILES:
        importlib.import_module(f"{__name__}.{file}").add(command)

    lines = ["Very deep Transformers for machine translation.", "", "`deepnet COMMAND --help` explains a command."]
    for title, names in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:12}{sentences[name]}" for name in names]
    top.description = "\n".join(lines)
    return top


def parse_integers(flag: str, text: str, example: str) -> list[int]:
    """Parse `text`, a comma-separated list of whole numbers; UserError for anything else.

    flag: whose value it is, and example: a valid list, for the message.
    """
    try:
        return [int(number) for number in text.split(",")]
    except ValueError as error:
        raise UserError(f"{flag} {text}", f"give whole numbers with commas between, as {example}") from error


def main(argv: list[str] | None = None) -> None:
    """Run one subcommand; a mistake of the user ends the process with one line and status 1.

    Where argparse finds the mistake, it prints the usage too, and the status is 2. argv: the command line without the
    program's name, by default this process's. Beside its own flags the subcommand's function gets args.rest, the words
    that the parser does not know, and args.behind, the flags of fairseq-train that stand behind the -- of `deepnet
    reproduce`, [] for other subcommands.
    """
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in MOVED:
        sys.exit(f"deepnet: error: `deepnet {words[0]}` is now `deepnet {MOVED[words[0]]}`")

    behind: list[str] = []
    if words[:1] == ["reproduce"]:
        try:
            words, behind = importlib.import_module(f"{__name__}.reproduce").split_command_line(words)
        except UserError as error:
            sys.exit(f"deepnet: error: {error}")

    args, rest = parser().parse_known_args(words)
    args.behind = behind
    args.rest = rest
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # what fairseq logs of its progress is not the command's
    try:
        if rest and not args.passes_flags_on:
            nearest = did_you_mean(rest, args.known_flags)
            raise UserError("unknown", f"{' '.join(rest)}; {nearest}`deepnet COMMAND --help` lists a command's flags")
        if getattr(args, "user_dir", None):
            import_user_dir(args.user_dir)

        # with --json what is printed meanwhile, as progress, goes to stderr: stdout gets nothing but the JSON
        as_json = args.shows and args.json
        with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            shown = args.run(args)

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
        if not missing or missing == __package__.split(".")[0]:  # a mistake in this package
            raise
        advice = "pip install it"
        if missing.startswith("fairseq"):
            advice = "pip install --no-build-isolation fairseq-fixed"
        sys.exit(f"deepnet: error: this command needs the Python package {missing}; {advice} (docs/install.md)")
    except KeyboardInterrupt:
        sys.exit(130)  # as a shell's status for SIGINT, 128 + 2
    except BrokenPipeError:  # the reader of a pipe has ended, as in: deepnet methods --archs | head
        sys.stderr.close()  # or Python would print there that it cannot flush stdout
    except OSError as error:  # a file that is missing, in the way, or not writable; errors of a full disk name no file
        place = error.filename or getattr(args, "dest", None) or getattr(args, "out", None)
        sys.exit(f"deepnet: error: {place}: {error.strerror or error}; name another place, or free some space")
