"""fairseq's command line: flags that fail today, and one line instead of a page for a mistake."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.file_io import PathManager
from fairseq.models import MODEL_REGISTRY
from omegaconf import DictConfig

from ..core import archs
from ..core.modifiers import from_config
from ..errors import UserError, user_error_line
from . import config, datasets
from .admin_profile import check_source
from .distributed import zero
from .divergence import stuck
from .optimisers import deepnet_adam

# which of fairseq's tasks and losses go with which of our models; what is not named here goes with any
TOKENS = ("cross_entropy", "label_smoothed_cross_entropy")
MASKED = ("masked_lm", *TOKENS)
TASKS: dict[str, tuple[str, tuple[str, ...]]] = {  # task -> its model, fairseq's losses of it; no losses: many
    "translation": (archs.MODEL_NAME, ()),
    "translation_multi_simple_epoch": (archs.MODEL_NAME, ()),
    "multilingual_translation": (archs.MODEL_NAME, ()),
    "language_modeling": (archs.LM, TOKENS),
    "multilingual_language_modeling": (archs.LM, TOKENS),
    "masked_lm": (archs.MASKED_LM, MASKED),
    "multilingual_masked_lm": (archs.MASKED_LM, MASKED),
    "sentence_prediction": (archs.MASKED_LM, ("sentence_prediction",)),
    "sentence_ranking": (archs.MASKED_LM, ("sentence_ranking",)),
}
OWN = {archs.MODEL_NAME: "translation", archs.LM: "language_modeling"}
OWN |= {archs.MASKED_LM: "masked_lm or sentence_prediction"}
# losses that no translation model has the parts for
NEVER = ("masked_lm", "sentence_prediction", "sentence_ranking", "adaptive_loss")
PEERS = {archs.MODEL_NAME: "transformer", archs.LM: "transformer_lm", archs.MASKED_LM: "roberta"}  # fairseq's


def explain_uncaught() -> None:
    """In fairseq's own programs a UserError that nobody caught is printed in one line."""
    program = Path(sys.argv[0])
    if program.name.startswith("fairseq") or program.parent.name == "fairseq_cli":
        sys.excepthook = _print_one_line


