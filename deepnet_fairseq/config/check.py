"""Configs made whole as fairseq's command line would make them, and what no model can be built from, by its flag."""

import argparse
import dataclasses
from contextlib import nullcontext

from omegaconf import DictConfig, open_dict

from .. import archs
from ..errors import UserError
from ..methods import METHODS, get_method
from ..probes import get_probes
from ..transformer.recomputation import Recomputation
from .fields import config_of

ELSEWHERE = {  # what fairseq's tasks and checkpoints say
    "max_source_positions": 1024,
    "max_target_positions": 1024,
    "tokens_per_sample": 1024,
    "max_positions": 1024,
    "probe_dir": ".",
}


def namespace(arch: str, **fields) -> argparse.Namespace:
    """A filled and checked config of architecture `arch`, as fairseq's command line would make it.

    fields: config fields by name ("decoder_layers") that are not to be the default; lengths are 1024 tokens by default.
    UserError, naming the flag, for what no model can be built from.
    """
    known = dataclasses.fields(config_of(argparse.Namespace(arch=arch)))
    defaults = {field.name: ELSEWHERE.get(field.name, field.default) for field in known}
    cfg = argparse.Namespace(**(defaults | fields | {"arch": arch}))
    archs.fill(cfg)
    check(cfg)
    return cfg


def complete(cfg) -> None:
    """Gives a config from before some of our flags what they are by default, in place."""
    with open_dict(cfg) if isinstance(cfg, DictConfig) else nullcontext():
        for field in dataclasses.fields(config_of(cfg)):
            if not hasattr(cfg, field.name) and not str(field.default).startswith("${"):  # one that follows another
                setattr(cfg, field.name, field.default)


def check(cfg) -> None:
    """UserError naming the flag for the first thing in a filled config that no model can be built from."""
    method = get_method(cfg.method)
    stacks = archs.STACKS[archs.model_of(cfg)]
    _check_init_profile(cfg, method)
    for stack in stacks:
        _check_stack(cfg, stack)
    _check_options(cfg, method)
    _check_norm_place(cfg, stacks, method.from_config(cfg))
    get_probes(cfg.deepnet_probe)
    Recomputation.check(cfg)
    _check_numbers(cfg)
    if getattr(cfg, "share_all_embeddings", False) and cfg.encoder_embed_dim != cfg.decoder_embed_dim:
        raise UserError(
            f"--share-all-embeddings: --encoder-embed-dim {cfg.encoder_embed_dim} and --decoder-embed-dim "
            f"{cfg.decoder_embed_dim} differ; make them equal or drop the flag"
        )


def _check_numbers(cfg) -> None:
    if cfg.probe_interval < 1:
        raise UserError(f"--probe-interval {cfg.probe_interval}: must be at least 1")
    if cfg.rollbacks < 0:
        raise UserError(f"--rollbacks {cfg.rollbacks}: must be 0 or more")
    if not 0 < cfg.rollback_lr_factor <= 1:
        raise UserError(f"--rollback-lr-factor {cfg.rollback_lr_factor}: must be above 0 and at most 1")
    for name in ("dropout", "attention_dropout", "activation_dropout", "pooler_dropout"):
        if not 0 <= getattr(cfg, name, 0) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(cfg, name)}: must be at least 0 and below 1")


def _check_init_profile(cfg, method) -> None:
    if cfg.init_profile is None or cfg.init_profile in method.init_profiles:
        return
    raise UserError(
        f"--init-profile {cfg.init_profile}: --method {method.name} is defined for {', '.join(method.init_profiles)}"
    )


def _check_options(cfg, method) -> None:
    for other in METHODS.values():
        for key, option in other.options.items():
            if other is not method and getattr(cfg, f"{other.name}_{key}", option.default) != option.default:
                raise UserError(f"{other.flag(key)}: an option of --method {other.name}, not {method.name}; drop it")


def _check_norm_place(cfg, stacks: tuple[str, ...], method) -> None:
    for stack in stacks:
        if getattr(cfg, f"{stack}_normalize_before") and method.norm != "pre":
            raise UserError(
                f"--{stack}-normalize-before: --method {method.name} computes {method.equation}; "
                "drop the flag or take --method pre_ln"
            )


def _check_stack(cfg, stack: str) -> None:
    layers, dim = getattr(cfg, f"{stack}_layers"), getattr(cfg, f"{stack}_embed_dim")
    heads = getattr(cfg, f"{stack}_attention_heads")
    if layers < 1:
        raise UserError(f"--{stack}-layers {layers}: a stack needs at least 1 layer")
    for name in ("embed_dim", "ffn_embed_dim", "attention_heads"):
        value = getattr(cfg, f"{stack}_{name}")
        if value < 1:
            raise UserError(f"--{stack}-{name.replace('_', '-')} {value}: must be at least 1")
    if dim < 4 and not (getattr(cfg, f"{stack}_learned_pos") or cfg.no_token_positional_embeddings):
        raise UserError(f"--{stack}-embed-dim {dim}: sinusoidal positions need at least 4")
    if dim % heads:
        raise UserError(f"--{stack}-attention-heads {heads}: must divide --{stack}-embed-dim {dim}")
