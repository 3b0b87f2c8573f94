"""Config classes of the models, from which fairseq makes command-line flags and YAML sections.

Each has the fields of core/config.py and those of a training; the defaults of some refer to settings of the task. The
classes are made anew when a method is registered (make_classes), so that the options of a method in a `--user-dir` are
flags too.
"""

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import Any, Optional  # fairseq reads field types at run time and does not know X | None

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from omegaconf import II, DictConfig, open_dict

from ..core import archs, config
from ..core.config import check_probability, flag
from ..core.methods import METHODS, Method
from ..core.methods.base import option_of
from ..core.modifiers import MODIFIERS
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
    load_checkpoint_heads: bool = flag(False, "take a checkpoint's classification heads that the task does not have")


# model, as "deepnet_lm" -> classes of the flags that it has beside those of core/config.py
TRAINING_CLASSES: dict[str, tuple[type, ...]] = dict.fromkeys(archs.STACKS, (TrainingFlags,))
TRAINING_CLASSES[archs.MASKED_LM] += (FineTuningFlags,)
# setting -> default in fairseq's config, in place of core's: the setting of a task or of `checkpoint` that it follows;
# None to take the task's when the model is built (DeepMaskedLanguageModel.fit_to)
DEFAULTS_FOR_FAIRSEQ = {
    "max_source_positions": II("task.max_source_positions"),
    "max_target_positions": II("task.max_target_positions"),
    "tokens_per_sample": II("task.tokens_per_sample"),
    "max_positions": None,
    "probe_dir": II("checkpoint.save_dir"),
}


CONFIGS: dict[str, type] = {}  # model -> its config class, a subclass of FairseqDataclass


def make_classes() -> None:
    """Fill CONFIGS anew, with the options of all methods that are registered by now.

    Raises a UserError if one of them has the name of another flag.
    """
    _check_names()
    for model in archs.STACKS:
        config_class = _make_config_class(model)
        CONFIGS[model] = config_class
        globals()[config_class.__name__] = config_class  # configs are pickled by this name


def _check_names() -> None:
    """Raise a UserError if a modifier or an option has the name of a flag of fairseq's, or of a training flag of ours.

    argparse would give one flag to both, and a value of either would set the other too.
    """
    taken = settings_of_fairseq()
    for model in archs.STACKS:
        taken |= {setting.name for setting in _training_fields(model)}
    for name, subject in _names():
        if name in taken:
            flag_name = f"--{name}".replace("_", "-")
            raise UserError(subject, f"{flag_name} is another flag already; rename the option, method or modifier")


def _names() -> Iterator[tuple[str, str]]:
    """Yield (name of the config field, subject of an error about it) for each modifier and each option."""
    for method in METHODS.values():
        for key in method.options:
            yield f"{method.name}_{key}", option_of(method, key)
    for modifier in MODIFIERS.values():
        yield modifier.modifier, f"class {modifier.__name__}"
        for key in modifier.options:
            yield f"{modifier.modifier}_{key}", option_of(modifier, key)


def settings_of_fairseq() -> set[str]:
    """Return the names of all settings of fairseq's but those of models: of its sections, and of all that it registers.

    Registered are tasks, losses, optimisers, schedules and so on, also those of a --user-dir.
    """
    names = {"arch", *REGISTRIES}
    configs = list(TASK_DATACLASS_REGISTRY.values())
    others = [task for name, task in TASK_REGISTRY.items() if name not in TASK_DATACLASS_REGISTRY]
    for registry in REGISTRIES.values():
        configs += registry["dataclass_registry"].values()
        others += [kind for name, kind in registry["registry"].items() if name not in registry["dataclass_registry"]]

    for section in dataclasses.fields(FairseqConfig):
        names.add(section.name)
        if isinstance(section.type, type) and dataclasses.is_dataclass(section.type):
            configs.append(section.type)
    for config_class in configs:
        names |= {setting.name for setting in dataclasses.fields(config_class)}
    for kind in others:
        names |= _settings_of_class(kind)
    return names


@cache
def _settings_of_class(kind: type) -> frozenset[str]:
    """Return the names of the settings of a class of fairseq's that has no dataclass and adds its flags by itself."""
    if not hasattr(kind, "add_args"):
        return frozenset()
    parser = argparse.ArgumentParser(add_help=False, conflict_handler="resolve")
    kind.add_args(parser)
    return frozenset(action.dest for action in parser._actions if action.option_strings)


def _make_config_class(model: str) -> type:
    """Make the dataclass from which fairseq takes a model's flags; its name and docstring are those of core's class."""
    core_class = config.config_class(model)
    fields = [_as_fairseq_field(setting) for setting in dataclasses.fields(core_class)]
    fields += [_as_fairseq_field(setting) for setting in _training_fields(model)]
    attributes = {"__module__": __name__, "__doc__": core_class.__doc__}
    return make_dataclass(core_class.__name__, fields, bases=(FairseqDataclass,), namespace=attributes)


