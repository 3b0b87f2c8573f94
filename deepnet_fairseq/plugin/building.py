"""Build fairseq's models without data: over made-up symbols, or from a checkpoint."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import merge_with_parent
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from ..core import archs
from ..core.models import SPECIALS
from ..errors import UserError
from .checkpoints import vocabulary
from .flags import check_fields, config_of, follows_another, namespace
from .models import MODELS, FairseqShell

# names of weights (V, C); the first of them that a model has tells the size V of its source vocabulary
EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# the same for its target vocabulary
PROJECTIONS = ("decoder.output_projection.weight", "lm_head.weight")


def blank_task(source_vocab: int, target_vocab: int | None = None) -> argparse.Namespace:
    """Return a stand-in for a task: a Namespace with source_dictionary and target_dictionary, of made-up symbols.

    source_vocab, target_vocab: sizes in symbols, fairseq's four (bos, pad, eos, unk) included; None for the same size
    as source_vocab. With the same size both sides share one dictionary.
    """
    source = _made_up_dictionary(source_vocab)
    target = source
    if target_vocab is not None and target_vocab != source_vocab:
        target = _made_up_dictionary(target_vocab)
    return argparse.Namespace(source_dictionary=source, target_dictionary=target)


def _made_up_dictionary(size: int) -> Dictionary:
    """Make a fairseq Dictionary of `size` symbols, fairseq's four included."""
    dictionary = Dictionary()
    for number in range(size - SPECIALS):
        dictionary.add_symbol(f"symbol{number}")
    return dictionary


def build(arch: str = archs.MODEL_NAME, vocab: int = 1000, **fields: Any) -> FairseqShell:
    """Build a model of fairseq with random weights, over made-up symbols, as core.models.build does without fairseq.

    arch: name of an architecture; vocab: number of symbols, fairseq's four included; fields: values by name of settings
    of the model and of its training flags (flags.TrainingFlags), where they differ from the architecture's. Raises a
    UserError for an unknown name or an invalid value.
    """
    check_fields(arch, fields)
    model_class = MODELS[archs.MODELS[arch]]  # archs.MODELS: architecture -> name of its model
    return model_class.build_model(namespace(arch=arch, **fields), blank_task(vocab))


def own_config(state: dict, path: str) -> Any:
    """Return the model section of a loaded checkpoint's config, checked, with a value for each setting it lacks.

    state: the checkpoint as fairseq's load_checkpoint_to_cpu returns it; path: its name, for messages. A setting that
    the checkpoint does not have, or has as None, gets its default or the value of the checkpoint's architecture. Raises
    a UserError if it is another package's model or the section is damaged.
    """
    saved = state["cfg"]["model"]
    # of the architecture; fairseq saves it as `arch` or as _name
    name = getattr(saved, "arch", None) or getattr(saved, "_name", None)
    if name not in archs.PRESETS:
        raise UserError(path, f"holds a {name}, not one of this package's models")

    config_class = config_of(saved)
    settings = {}
    for field in dataclasses.fields(config_class):
        if not hasattr(saved, field.name):  # an older release saved it
            continue
        value = getattr(saved, field.name)
        # None is kept where the default would refer to a setting of the task, "${task...}": there is no task here
        if value is not None or follows_another(field.default):
            settings[field.name] = value
    settings["_name"] = name  # fairseq's config classes have no field `arch`

    saved_settings = OmegaConf.create(settings)
    try:
        cfg = merge_with_parent(config_class(), saved_settings)  # checks the values' types
    except OmegaConfBaseException as error:
        reason = str(error.msg).split("\n")[0]
        raise UserError(path, f"damaged ({error.full_key} of its config: {reason}); take another one") from error

    archs.fill(cfg)  # the settings that are None, by the architecture
    return cfg


def from_checkpoint(path: str) -> tuple[FairseqShell, DictConfig]:
    """Load a checkpoint of this package; return its model, in evaluation mode, and its whole config.

    Call deepnet_fairseq.register() before. Neither data nor dictionaries are needed: the model is built over made-up
    symbols, as many as its weights have rows. The model section of the config is own_config's. The model's attribute
    `origin` says what vocabulary it was trained with, for vocabulary.check_vocabulary. Raises a UserError, naming the
    file, if it is no checkpoint or another package's.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(path)
    model_cfg = own_config(state, path)
    cfg = state["cfg"]
    weights = state["model"]
    if isinstance(cfg.get("task"), argparse.Namespace):  # a task without a dataclass: it holds all the training's flags
        flags = vars(cfg.task)
        cfg.task = flags | {"_name": flags.get("task")}  # as a section, like that of other tasks
    if not OmegaConf.is_dict(cfg.get("task")):
        raise UserError(path, "its config has no task section; give a checkpoint of fairseq-train")
    if hasattr(model_cfg, "load_checkpoint_heads"):
        model_cfg.load_checkpoint_heads = True  # there is no task to register the heads that it was fine-tuned with

    try:
        source_vocab = _vocabulary_size(weights, EMBEDDINGS)
        target_vocab = _vocabulary_size(weights, PROJECTIONS)
        task = blank_task(source_vocab, target_vocab)
        task.cfg = cfg.task  # the model may take its tokens_per_sample
        model = MODELS[archs.model_of(model_cfg)].build_model(model_cfg, task)
        model.load_state_dict(weights)
    except KeyError as error:
        raise UserError(path, f"lacks {error}; take another checkpoint of the same run") from error
    except UserError as error:
        raise UserError(path, str(error)) from error

    OmegaConf.set_struct(cfg, False)  # so that the section may be replaced
    cfg.model = model_cfg
    model.origin = state["task_state"][vocabulary.KEY]

    # drop the made-up dictionaries, and keep the digests of the real ones; a checkpoint of an older release has none
    digests = model.origin["digests"] or {}
    stacks: dict[str, Any] = dict(model.stacks())
    for name, stack in stacks.items():
        stack.dictionary = None
        side = "target" if name == "decoder" else "source"
        stack.digest = digests.get(side)
    return model.eval(), cfg


def _vocabulary_size(weights: dict[str, Tensor], names: tuple[str, ...]) -> int:
    """Return the number of rows V of the first weight in `names` that `weights` has; raise KeyError if it has none."""
    for name in names:
        if name in weights:
            return weights[name].size(0)
    raise KeyError(names[0])
