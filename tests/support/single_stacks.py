"""Small models of the three kinds, and their batches: translators and, with a single stack, language models."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import torch
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import base_architecture as base_roberta
from fairseq.models.transformer import TransformerModel
from fairseq.models.transformer import base_architecture as base_transformer
from fairseq.models.transformer_lm import TransformerLanguageModel, base_lm_architecture
from torch import nn

from deepnet_fairseq.core import archs
from deepnet_fairseq.plugin.building import blank_task, build

from . import helpers
from .helpers import FIRST, PAD, VOCAB

SINGLE_STACKS = (archs.LM, archs.MASKED_LM)  # kinds of models with a single stack
EVERY_KIND = (archs.MODEL_NAME, *SINGLE_STACKS)  # kinds of models: the translator, the causal and the masked one
MASK = VOCAB - 1  # number of the symbol in place of a masked word; `batch` draws it nowhere


def stack_of(kind: str) -> str:
    """Return the name of the only stack of one of SINGLE_STACKS, "encoder" or "decoder"."""
    (stack,) = archs.STACKS[kind]
    return stack


def sizes(kind: str, layers: int) -> dict:
    """Return the config fields of a model of width 16, field -> value, with `layers` in each stack and no dropout.

    kind: one of EVERY_KIND. Positions and the scale of embeddings, which are not among them, stay the architecture's.
    """
    fields: dict = {"dropout": 0.0, "attention_dropout": 0.0}
    for stack in archs.STACKS[kind]:
        fields[f"{stack}_layers"] = layers
        fields[f"{stack}_embed_dim"] = 16
        fields[f"{stack}_ffn_embed_dim"] = 32
        fields[f"{stack}_attention_heads"] = 2
    return fields


def small(kind: str, layers: int = 2, **fields):
    """Build a model of width 16 in evaluation mode, its weights drawn from a fixed seed.

    kind: one of EVERY_KIND; layers: of each stack; fields: config fields that differ from those of `sizes`
    """
    torch.manual_seed(0)
    return build(kind, VOCAB, **(sizes(kind, layers) | fields)).eval()


def disturb(model, amount: float = 0.1):
    """Add noise of standard deviation `amount` to every parameter but the embedding of padding; return the model.

    Some methods begin with branches of 0 or factors of 1, which would hide mistakes.
    """
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=amount)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
    return model


def noisy_model(kind: str, layers: int = 2, **fields):
    """Build a model as `small` does, and add noise to its parameters."""
    return disturb(small(kind, layers, **fields))


def batch(rows: int = 3, length: int = 9, seed: int = 0):
    """Draw a language model's src_tokens (rows, length); the first row ends with two tokens of padding."""
    tokens = torch.randint(FIRST, VOCAB - 1, (rows, length), generator=torch.Generator().manual_seed(seed))
    tokens[0, length - 2 :] = PAD
    return tokens


def inputs(kind: str) -> tuple:
    """Return the arguments of a call of a model on the batch of its kind, which is one of EVERY_KIND.

    A language model's are (src_tokens,), a translator's (src_tokens, None, prev_output_tokens) of helpers.batch.
    """
    if kind in SINGLE_STACKS:
        return (batch(),)

    src, prev = helpers.batch()
    return src, None, prev


def scores(model, *arguments):
    """Compute a model's scores (B, T, V) without gradients; arguments: of its call, as `inputs` returns them."""
    with torch.no_grad():
        return model(*arguments)[0]


def loss_of(model, tokens=None):
    """Compute the mean cross-entropy of what a model of its kind predicts: the next token, or the masked tokens.

    A masked language model has every third token masked. A translator predicts, on the batch of `inputs`, its own
    decoder input: a loss that is good enough for gradients.

    tokens: a language model's batch, None for that of `batch`
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
        logits = model(tokens.masked_fill(masked, MASK), masked_tokens=masked)[0]  # of the masked tokens only
        target = tokens[masked]

    return nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten(), ignore_index=PAD)


class StockModel(NamedTuple):
    """A model of fairseq's own."""

    model: type  # its class
    set_defaults: Callable[[argparse.Namespace], None]  # fills the open fields of its config


STOCK = {
    archs.MODEL_NAME: StockModel(TransformerModel, base_transformer),
    archs.LM: StockModel(TransformerLanguageModel, base_lm_architecture),
    archs.MASKED_LM: StockModel(RobertaModel, base_roberta),
}


def stock(kind: str, layers: int = 2, pre_norm: bool = False, **fields):
    """Build fairseq's own `transformer`, `transformer_lm` or `roberta` of the size that `small` gives the kind.

    pre_norm: whether it is Pre-LN, else Post-LN; fields: config fields that differ
    """
    torch.manual_seed(0)
    cfg = argparse.Namespace(
        encoder_normalize_before=pre_norm,
        tokens_per_sample=1024,
        max_source_positions=1024,
        max_target_positions=1024,
        max_positions=1024,
        **(sizes(kind, layers) | fields),
    )
    STOCK[kind].set_defaults(cfg)
    cfg.decoder_normalize_before = pre_norm  # base_lm_architecture sets True in any case
    return STOCK[kind].model.build_model(cfg, blank_task(VOCAB)).eval()


def embedding(stack, tokens):
    """Compute what the first layer of a stack reads: embeddings of tokens (B, T) with their positions, (B, T, C)."""
    return stack.embed(tokens, stack.positions(tokens))[0]
