"""Check the command line of fairseq's programs before any work is done, and explain a mistake in one line, not a page.

Also here: a UserError of these programs is printed in one line, and fairseq-interactive's input is checked for UTF-8.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from traceback import walk_tb

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.file_io import PathManager

from ..core import archs
from ..data.lines import read_lines, split_lines
from ..errors import UserError, user_error_line
from ..files import split_paths
from ..user_dir import import_error
from ..wording import did_you_mean
from . import datasets, flags, stuck
from .admin_profile import profile_of_source
from .checkpoints import reading
from .distributed import zero
from .optimisers import deepnet_adam

TASKS: dict[str, str] = {  # fairseq's task -> the only model of ours that it trains
    "translation": archs.MODEL_NAME,
    "translation_multi_simple_epoch": archs.MODEL_NAME,
    "language_modeling": archs.LM,
    "multilingual_language_modeling": archs.LM,
    "masked_lm": archs.MASKED_LM,
    "multilingual_masked_lm": archs.MASKED_LM,
    "sentence_prediction": archs.MASKED_LM,
    "sentence_ranking": archs.MASKED_LM,
}
UNSUPPORTED = {  # setting and value, which fail with our models -> why
    ("task", "multilingual_translation"): "trains a model for each pair; take translation_multi_simple_epoch",
    ("task", "translation_moe"): "has a --method of its own, which is not ours; take translation",
    ("criterion", "label_smoothed_cross_entropy_with_alignment"): "needs attention weights, which no training computes",
}


def explain_uncaught() -> None:
    """Make fairseq's own programs print an uncaught mistake of a user in one line; do nothing in other programs.

    fairseq's programs are started as fairseq-train, for example, or by `python -m fairseq_cli.train`.
    """
    program = Path(sys.argv[0])
    if program.name.startswith("fairseq") or program.parent.name == "fairseq_cli":
        sys.excepthook = _print_one_line


def _print_one_line(kind, error, traceback) -> None:
    """Print an error that the user can mend in one line, any other as Python does; a sys.excepthook.

    The user can mend what user_error_line explains, and an error in the files of a --user-dir.
    """
    line = user_error_line(_of_user_dir(error, traceback))
    if line:
        print(f"{Path(sys.argv[0]).name}: error: {line}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


def _of_user_dir(error, traceback) -> BaseException:
    """Return what import_error makes of an error that came while fairseq imported a --user-dir; any other as it is.

    fairseq's own import_user_module has run then, and not ours of patches.py: it was called before a file of the folder
    called register().
    """
    for frame, _line in walk_tb(traceback):
        if frame.f_code.co_name == "import_user_module" and frame.f_globals.get("__name__") == "fairseq.utils":
            return import_error(frame.f_locals["args"].user_dir, error)
    return error


def parse_or_explain(parse, parser, input_args=None, *args, files_exist: bool = True, **kwargs):
    """Parse and check the command line; a mistake ends the program with one line and status 2.

    parse: fairseq's options.parse_args_and_arch, whose other arguments follow and whose result is returned; parser: the
    program's; input_args: words of the command line, None for this process's; files_exist: False if files that it names
    are still to be made, so that only the words themselves can be checked.
    """
    parser.error = functools.partial(_exit_with_error, parser)
    words = sys.argv[1:] if input_args is None else input_args
    _add_our_flags_to_help(parser, words)

    try:
        result = parse(parser, input_args, *args, **kwargs)
    except RuntimeError as error:
        if str(error):
            raise
        # fairseq raises it bare where no architecture is given
        parser.error("--arch: name an architecture; `deepnet methods --archs` lists them")
    except KeyError as error:
        if error.args != (None,):
            raise
        # fairseq looks up the task None where no task is given and the program has no default
        parser.error("--task: name the one that the checkpoint was trained with")
    namespace = result[0] if isinstance(result, tuple) else result

    # fairseq reads --bf16 as a wish for a TPU and then calls torch_xla, on a GPU and a CPU alike
    if getattr(namespace, "bf16", False) and importlib.util.find_spec("torch_xla") is None:
        namespace.tpu = False

    if files_exist:
        try:
            _check_flags(namespace)
        except UserError as error:
            parser.error(str(error))
    return result


def _add_our_flags_to_help(parser: argparse.ArgumentParser, words: list[str]) -> None:
    """Add the flags of the model that --arch names to `parser`, if the command line asks for help.

    words: of the command line. fairseq prints the help before it has read --arch, without the model's flags.
    """
    arch_parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    arch_parser.add_argument("--arch", "-a")
    known, _others = arch_parser.parse_known_args(words)
    model = archs.MODELS.get(known.arch)
    if model and ("-h" in words or "--help" in words):
        for title, fields in flags.flag_groups(model).items():
            gen_parser_from_dataclass(parser.add_argument_group(title), fields())


def read_input(buffered_read, name: str, size: int) -> Iterator[list[str]]:
    """Yield fairseq-interactive's input, `size` lines at a time, without the blanks at both ends of each line.

    buffered_read: fairseq's function, which this one replaces and does not call; name: of the input file, "-" for
    standard input. Raises a UserError, naming the line, for a line that is not UTF-8.
    """
    shown = "the input" if name == "-" else name
    with sys.stdin.buffer if name == "-" else open(name, "rb") as file:
        lines = map(str.strip, split_lines(file, shown))
        while block := list(islice(lines, size)):
            yield block


def _check_flags(args: argparse.Namespace) -> None:
    """Raise a UserError for flags and files with which the program is bound to fail, before it makes a file or folder.

    args: the parsed command line of any of fairseq's programs. Each program has other flags, so that most of those that
    are read here may be missing.
    """
    task = getattr(args, "task", None)
    # None for another package's architecture, and in a program without --arch
    model = archs.MODELS.get(getattr(args, "arch", None))
    if model and TASKS.get(task, model) != model:  # a task that is not in TASKS may train any model
        tasks_of_model = [name for name, trained_model in TASKS.items() if trained_model == model]
        raise UserError(f"--task {task}", f"--arch {args.arch} is trained by --task {tasks_of_model[0]}")

    data = getattr(args, "data", None) or ""
    folder = split_paths(data)[0]  # of several folders fairseq takes the dictionaries from the first
    _check_exists("the data folder", folder)
    if folder and "://" not in folder and task == "translation":
        datasets.check_has_dictionaries(folder)

    # the files of a checkpoint in several shards have other names than --path
    if getattr(args, "path", None) and getattr(args, "checkpoint_shard_count", 1) == 1:
        for path in split_paths(args.path):
            _check_exists("--path", path, suffix=getattr(args, "checkpoint_suffix", None))

    codes = getattr(args, "bpe_codes", None)
    if codes and "://" not in codes:  # fairseq downloads a file that is given by its URL
        for _line in read_lines(Path(codes)):  # raises a UserError if the file cannot be read as UTF-8
            pass

    if getattr(args, "replace_unk", None) is not None:  # fails with an IndexError or a TypeError at the first <unk>
        raise UserError("--replace-unk", "fails in this version of fairseq; drop it, and train on subwords")
    if hasattr(args, "arch"):  # fairseq-train; other programs take the architecture from a checkpoint
        _check_training_flags(args)


def _check_training_flags(args: argparse.Namespace) -> None:
    """Raise a UserError for flags and files with which a training is bound to fail.

    args: the parsed command line of fairseq-train.
    """
    if args.restore_file != "checkpoint_last.pt":
        _check_exists("--restore-file", args.restore_file, suffix=args.checkpoint_suffix)
    _check_exists("--finetune-from-model", args.finetune_from_model)
    if args.lr_scheduler == "inverse_sqrt" and args.warmup_updates < 1:
        raise UserError(f"--warmup-updates {args.warmup_updates}", "inverse_sqrt divides by it; give at least 1")
    if getattr(args, "num_batch_buckets", 0):
        raise UserError("--num-batch-buckets", "fails with NumPy 2; drop it")

    def setting(_section: str, name: str) -> object:
        """Return a flag's value, None if there is no such flag; the checks below name a config's section too."""
        return getattr(args, name, None)

    zero.check_settings(setting)
    if args.optimizer == deepnet_adam.NAME:
        deepnet_adam.check_settings(setting)
    if args.arch not in archs.PRESETS:  # another package's model; what follows is about ours
        return

    _cfg, method = flags.config_and_method(**vars(args))
    stuck.check_settings(setting)
    for (flag, value), reason in UNSUPPORTED.items():
        if getattr(args, flag) == value:
            raise UserError(f"--{flag} {value}", reason)
    if method.profiled and not _resumes(args):
        profile_of_source(method.profile)  # raises a UserError without --admin-profile, or if its file is no profile


def _resumes(args: argparse.Namespace) -> bool:
    """Return whether a checkpoint will be loaded before the training begins.

    fairseq loads one if a file exists that --restore-file, --finetune-from-model or --continue-once names; Run (run.py)
    loads another one of the folder if checkpoint_last is missing. args: the parsed command line of fairseq-train.
    """
    last = args.restore_file
    if last == reading.DEFAULT:
        if reading.all_but_last(Path(args.save_dir), args.checkpoint_suffix or ""):
            return True
        last = os.path.join(args.save_dir, last)
    paths = (reading.with_suffix(last, args.checkpoint_suffix), args.finetune_from_model, args.continue_once)
    return any(path and PathManager.exists(path) for path in paths)


def _check_exists(flag: str, path: str | None, suffix: str | None = None) -> None:
    """Raise a UserError if `path` is given, and names no file or folder.

    flag: the flag that names it, for the message; suffix: --checkpoint-suffix, which fairseq adds to the file's name.
    """
    if not path:
        return
    file = reading.with_suffix(path, suffix)
    if PathManager.exists(file):
        return
    if suffix:
        raise UserError(f"{flag} {path}", f"there is no {file}, which --checkpoint-suffix {suffix} asks for")
    raise UserError(f"{flag} {path}", "no such file or folder")


def _exit_with_error(parser: argparse.ArgumentParser, message: str) -> None:
    """End the program with argparse's message and status 2, without the usage, which lists three hundred flags.

    It replaces parser.error.
    """
    program = Path(sys.argv[0]).name
    wrong_arch = re.match(r"argument --arch/-a: invalid choice: '(.*?)'", message)
    unknown_flags = re.match(r"unrecognized arguments: (.*)", message)
    if wrong_arch:
        message = archs.unknown_arch_message(f"--arch {wrong_arch.group(1)}")
    elif unknown_flags:
        words = unknown_flags.group(1)
        nearest = did_you_mean(words.split(), parser._option_string_actions)
        message = f"unknown: {words}; {nearest}--help lists the flags"
    parser.exit(2, f"{program}: error: {message}\n")