def _print_one_line(kind, error, traceback) -> None:
    if line := user_error_line(error):
        print(f"{Path(sys.argv[0]).name}: error: {line}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, traceback)


def parse_or_explain(parse, parser, input_args=None, *args, **kwargs):
    """A mistake ends in one line and status 2."""
    parser.error = functools.partial(_error, parser, sys.argv[1:] if input_args is None else input_args)
    try:
        result = parse(parser, input_args, *args, **kwargs)
    except RuntimeError as error:
        if str(error):
            raise
        parser.error("--arch: name an architecture; `deepnet archs` lists them")
    except KeyError as error:
        if error.args != (None,):
            raise
        parser.error("--task: name the one that the checkpoint was trained with")  # where none is usual
    namespace = result[0] if isinstance(result, tuple) else result
    # fairseq reads --bf16 as a wish for a TPU and then calls torch_xla, on a GPU and a CPU alike
    if getattr(namespace, "bf16", False) and importlib.util.find_spec("torch_xla") is None:
        namespace.tpu = False
    try:
        _check(namespace)
    except UserError as error:
        parser.error(str(error))
    return result


def _check(args: argparse.Namespace) -> None:
    """Everything that can be known to fail before a file or folder is made."""
    task = getattr(args, "task", None)
    check_pair(getattr(args, "arch", None), task, getattr(args, "criterion", None))
    datasets.check_settings(task, lambda name, default: getattr(args, name, default))
    for folder in (getattr(args, "data", None) or "").split(os.pathsep)[:1]:
        _check_exists("the data folder", folder)
        if folder:
            datasets.check_folder(task, folder, getattr(args, "regression_target", False))
    if getattr(args, "path", None) and getattr(args, "checkpoint_shard_count", 1) == 1:
        for path in args.path.split(os.pathsep):
            _check_exists("--path", path)
    if hasattr(args, "arch"):  # training; elsewhere the checkpoint holds the config
        _check_training(args)


def _check_training(args: argparse.Namespace) -> None:
    if args.restore_file != "checkpoint_last.pt":
        _check_exists("--restore-file", args.restore_file)
    _check_exists("--finetune-from-model", args.finetune_from_model)
    if args.lr_scheduler == "inverse_sqrt" and args.warmup_updates < 1:
        raise UserError(f"--warmup-updates {args.warmup_updates}: inverse_sqrt divides by it; give at least 1")
    zero.check_settings(lambda _, name: getattr(args, name, None))
    if args.optimizer == deepnet_adam.NAME:
        deepnet_adam.check_settings(lambda _, name: getattr(args, name, None))
    if args.arch not in archs.PRESETS:
        return
    if args.criterion == "label_smoothed_cross_entropy_with_alignment":
        raise UserError(f"--criterion {args.criterion}: deepnet_transformer computes no attention weights in training")
    cfg = config.namespace(**vars(args))
    stuck.check_settings(lambda _, name: getattr(args, name, None))
    method = from_config(cfg)
    if method.profiled and not _resumes(args):
        check_source(method.profile)


def _resumes(args: argparse.Namespace) -> bool:
    """Will fairseq load weights before it trains?"""
    restore = args.restore_file
    last = restore if restore != "checkpoint_last.pt" else os.path.join(args.save_dir, restore)
    return any(path and PathManager.exists(path) for path in (last, args.finetune_from_model, args.continue_once))


def _check_exists(flag: str, path: str | None) -> None:
    if path and not PathManager.exists(path):
        raise UserError(f"{flag} {path}: no such file or folder")


def _error(parser: argparse.ArgumentParser, argv: list[str], message: str) -> None:
    """In place of argparse's: without the usage of three hundred flags, with the way out where one is known."""
    program = Path(sys.argv[0]).name
    if match := re.match(r"argument --arch/-a: invalid choice: '(.*?)'", message):
        message = unknown_arch(f"--arch {match.group(1)}")
    elif match := re.match(r"unrecognized arguments: (.*)", message):
        message = _unknown_flags(match.group(1).split(), _model(argv))
    parser.exit(2, f"{program}: error: {message}\n")


def unknown_arch(setting: str) -> str:
    """What to say of `setting`, a flag or key and the name that no architecture has."""
    setting = " ".join(setting.split())
    name = setting.split()[-1]
    near = difflib.get_close_matches(name, archs.PRESETS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    model = archs.MODELS[near[0]] if near else archs.MODEL_NAME
    depth = f"{model} with its own {' and '.join(archs.STACKS[model])} layers"
    return f"{setting}: no such architecture; {hint}`deepnet archs` lists them, and any depth is {depth}"


def _model(words: list[str]) -> str:
    """Which of our models a command line is about."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--arch", "-a")
    return archs.MODELS.get(parser.parse_known_args(words)[0].arch, archs.MODEL_NAME)


def _unknown_flags(words: list[str], model: str) -> str:
    flags = [word.split("=")[0] for word in words if word.startswith("--")]
    owners = {f"fairseq's `{PEERS[model]}`": peer_flags(model)}
    for name in (name for name in config.CONFIGS if name != model):
        fields = dataclasses.fields(config.CONFIGS[name])
        owners[name] = {f"--{field.name.replace('_', '-')}" for field in fields}
    for owner, known in owners.items():
        if unsupported := [flag for flag in flags if flag in known]:
            return f"{', '.join(unsupported)}: {owner} has it, {model} does not; drop it"
    return f"unknown: {' '.join(words)}; --help lists the flags"


def peer_flags(model: str) -> set[str]:
    """Every flag of fairseq's model that `model` stands beside."""
    parser = argparse.ArgumentParser(add_help=False)
    MODEL_REGISTRY[PEERS[model]].add_args(parser)
    return {flag for action in parser._actions for flag in action.option_strings}


def check_pair(arch: str | None, task: str | None, criterion: str | None) -> None:
    """UserError, naming the flag, for a task that `arch` is no model for, or a loss that the task has no use for."""
    if task not in TASKS:
        return
    model, (own, losses), kind = archs.MODELS.get(arch), TASKS[task], CRITERION_REGISTRY.get(criterion)
    if model and own != model:
        raise UserError(f"--task {task}: --arch {arch} is trained by --task {OWN[model]}")
    theirs = kind is not None and kind.__module__.startswith("fairseq.criterions.")
    if criterion in NEVER if not losses else criterion not in losses and theirs:
        usual = losses[0] if losses else TOKENS[1]
        raise UserError(f"--criterion {criterion}: --task {task} is trained by --criterion {usual}")


def refuse_misfits(setup, cfg, *args, **kwargs):
    """For YAML and Python, as the command line is checked when it is parsed.

    fairseq pairs tasks, losses and models by what fails: a page of calls about an argument or an attribute.
    """
    whole: Any = cfg._get_parent() if isinstance(cfg, DictConfig) else None
    if whole is not None and not kwargs.get("from_checkpoint"):
        name = {section: getattr(whole.get(section), "_name", None) for section in ("model", "criterion")}
        check_pair(name["model"], getattr(cfg, "_name", None), name["criterion"])
        datasets.check_settings(cfg._name, cfg.get)
    return setup(cfg, *args, **kwargs)
