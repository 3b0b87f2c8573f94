"""Settings of trainings, from the words of a command line or from a YAML file, in one form that can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairseq import options
from fairseq.dataclass.initialize import add_defaults, hydra_init
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from deepnet_fairseq.core import archs

from .helpers import ROOT

SECTIONS = (
    "common", "distributed_training", "checkpoint", "dataset", "optimization", "criterion", "optimizer", "lr_scheduler",
    "model",
)  # fmt: skip
OF_TASKS = (
    "_name", "encoder_langtok", "sampling_method", "sampling_temperature", "source_lang", "tokens_per_sample",
    "sample_break_mode",
)  # fmt: skip
OF_THE_RUN = {
    "user_dir", "data", "save_dir", "lang_dict", "lang_pairs", "arch", "_name", "no_progress_bar", "probe_dir",
    "distributed_num_procs", "distributed_port",
}  # fmt: skip
FOLLOW = {  # settings that follow from others
    "dataset.max_tokens_valid", "distributed_training.fp16", "distributed_training.memory_efficient_fp16",
    "lr_scheduler.lr", "optimizer.lr", "model.tokens_per_sample",
}  # fmt: skip


def settings_of_flags(words: Sequence[str], data: object) -> dict[str, object]:
    """Return the settings of a command line on these data; words: the program and its flags, without the data."""
    parser = options.get_training_parser()
    args = options.parse_args_and_arch.__wrapped__(parser, [str(data), *words[1:]])
    return _comparable(convert_namespace_to_omegaconf(args))


def settings_of_yaml(name: str, folder: Path = ROOT / "configs", overrides: Sequence[str] = ()) -> dict[str, object]:
    """Return the settings of FOLDER/NAME.yaml with hydra's overrides."""
    hydra_init()
    with initialize_config_dir(str(folder), version_base="1.1"):
        cfg = compose(name, overrides=["+common.user_dir=x", "task.data=x", *overrides])
    add_defaults(cfg)
    return _comparable(cfg)


def _comparable(cfg) -> dict[str, object]:
    """Return every setting that affects the training, section.key -> value."""
    archs.fill(cfg.model)
    fields = {}
    for section in SECTIONS:
        if cfg.get(section) is None:
            continue
        values = OmegaConf.to_container(cfg[section], resolve=False, enum_to_str=True)
        for key, value in values.items():
            fields[f"{section}.{key}"] = value
    for key in OF_TASKS:
        fields[f"task.{key}"] = getattr(cfg.task, key, None)

    settings = {}
    for key, value in fields.items():
        interpolated = str(value).startswith("${")
        of_the_run = key.split(".")[-1] in OF_THE_RUN and key != "task._name"
        if not interpolated and not of_the_run and key not in FOLLOW:
            settings[key] = _number(value)
    return settings


def _number(value):
    """Normalise a value, so that 1e-4, "1e-4" and 0.0001 are equal."""
    if isinstance(value, list):
        return [_number(item) for item in value]
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
