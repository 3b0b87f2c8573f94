"""Config classes of the models, of which fairseq makes flags and YAML sections.

Each has the fields of core/config.py and those of a training; some of its fields follow the task's. They are made anew
when a method is registered (make_classes), so that options of one in a `--user-dir` are flags as any other's.
"""

import argparse
import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Any, Optional  # fairseq reads field types at run time and does not know X | None

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import II, DictConfig, open_dict

from ..core import archs, config
from ..core.config import check_probability, flag
from ..core.methods import Method
from ..core.modules import ACTIVATIONS
from ..core.probes import PROBES, get_probes
from ..errors import UserError
from .checkpoints import epoch_weights
from .graphs import settings as graphs


@dataclass
class TrainingFlags:
    """Flags of every model that concern its training, and not what it computes."""

    deepnet_probe: Optional[str] = flag(None, f"probes to record, with commas between, or all: {', '.join(PROBES)}")
    probe_interval: int = flag(10, "updates between two records of --deepnet-probe")
    probe_dir: str = flag(".", "folder of probes.jsonl, by default --save-dir")
    cuda_graphs: Optional[str] = flag(
        None, "on a GPU, compute batches by CUDA graphs of N padded shapes, as 32; auto: if faster; 0: without"
    )
    stop_stuck: int = flag(0, "stop after N updates that predict no better than the words' frequencies; 0: never")
    epoch_weights: Optional[str] = flag(
        None, "keep these epochs' weights (weightsN.pt) to average, and no checkpoint_best: last:N or A-B"
    )
    new_vocabulary: bool = flag(
        False, "start from a checkpoint of another dictionary: common symbols keep their embeddings"
    )


@dataclass
class FineTuningFlags:
    """Flags of `deepnet_masked_lm` for its classification heads."""

    pooler_activation_fn: str = flag("tanh", "activation in classification heads", ACTIVATIONS)
    pooler_dropout: float = flag(0.0, "dropout in classification heads")
    load_checkpoint_heads: bool = flag(False, "take the classification heads of a checkpoint that the task has not")


MORE: dict[str, tuple[type, ...]] = dict.fromkeys(archs.STACKS, (TrainingFlags,))
MORE[archs.MASKED_LM] += (FineTuningFlags,)
ELSEWHERE = {  # settings that fairseq's tasks and its section `checkpoint` decide
    "max_source_positions": II("task.max_source_positions"),
    "max_target_positions": II("task.max_target_positions"),
    "tokens_per_sample": II("task.tokens_per_sample"),
    "max_positions": None,
    "probe_dir": II("checkpoint.save_dir"),
}


CONFIGS: dict[str, type] = {}  # by model


def make_classes() -> None:
    """Make CONFIGS, with the options of all that is registered by now."""
    for model in archs.STACKS:
        kind = CONFIGS[model] = _for_fairseq(model)
        globals()[kind.__name__] = kind  # configs are pickled by this name


def _for_fairseq(model: str) -> type:
    kinds = (config.config_class(model), *MORE[model])
    fields = [_field(one) for kind in kinds for one in dataclasses.fields(kind)]
    names = {"__module__": __name__, "__doc__": kinds[0].__doc__}
    return make_dataclass(kinds[0].__name__, fields, bases=(FairseqDataclass,), namespace=names)


def _field(one: dataclasses.Field) -> tuple:
    kind, choices = one.type, one.metadata["choices"]
    if choices:
        kind = _choice(choices) if kind is str else Optional[_choice(choices)]
    default = ELSEWHERE.get(one.name, one.default)
    shown = one.metadata["help"] + (f" (default: {default})" if default else "")
    meta = {} if str(default).startswith("${") else {"help": shown}  # no help: no flag, the task decides
    return one.name, kind, field(default=default, metadata=meta)


@cache
def _choice(words: tuple[str, ...]) -> type:
    """Return the enumeration of some words, one for all config classes: its members are equal to no other's."""
    return ChoiceEnum(words)


make_classes()


def flag_groups(model: str) -> dict[str, type]:
    """Return the title of each group of a model's flags in --help, and a config class with its fields."""
    own = {one.name for one in dataclasses.fields(config.CONFIGS[model])}
    every = dataclasses.fields(config.config_class(model))
    groups = {
        "the model": [one for one in every if one.name in own],
        "options of one method, and what goes with any": [one for one in every if one.name not in own],
        "its training": [one for more in MORE[model] for one in dataclasses.fields(more)],
    }
    made = {
        title: make_dataclass("Flags", map(_field, flags), bases=(FairseqDataclass,)) for title, flags in groups.items()
    }
    return {f"{model}: {title}": kind for title, kind in made.items()}


def config_of(cfg) -> type:
    """Return the config class, one of CONFIGS, of the model that `cfg` (Namespace, omegaconf or dataclass) names."""
    return CONFIGS[archs.model_of(cfg)]


def check_fields(arch: str, fields: Mapping[str, Any]) -> None:
    """Refuse unknown names as core.config.check_fields does; the flags of a training are known too."""
    kinds = MORE[archs.model_of(argparse.Namespace(arch=arch))]
    config.check_fields(arch, fields, [one.name for kind in kinds for one in dataclasses.fields(kind)])


def settle(arch: str, **fields) -> tuple[argparse.Namespace, Method]:
    """Return core.config.settle with the flags of a training added."""
    kinds = MORE[archs.model_of(argparse.Namespace(arch=arch))]
    defaults = {one.name: one.default for kind in kinds for one in dataclasses.fields(kind)}
    cfg, method = config.settle(arch, **(defaults | fields))
    check(cfg)
    return cfg, method


def namespace(arch: str, **fields) -> argparse.Namespace:
    """Return the config of `settle` alone."""
    cfg, _method = settle(arch, **fields)
    return cfg


def complete(cfg) -> None:
    """Add the flags that a config from an older release lacks, with their defaults, in place."""
    with open_dict(cfg) if isinstance(cfg, DictConfig) else nullcontext():
        for one in dataclasses.fields(config_of(cfg)):
            if not hasattr(cfg, one.name) and not str(one.default).startswith("${"):  # one that follows another
                setattr(cfg, one.name, one.default)


def check(cfg) -> None:
    """Raise a UserError, naming the flag, for the first invalid value of TrainingFlags or FineTuningFlags."""
    get_probes(cfg.deepnet_probe)
    epoch_weights.check(cfg.epoch_weights)
    graphs.parse(cfg.cuda_graphs)
    if cfg.probe_interval < 1:
        raise UserError(f"--probe-interval {cfg.probe_interval}: must be at least 1")
    if cfg.stop_stuck < 0:
        raise UserError(f"--stop-stuck {cfg.stop_stuck}: must be 0 or more")
    if hasattr(cfg, "pooler_dropout"):
        check_probability(cfg, "pooler_dropout")
