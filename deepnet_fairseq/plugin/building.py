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

# names of the weights whose number of rows is the size of the source, or target, vocabulary; the first one there counts
EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
PROJECTIONS = ("decoder.output_projection.weight", "lm_head.weight")


def blank_task(source_vocab: int, target_vocab: int | None = None) -> argparse.Namespace:
    """Return a stand-in for a task, with dictionaries of made-up symbols; one for both sides unless their sizes differ.

    source_vocab, target_vocab: sizes in symbols, fairseq's four (bos, pad, eos, unk) included; no target_vocab: the
    same as source_vocab.
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
    """Build a model as core.models.build does, but as a model of fairseq, over made-up symbols.

    vocab: number of symbols; fields: settings of the model by name, and flags of its training (flags.TrainingFlags).
    Raises a UserError for an unknown name or an invalid value.
    """
    check_fields(arch, fields)
    model_class = MODELS[archs.MODELS[arch]]
    return model_class.build_model(namespace(arch=arch, **fields), blank_task(vocab))


def own_config(state: dict, path: str) -> Any:
    """Return the model section of a loaded checkpoint's config, checked and without open values.

    state: the checkpoint as fairseq's load_checkpoint_to_cpu returns it; path: its name, for messages. Values that the
    checkpoint leaves open are filled in by its architecture. Raises a UserError if it is another package's model or the
    section is damaged.
    """
    saved = state["cfg"]["model"]
    name = getattr(saved, "arch", None) or getattr(saved, "_name", None)
    if name not in archs.PRESETS:
        raise UserError(path, f"holds a {name}, not one of this package's models")

    config_class = config_of(saved)
    overrides = {}
    for setting in dataclasses.fields(config_class):
        if not hasattr(saved, setting.name):
            continue
        value = getattr(saved, setting.name)
        # a setting whose default refers to the task is taken even if it is None: there is no task to look it up in
        if value is not None or follows_another(setting.default):
            overrides[setting.name] = value
    if getattr(saved, "arch", None) is not None:
        overrides["arch"] = saved.arch

    saved_settings = OmegaConf.create(overrides)
    try:
        cfg = merge_with_parent(config_class(), saved_settings)
    except OmegaConfBaseException as error:
        reason = str(error.msg).split("\n")[0]
        raise UserError(path, f"damaged ({error.full_key} of its config: {reason}); take another one") from error

    archs.fill(cfg)
    return cfg


def from_checkpoint(path: str) -> tuple[FairseqShell, DictConfig]:
    """Load a checkpoint of this package; return its model, in evaluation mode, and its whole config.

    Call deepnet_fairseq.register() before. Neither data nor dictionaries are needed: the model is built over made-up
    symbols, as many as its weights have rows. The model section of the config has no open values (own_config). The
    model's attribute `origin` says what vocabulary it was trained with, for vocabulary.check_vocabulary. Raises a
    UserError, naming the file, if it is no checkpoint or another package's.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(path)
    model_cfg = own_config(state, path)
    cfg = state["cfg"]
    weights = state["model"]
    if isinstance(cfg.get("task"), argparse.Namespace):  # a task without a dataclass: it has all flags of the training
        flags = vars(cfg.task)
        cfg.task = flags | {"_name": flags.get("task")}
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

    OmegaConf.set_struct(cfg, False)
    cfg.model = model_cfg
    model.origin = state["task_state"][vocabulary.KEY]

    # the dictionaries are made up: leave the digests of the real ones in their place
    digests = model.origin["digests"] or {}
    stacks: dict[str, Any] = dict(model.stacks())
    for name, stack in stacks.items():
        stack.dictionary = None
        side = "target" if name == "decoder" else "source"
        stack.digest = digests.get(side)
    return model.eval(), cfg


def _vocabulary_size(weights: dict[str, Tensor], names: tuple[str, ...]) -> int:
    """Return the number of rows of the first of the named weights that there is; raise KeyError if there is none."""
    for name in names:
        if name in weights:
            return weights[name].size(0)
    raise KeyError(names[0])
