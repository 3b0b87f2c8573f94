"""Models of every kind for tests, mostly of a single stack, decoder or encoder."""

from __future__ import annotations

import argparse

import torch
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import base_architecture
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer import base_architecture as base_transformer
from fairseq.models.transformer_lm import TransformerLanguageModel, base_lm_architecture
from torch import nn

from deepnet_fairseq.core import archs
from deepnet_fairseq.plugin.building import blank_task, build

from . import helpers
from .helpers import FIRST, PAD, VOCAB

KINDS = (archs.LM, archs.MASKED_LM)  # kinds of models with one stack
EVERY = (archs.MODEL_NAME, *KINDS)
MASK = VOCAB - 1  # symbol of a masked word


def stack_of(kind: str) -> str:
    """Return the stack of a kind of model."""
    (stack,) = archs.STACKS[kind]
    return stack


def sizes(kind: str, layers: int) -> dict:
    """Return the config fields of width 16; positions and the scale of embeddings stay the architecture's."""
    fields: dict = {"dropout": 0.0, "attention_dropout": 0.0}
    for stack in archs.STACKS[kind]:
        fields[f"{stack}_layers"] = layers
        fields[f"{stack}_embed_dim"] = 16
        fields[f"{stack}_ffn_embed_dim"] = 32
        fields[f"{stack}_attention_heads"] = 2
    return fields


def small(kind: str, layers: int = 2, **fields):
    """Build a model of width 16 in evaluation mode."""
    torch.manual_seed(0)
    return build(kind, VOCAB, **(sizes(kind, layers) | fields)).eval()


def disturb(model, amount: float = 0.1):
    """Add noise to every parameter: methods begin with branches of 0 or factors of 1, which would hide mistakes."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=amount)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
    return model


def noisy_model(kind: str, layers: int = 2, **fields):
    """Build a model of width 16 in evaluation mode, with noise on all its parameters."""
    return disturb(small(kind, layers, **fields))


def batch(rows: int = 3, length: int = 9, seed: int = 0):
    """Draw src_tokens (B, T), padded on the right; the first row is two tokens shorter."""
    tokens = torch.randint(FIRST, VOCAB - 1, (rows, length), generator=torch.Generator().manual_seed(seed))
    tokens[0, length - 2 :] = PAD
    return tokens


def inputs(kind: str) -> tuple:
    """Return the arguments of a call of such a model: (tokens,), or (src_tokens, None, prev_output_tokens)."""
    if kind in KINDS:
        return (batch(),)

    src, prev = helpers.batch()
    return src, None, prev


def scores(model, *given):
    """Compute scores (B, T, V) without gradients."""
    with torch.no_grad():
        return model(*given)[0]


def loss_of(model, tokens=None):
    """Compute the cross-entropy of the task of each kind of model: the next token, or the masked tokens.

    A translator computes it on its own fixed batch, a language model on `tokens`.
    """
    if tokens is None:
        tokens = batch()

    if model.NAME == archs.MODEL_NAME:
        src, lengths, prev = inputs(model.NAME)
        logits = model(src, lengths, prev)[0]
        target = prev
    elif model.NAME == archs.LM:
        logits = model(tokens[:, :-1])[0]
        target = tokens[:, 1:]
    else:
        masked = torch.zeros_like(tokens, dtype=torch.bool)
        masked[:, ::3] = True
        masked &= tokens.ne(PAD)
        logits = model(tokens.masked_fill(masked, MASK), masked_tokens=masked)[0]
        target = tokens[masked]
    return nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten(), ignore_index=PAD)


STOCK = {  # kind -> fairseq's class, and the function that fills its config with defaults
    archs.MODEL_NAME: (TransformerModel, base_transformer),
    archs.LM: (TransformerLanguageModel, base_lm_architecture),
    archs.MASKED_LM: (RobertaModel, base_architecture),
}


def stock(kind: str, layers: int = 2, pre_norm: bool = False, **fields):
    """Build fairseq's own `transformer`, `transformer_lm` or `roberta` of the same size."""
    torch.manual_seed(0)
    model, complete = STOCK[kind]
    cfg = argparse.Namespace(
        encoder_normalize_before=pre_norm,
        tokens_per_sample=1024,
        max_source_positions=1024,
        max_target_positions=1024,
        max_positions=1024,
        **(sizes(kind, layers) | fields),
    )
    complete(cfg)
    cfg.decoder_normalize_before = pre_norm  # base_lm_architecture sets True in any case
    return model.build_model(cfg, blank_task(VOCAB)).eval()
