"""Language models made for tests: one stack, decoder or encoder, under either of the two names that fairseq knows."""

from __future__ import annotations

import argparse

import torch
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import base_architecture
from fairseq.models.transformer_lm import TransformerLanguageModel, base_lm_architecture
from torch import nn

from deepnet_fairseq import archs
from deepnet_fairseq.building import blank_task, build

from .helpers import FIRST, PAD, VOCAB

KINDS = (archs.LM, archs.MASKED_LM)
MASK = VOCAB - 1  # what stands for a hidden word


def stack_of(kind: str) -> str:
    """The stack that a kind of model has."""
    (stack,) = archs.STACKS[kind]
    return stack


def sizes(kind: str, layers: int) -> dict:
    """Width 16; positions and scale of embeddings as the architecture has them."""
    widths = {"layers": layers, "embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2}
    return {f"{stack_of(kind)}_{name}": value for name, value in widths.items()} | {
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }


def small(kind: str, layers: int = 2, **fields):
    """A model of width 16 in evaluation mode."""
    torch.manual_seed(0)
    return build(kind, VOCAB, **(sizes(kind, layers) | fields)).eval()


def disturb(model, amount: float = 0.1):
    """Moves every parameter: methods begin with branches at 0 or factors at 1, which would hide mistakes."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=amount)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
    return model


def awake(kind: str, layers: int = 2, **fields):
    """A model past its start."""
    return disturb(small(kind, layers, **fields))


def batch(rows: int = 3, length: int = 9, seed: int = 0):
    """src_tokens (B, T), the first row two shorter, padded on the right."""
    tokens = torch.randint(FIRST, VOCAB - 1, (rows, length), generator=torch.Generator().manual_seed(seed))
    tokens[0, length - 2 :] = PAD
    return tokens


def scores(model, tokens):
    """(B, T, V), without gradients."""
    with torch.no_grad():
        return model(tokens)[0]


def loss_of(model, tokens=None):
    """Cross-entropy of what each kind of model is asked: the token that follows, or the token that was hidden."""
    tokens = batch() if tokens is None else tokens
    if model.NAME == archs.LM:
        found, target = model(tokens[:, :-1])[0], tokens[:, 1:]
    else:
        hidden = torch.zeros_like(tokens, dtype=torch.bool)
        hidden[:, ::3] = True
        hidden &= tokens.ne(PAD)
        found, target = model(tokens.masked_fill(hidden, MASK), masked_tokens=hidden)[0], tokens[hidden]
    return nn.functional.cross_entropy(found.flatten(0, -2), target.flatten(), ignore_index=PAD)


STOCK = {archs.LM: (TransformerLanguageModel, base_lm_architecture), archs.MASKED_LM: (RobertaModel, base_architecture)}


def stock(kind: str, layers: int = 2, pre_norm: bool = False, **fields):
    """fairseq's own `transformer_lm` or `roberta` of the same size, away from its start."""
    torch.manual_seed(0)
    model, complete = STOCK[kind]
    positions = {"tokens_per_sample": 1024, "max_target_positions": 1024, "max_positions": 1024}
    cfg = argparse.Namespace(encoder_normalize_before=pre_norm, **positions, **(sizes(kind, layers) | fields))
    complete(cfg)
    cfg.decoder_normalize_before = pre_norm  # base_lm_architecture says True whatever is asked
    return disturb(model.build_model(cfg, blank_task(VOCAB))).eval()
