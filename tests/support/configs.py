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

# Sections of fairseq's config of which every field is compared, but for FIELDS_OF_A_RUN and COPIED.
SECTIONS = (
    "common", "distributed_training", "checkpoint", "dataset", "optimization", "criterion", "optimizer", "lr_scheduler",
    "model",
)  # fmt: skip
# Fields of the section "task" that are compared, as far as a task has them.
TASK_FIELDS = (
    "_name", "encoder_langtok", "sampling_method", "sampling_temperature", "source_lang", "tokens_per_sample",
    "sample_break_mode",
)  # fmt: skip
# Fields that are left out, in whichever section: names of folders, languages and architectures, what is shown, and the
# number of processes and their port.
FIELDS_OF_A_RUN = {
    "user_dir", "data", "save_dir", "lang_dict", "lang_pairs", "arch", "no_progress_bar", "probe_dir",
    "distributed_num_procs", "distributed_port",
}  # fmt: skip
# Fields that are left out because fairseq copies them from others.
COPIED = {
    "dataset.max_tokens_valid", "distributed_training.fp16", "distributed_training.memory_efficient_fp16",
    "lr_scheduler.lr", "optimizer.lr", "model.tokens_per_sample",
    "model._name",
}  # fmt: skip


def settings_of_flags(words: Sequence[str], data: object) -> dict[str, object]:
    """Return the settings of a command line, by "section.field".

    words: the program's name, which is not read, and its flags; data: the folder of data
    """
    parser = options.get_training_parser()
    args = options.parse_args_and_arch.__wrapped__(parser, [str(data), *words[1:]])
    return _comparable(convert_namespace_to_omegaconf(args))


def settings_of_yaml(name: str, folder: Path = ROOT / "configs", overrides: Sequence[str] = ()) -> dict[str, object]:
    """Return the settings of FOLDER/NAME.yaml with hydra's overrides, by "section.field"."""
    hydra_init()
    with initialize_config_dir(str(folder), version_base="1.1"):
        cfg = compose(name, overrides=["+common.user_dir=x", "task.data=x", *overrides])
    add_defaults(cfg)
    return _comparable(cfg)


def _comparable(cfg) -> dict[str, object]:
    """Return every setting that affects the training, "section.field" -> value; cfg: fairseq's whole config."""
    archs.fill(cfg.model)
    fields = {}
    for section in SECTIONS:
        if cfg.get(section) is None:
            continue
        values = OmegaConf.to_container(cfg[section], resolve=False, enum_to_str=True)
        for field, value in values.items():
            fields[f"{section}.{field}"] = value
    for field in TASK_FIELDS:
        fields[f"task.{field}"] = getattr(cfg.task, field, None)

    settings = {}
    for name, value in fields.items():
        interpolated = str(value).startswith("${")  # the value of another field
        of_a_run = name.split(".")[-1] in FIELDS_OF_A_RUN
        if not interpolated and not of_a_run and name not in COPIED:
            settings[name] = _as_number(value)
    return settings


def _as_number(value):
    """Return a number, or a text that is one, as a float, so that 1e-4, "1e-4" and 0.0001 are equal; else `value`."""
    if isinstance(value, list):
        return [_as_number(item) for item in value]
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
