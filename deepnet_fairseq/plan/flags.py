"""The flags of `deepnet plan`: those of fairseq-train that a training's needs depend on, under the same names."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math

from fairseq.dataclass.utils import gen_parser_from_dataclass

from .. import archs, config
from ..compat.command_line import unknown_arch
from ..errors import UserError
from .setting import (
    GIB,
    MASK_PROB,
    OBJECTIVES,
    OPTIMIZERS,
    PRECISIONS,
    SHARDING_FLAGS,
    Objective,
    Precision,
    Setting,
    checkpoint_every,
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise UserError(message.removeprefix("argument "))


def parse(flags: list[str]) -> Setting:
    """A setting of the command line's flags; UserError, naming the flag, for one that is unknown or contradicts."""
    arch = _arch(flags)
    parser = _parser(arch)
    args, rest = parser.parse_known_args(flags)
    if rest:
        words = [word.split("=")[0] for word in rest if word.startswith("--")] or rest
        near = difflib.get_close_matches(words[0], parser._option_string_actions, n=1, cutoff=0.8)
        raise UserError(
            f"unknown: {' '.join(rest)}; "
            + (f"did you mean {near[0]}?" if near else "memory and time do not depend on it, drop it")
        )
    known = _field_names(arch)
    given = {name: value for name, value in vars(args).items() if name in known}
    cfg = config.namespace(arch, **(_positions(arch, args.length) | given))
    source, target = _vocabularies(args.vocab)
    if not math.isfinite(args.gpu_memory * GIB):
        raise UserError(f"--gpu-memory {args.gpu_memory}: must be a number of GiB")
    return Setting(
        cfg,
        source,
        target,
        max_tokens=args.max_tokens,
        update_freq=args.update_freq,
        length=args.length,
        precision=_precision(args),
        optimizer=args.optimizer,
        criterion=args.criterion,
        chunk=args.loss_chunk_tokens,
        mask_prob=args.mask_prob,
        checkpoint_every=checkpoint_every(cfg),
        sharding=_sharding(args),
        gpus=args.gpus,
        gpu_memory=int(args.gpu_memory * GIB),
        device="cpu" if args.cpu else "cuda",
    )


def _arch(flags: list[str]) -> str:
    """What --arch says; the other flags are those of its model."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--arch", "-a", default=archs.MODEL_NAME)
    arch = parser.parse_known_args(flags)[0].arch
    if arch not in archs.PRESETS:
        raise UserError(unknown_arch(f"--arch {arch}"))
    return arch


def _config_class(arch: str) -> type:
    return config.CONFIGS[archs.MODELS[arch]]


def _field_names(arch: str) -> set[str]:
    return {field.name for field in dataclasses.fields(_config_class(arch))}


def _positions(arch: str, length: int) -> dict[str, int]:
    """Longest samples as fairseq's tasks set them: a language model's are all of one length."""
    fields = _field_names(arch)
    if "max_source_positions" in fields:
        return {}
    return {name: length for name in ("tokens_per_sample", "max_target_positions", "max_positions") if name in fields}


def _parser(arch: str) -> argparse.ArgumentParser:
    parser = _Parser(prog="deepnet plan", add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--arch", "-a", default=archs.MODEL_NAME)
    kind = _config_class(arch)
    gen_parser_from_dataclass(parser, kind(), delete_default=True)
    for name in ("max_source_positions", "max_target_positions"):  # the task's
        if name in _field_names(arch):
            parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    _add_training(parser, OBJECTIVES[archs.MODELS[arch]])
    return parser


def _add_training(parser: argparse.ArgumentParser, objective: Objective) -> None:
    parser.add_argument("--vocab", default="32000")
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--update-freq", type=int, default=1)
    parser.add_argument(*objective.length_flags, type=int, default=objective.length)
    parser.add_argument("--mask-prob", type=float, default=MASK_PROB)
    for flag in ("fp16", "bf16", "memory-efficient-fp16", "memory-efficient-bf16", "cpu"):
        parser.add_argument(f"--{flag}", action="store_true", default=False)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    parser.add_argument("--criterion", default=objective.criterion)
    parser.add_argument("--loss-chunk-tokens", type=int, default=0)
    parser.add_argument("--zero-sharding", choices=("none", "os"), default="none")
    parser.add_argument("--ddp-backend", choices=("pytorch_ddp", "fully_sharded"), default="pytorch_ddp")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--gpu-memory", type=float, default=80.0)


def _vocabularies(text: str) -> tuple[int, int]:
    """ "32000" or "32000,40000" -> sizes of the source's and the target's."""
    try:
        sizes = [int(word) for word in text.split(",")]
    except ValueError:
        sizes = []
    if len(sizes) not in (1, 2):
        raise UserError(f"--vocab {text}: give the size of the vocabulary, or two with a comma, source first")
    return sizes[0], sizes[-1]


def _precision(args) -> Precision:
    half = [name for name in ("fp16", "bf16") if getattr(args, name) or getattr(args, f"memory_efficient_{name}")]
    if len(half) > 1:
        raise UserError("--fp16 and --bf16: choose one")
    if not half:
        return PRECISIONS["fp32"]
    name = half[0]
    if name == "fp16" and args.cpu:
        raise UserError("--fp16: training in half precision needs a GPU; on a CPU take --bf16 or neither")
    return PRECISIONS[f"memory-efficient-{name}" if getattr(args, f"memory_efficient_{name}") else name]


def _sharding(args) -> str:
    if args.zero_sharding != "none" and args.ddp_backend == "fully_sharded":
        raise UserError(f"{SHARDING_FLAGS['os']} and {SHARDING_FLAGS['fully_sharded']}: choose one")
    return "fully_sharded" if args.ddp_backend == "fully_sharded" else args.zero_sharding
