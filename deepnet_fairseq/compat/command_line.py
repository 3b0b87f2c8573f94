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

import torch
from fairseq import options
from fairseq.file_io import PathManager
from fairseq.models import MODEL_REGISTRY

from .. import archs, config
from ..distributed.training import check_sharding
from ..errors import UserError, user_error_line
from ..methods import get_method
from ..optim import deepnet_adam
from . import pairing
from .data import language_models

PEERS = {archs.MODEL_NAME: "transformer", archs.LM: "transformer_lm", archs.MASKED_LM: "roberta"}  # fairseq's


def explain_mistakes() -> None:
    """Wraps fairseq's argument parser, options.parse_args_and_arch: a mistake ends in one line and status 2.

    In fairseq's own programs an uncaught UserError is printed in one line too.
    """
    if not hasattr(options.parse_args_and_arch, "__wrapped__"):
        options.parse_args_and_arch = _careful(options.parse_args_and_arch)
    program = Path(sys.argv[0])
    if program.name.startswith("fairseq") or program.parent.name == "fairseq_cli":
        sys.excepthook = _print_one_line


def _print_one_line(kind, error, traceback) -> None:
    line = user_error_line(error)
    if line is None:
        sys.__excepthook__(kind, error, traceback)
    else:
        print(f"{Path(sys.argv[0]).name}: error: {line}", file=sys.stderr)


def _careful(parse):
    @functools.wraps(parse)
    def parse_args_and_arch(parser, input_args=None, *args, **kwargs):
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
        try:
            _undo_tpu(namespace)
            _check(namespace)
        except UserError as error:
            parser.error(str(error))
        return result

    return parse_args_and_arch


def _undo_tpu(args: argparse.Namespace) -> None:
    """fairseq reads --bf16 as a wish for a TPU and then calls torch_xla, on a GPU and a CPU alike."""
    if getattr(args, "bf16", False) and importlib.util.find_spec("torch_xla") is None:
        args.tpu = False


def _check(args: argparse.Namespace) -> None:
    """Everything that can be known to fail before a file or folder is made."""
    task = getattr(args, "task", None)
    pairing.check(getattr(args, "arch", None), task, getattr(args, "criterion", None))
    language_models.check_settings(task, functools.partial(_get, args))
    for folder in (getattr(args, "data", None) or "").split(os.pathsep)[:1]:
        _check_exists("the data folder", folder)
        if folder:
            language_models.check_folder(task, folder, getattr(args, "regression_target", False))
    if getattr(args, "path", None) and getattr(args, "checkpoint_shard_count", 1) == 1:
        for path in args.path.split(os.pathsep):
            _check_exists("--path", path)
    if hasattr(args, "arch"):  # training; elsewhere the checkpoint holds the config
        _check_training(args)


def _check_training(args: argparse.Namespace) -> None:
    if getattr(args, "fp16", False) and (args.cpu or not torch.cuda.is_available()):
        raise UserError("--fp16: training in half precision needs a GPU; on a CPU take --bf16 or neither")
    if args.restore_file != "checkpoint_last.pt":
        _check_exists("--restore-file", args.restore_file)
    _check_exists("--finetune-from-model", args.finetune_from_model)
    if args.lr_scheduler == "inverse_sqrt" and args.warmup_updates < 1:
        raise UserError(f"--warmup-updates {args.warmup_updates}: inverse_sqrt divides by it; give at least 1")
    check_sharding(lambda _, name: getattr(args, name, None))
    if args.optimizer == deepnet_adam.NAME:
        deepnet_adam.check_settings(lambda _, name: getattr(args, name, None))
    if args.arch not in archs.PRESETS:
        return
    if args.criterion == "label_smoothed_cross_entropy_with_alignment":
        raise UserError(f"--criterion {args.criterion}: deepnet_transformer computes no attention weights in training")
    cfg = config.namespace(**vars(args))
    if cfg.deepnet_probe and args.ddp_backend == "fully_sharded":
        raise UserError("--deepnet-probe: not with --ddp-backend fully_sharded, where no rank has a whole gradient")
    if not _resumes(args):
        get_method(cfg.method).from_config(cfg).check_start()


def _resumes(args: argparse.Namespace) -> bool:
    """Will fairseq load weights before it trains?"""
    restore = args.restore_file
    last = restore if restore != "checkpoint_last.pt" else os.path.join(args.save_dir, restore)
    return any(path and PathManager.exists(path) for path in (last, args.finetune_from_model, args.continue_once))


def _check_exists(flag: str, path: str | None) -> None:
    if path and not PathManager.exists(path):
        raise UserError(f"{flag} {path}: no such file or folder")


def _get(args: argparse.Namespace, name: str, default: object = None) -> object:
    return getattr(args, name, default)


def _error(parser: argparse.ArgumentParser, given: list[str], message: str) -> None:
    """In place of argparse's: without the usage of three hundred flags, with the way out where one is known."""
    program = Path(sys.argv[0]).name
    if match := re.match(r"argument --arch/-a: invalid choice: '(.*?)'", message):
        message = unknown_arch(f"--arch {match.group(1)}")
    elif match := re.match(r"unrecognized arguments: (.*)", message):
        message = _unknown_flags(match.group(1).split(), _model(given))
    parser.exit(2, f"{program}: error: {message}\n")


def unknown_arch(setting: str) -> str:
    """What to say of `setting`, a flag or key and the name that no architecture has."""
    setting = " ".join(setting.split())
    name = setting.split()[-1]
    near = difflib.get_close_matches(name, archs.PRESETS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    model = archs.MODELS[near[0]] if near else archs.MODEL_NAME
    layers = " and ".join(archs.STACKS[model])
    return (
        f"{setting}: no such architecture; {hint}`deepnet archs` lists them, and any depth is "
        f"{model} with its own {layers} layers"
    )


def _model(words: list[str]) -> str:
    """Which of our models a command line is about."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--arch", "-a")
    return archs.MODELS.get(parser.parse_known_args(words)[0].arch, archs.MODEL_NAME)


def _unknown_flags(words: list[str], model: str) -> str:
    flags = [word.split("=")[0] for word in words if word.startswith("--")]
    owners = {f"fairseq's `{PEERS[model]}`": peer_flags(model)}
    owners |= {name: _flags_of(config.CONFIGS[name]) for name in config.CONFIGS if name != model}
    for owner, known in owners.items():
        if unsupported := [flag for flag in flags if flag in known]:
            return f"{', '.join(unsupported)}: {owner} has it, {model} does not; drop it"
    return f"unknown: {' '.join(words)}; --help lists the flags"


def peer_flags(model: str) -> set[str]:
    """Every flag of fairseq's model that `model` stands beside."""
    parser = argparse.ArgumentParser(add_help=False)
    MODEL_REGISTRY[PEERS[model]].add_args(parser)
    return {flag for action in parser._actions for flag in action.option_strings}


def _flags_of(kind: type) -> set[str]:
    return {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(kind)}
