"""Configs made whole: as fairseq's command line would make them, or from before some of our flags."""

import argparse
import dataclasses
from contextlib import nullcontext

from omegaconf import DictConfig, open_dict

from .. import archs
from .check import check
from .models import config_of

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
