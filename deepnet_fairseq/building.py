"""Models without data: for reports, tests and anyone at a Python prompt."""

from __future__ import annotations

import argparse
from functools import lru_cache

import torch
from fairseq.data import Dictionary

from . import archs
from .config import namespace
from .model import DeepTransformer

SPECIALS = len(Dictionary())  # bos, pad, eos, unk


def blank_task(vocab: int) -> argparse.Namespace:
    """Stands for a translation task with one shared dictionary of `vocab` symbols."""
    dictionary = Dictionary()
    for number in range(vocab - SPECIALS):
        dictionary.add_symbol(f"symbol{number}")
    return argparse.Namespace(source_dictionary=dictionary, target_dictionary=dictionary)


def build(arch: str = archs.MODEL_NAME, vocab: int = 1000, **fields) -> DeepTransformer:
    """A model of architecture `arch` with config fields overridden, over a vocabulary of made-up symbols."""
    return DeepTransformer.build_model(namespace(arch=arch, **fields), blank_task(vocab))


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
