"""Tasks that fairseq knows by flags alone, as translation_multi_simple_epoch, take a YAML's task section too."""

from __future__ import annotations

import argparse
import functools

from fairseq import tasks
from omegaconf import DictConfig, OmegaConf, open_dict

from ..errors import UserError

SECTIONS = ("common", "dataset", "optimization", "checkpoint")


def accept_yaml() -> None:
    """fairseq-hydra-train gives such a task what its flags would have been, their defaults where YAML has no word.

    Wraps tasks.setup_task. UserError for a setting that the task has no flag for.
    """
    original = tasks.setup_task
    if not hasattr(original, "__wrapped__"):
        tasks.setup_task = _by_flags(original)


def _by_flags(setup):
    @functools.wraps(setup)
    def setup_task(cfg, **kwargs):
        name = getattr(cfg, "_name", None)
        if not isinstance(cfg, DictConfig) or name not in tasks.TASK_REGISTRY or name in tasks.TASK_DATACLASS_REGISTRY:
            return setup(cfg, **kwargs)
        flags = _flags(name)
        if unknown := sorted(set(cfg) - flags.keys() - {"_name"}):
            raise UserError(f"task.{unknown[0]}: {name} has no such setting; drop it")
        with open_dict(cfg):  # the model's settings refer to the task's
            cfg.update({dest: action.default for dest, action in flags.items() if dest not in cfg})
        return setup(_namespace(name, OmegaConf.to_container(cfg), _others(cfg)), **kwargs)

    return setup_task


def _others(cfg: DictConfig) -> dict:
    """The settings of common, dataset and so on: with flags such a task sees all of them in one namespace."""
    whole = cfg._get_parent()
    sections = () if whole is None else (whole[key] for key in SECTIONS if key in whole)
    return {key: value for section in sections for key, value in OmegaConf.to_container(section).items()}


def _flags(name: str) -> dict[str, argparse.Action]:
    """Destination -> flag of the task."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    tasks.TASK_REGISTRY[name].add_args(parser)
    return {action.dest: action for action in parser._actions}


def _namespace(name: str, given: dict, others: dict) -> argparse.Namespace:
    """The task's settings beside the others, words as the flags would read them."""
    values = {}
    for dest, action in _flags(name).items():
        value = given[dest]
        values[dest] = action.type(value) if action.type and isinstance(value, str) else value
    return argparse.Namespace(**(others | values), task=name)
