"""Models without data: for reports, exports, tests and anyone at a Python prompt."""

from __future__ import annotations

import argparse
from functools import lru_cache

import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.dataclass.utils import merge_with_parent
from omegaconf import OmegaConf

from . import archs
from .config import DeepTransformerConfig, namespace
from .errors import UserError
from .model import DeepTransformer

SPECIALS = len(Dictionary())  # bos, pad, eos, unk


def blank_task(source_vocab: int, target_vocab: int | None = None) -> argparse.Namespace:
    """Stands for a translation task over made-up symbols; one shared dictionary unless two sizes are given."""
    source = _dictionary(source_vocab)
    same = target_vocab in (None, source_vocab)
    return argparse.Namespace(source_dictionary=source, target_dictionary=source if same else _dictionary(target_vocab))


def _dictionary(size: int) -> Dictionary:
    dictionary = Dictionary()
    for number in range(size - SPECIALS):
        dictionary.add_symbol(f"symbol{number}")
    return dictionary


def build(arch: str = archs.MODEL_NAME, vocab: int = 1000, **fields) -> DeepTransformer:
    """A model of architecture `arch` with config fields overridden, over a vocabulary of made-up symbols."""
    return DeepTransformer.build_model(namespace(arch=arch, **fields), blank_task(vocab))


def from_checkpoint(path: str):
    """The model of one of our checkpoints, in evaluation mode, and its run's config (model section filled).

    Needs neither data nor dictionaries. UserError, naming the file, if it is no checkpoint or another model's.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(path)
    cfg = state["cfg"]
    name = getattr(cfg.model, "arch", None) or getattr(cfg.model, "_name", None)
    if name not in archs.PRESETS:
        raise UserError(f"{path}: holds a {name}, not one of this package's models")
    model_cfg = cfg.model
    if isinstance(model_cfg, argparse.Namespace):
        model_cfg = DeepTransformerConfig.from_namespace(model_cfg)
    model_cfg = merge_with_parent(DeepTransformerConfig(), OmegaConf.create(_own_fields(model_cfg)))
    archs.fill(model_cfg)
    weights = state["model"]
    sizes = [weights[f"{stack}.embed_tokens.weight"].size(0) for stack in ("encoder", "decoder")]
    model = DeepTransformer.build_model(model_cfg, blank_task(*sizes))
    try:
        model.load_state_dict(weights)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    OmegaConf.set_struct(cfg, False)
    cfg.model = model_cfg
    return model.eval(), cfg


def _own_fields(model_cfg) -> dict:
    names = [*DeepTransformerConfig.__dataclass_fields__, "arch"]
    values = {name: getattr(model_cfg, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


@lru_cache
def _size(arch: str, vocab: int, N: int, M: int) -> int:
    with torch.device("meta"):  # shapes only
        model = build(arch, vocab, encoder_layers=N, decoder_layers=M, share_all_embeddings=True)
    return sum(parameter.numel() for parameter in model.parameters())


def parameter_count(arch: str, vocab: int = SPECIALS) -> int:
    """Parameters of an architecture with one shared embedding matrix of `vocab` rows, from 1- and 2-layer stacks."""
    preset = archs.PRESETS[arch]
    stem = next(name for name in archs.PRESETS if archs.same_width(name, arch))
    one = _size(stem, vocab, 1, 1)
    encoder_layer, decoder_layer = _size(stem, vocab, 2, 1) - one, _size(stem, vocab, 1, 2) - one
    return one + (preset["encoder_layers"] - 1) * encoder_layer + (preset["decoder_layers"] - 1) * decoder_layer