def _training_fields(model: str) -> list[dataclasses.Field]:
    """Return the fields of a model's classes in TRAINING_CLASSES, in order."""
    fields: list[dataclasses.Field] = []
    for flags_class in TRAINING_CLASSES[model]:
        fields += dataclasses.fields(flags_class)
    return fields


def _as_fairseq_field(setting: dataclasses.Field) -> tuple:
    """Convert a field that core.config.flag has made to (name, type, field), as make_dataclass takes it."""
    kind = setting.type
    choices = setting.metadata["choices"]  # the permitted words, empty for any value
    if choices:  # kind is str, or Optional[str]
        kind = _choice(choices) if kind is str else Optional[_choice(choices)]

    default = DEFAULTS_FOR_FAIRSEQ.get(setting.name, setting.default)
    if follows_another(default):
        metadata: dict[str, str] = {}  # without help fairseq makes no flag: the other setting decides
    elif default:
        metadata = {"help": f"{setting.metadata['help']} (default: {default})"}
    else:  # None, 0 and False are told by the help itself, or go without saying
        metadata = {"help": setting.metadata["help"]}
    return setting.name, kind, field(default=default, metadata=metadata)


def follows_another(default: Any) -> bool:
    """Return whether a field's default refers to another setting, as II("task.max_source_positions") does."""
    return str(default).startswith("${")


@cache
def _choice(words: tuple[str, ...]) -> type:
    """Return fairseq's enumeration of the permitted words of a setting.

    All config classes get the same one, from the cache, because members of two enumerations are never equal.
    """
    return ChoiceEnum(words)


make_classes()


def flag_groups(model: str) -> dict[str, type]:
    """Return the groups of a model's flags in --help, {title: a dataclass with the group's fields}."""
    own = {setting.name for setting in dataclasses.fields(config.CONFIGS[model])}
    # the fields in `own`, and those for the options of methods and modifiers
    all_fields = dataclasses.fields(config.config_class(model))
    groups = {
        "the model": [setting for setting in all_fields if setting.name in own],
        "options of one method, and what goes with any": [setting for setting in all_fields if setting.name not in own],
        "its training": _training_fields(model),
    }

    classes = {}
    for title, fields in groups.items():
        fairseq_fields = [_as_fairseq_field(setting) for setting in fields]
        classes[f"{model}: {title}"] = make_dataclass("Flags", fairseq_fields, bases=(FairseqDataclass,))
    return classes


def config_of(cfg) -> type:
    """Return the class in CONFIGS of the model that `cfg`, a Namespace, omegaconf or dataclass, is a config of."""
    return CONFIGS[archs.model_of(cfg)]


def check_fields(arch: str, fields: Mapping[str, Any]) -> None:
    """Raise a UserError for an unknown name among `fields`, as core.config.check_fields does.

    arch: name of an architecture; fields: {name of a setting or of a training flag: value}, as {"encoder_layers": 6}.
    """
    model = archs.model_of(argparse.Namespace(arch=arch))
    config.check_fields(arch, fields, more=[setting.name for setting in _training_fields(model)])


def config_and_method(arch: str, **fields) -> tuple[argparse.Namespace, Method]:
    """Return the filled, checked config of architecture `arch` and its method, as core.config.config_and_method does.

    The config has the training flags too, which are checked. fields: values by name of settings and flags, where they
    differ from the default. Raises a UserError, naming the flag, for an invalid value.
    """
    model = archs.model_of(argparse.Namespace(arch=arch))
    defaults = {setting.name: setting.default for setting in _training_fields(model)}
    cfg, method = config.config_and_method(arch, **(defaults | fields))
    check_training_flags(cfg)
    return cfg, method


def namespace(arch: str, **fields) -> argparse.Namespace:
    """Return the config that config_and_method returns, without the method."""
    cfg, _method = config_and_method(arch, **fields)
    return cfg


def add_missing_flags(cfg) -> None:
    """Add to a config, in place, flags that it lacks because an older release saved it, with their defaults.

    cfg: a Namespace, omegaconf or dataclass. Flags whose default refers to another setting are left out.
    """
    with open_dict(cfg) if isinstance(cfg, DictConfig) else nullcontext():
        for setting in dataclasses.fields(config_of(cfg)):
            if not hasattr(cfg, setting.name) and not follows_another(setting.default):
                setattr(cfg, setting.name, setting.default)


def check_training_flags(cfg) -> None:
    """Raise a UserError, naming the flag, for the first invalid value of TrainingFlags or FineTuningFlags."""
    get_probes(cfg.deepnet_probe)  # raises a UserError for an unknown name
    epoch_weights.check_epoch_weights(cfg.epoch_weights)
    graphs.parse_cuda_graphs(cfg.cuda_graphs)
    if cfg.probe_interval < 1:
        raise UserError(f"--probe-interval {cfg.probe_interval}", "must be at least 1")
    if cfg.stop_stuck < 0:
        raise UserError(f"--stop-stuck {cfg.stop_stuck}", "must be 0 or more")
    if hasattr(cfg, "pooler_dropout"):  # deepnet_masked_lm, the only model with FineTuningFlags
        check_probability(cfg, "pooler_dropout")
