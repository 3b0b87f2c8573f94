"""fairseq's own models that ours fold into: their config fields, the names of their weights."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from enum import Enum

from fairseq import models
from torch import Tensor

from .. import archs
from ..building import blank_task

COMMON = (
    "activation_fn", "dropout", "attention_dropout", "activation_dropout", "no_token_positional_embeddings",
    "no_scale_embedding", "layernorm_embedding",
)  # fmt: skip


@dataclass(frozen=True)
class Stock:
    """One of fairseq's models, beside the model of ours that folds into it."""

    name: str
    shared: tuple[str, ...]  # config fields that ours has too; beside COMMON and those of each stack
    symbols: tuple[str, str]  # weights with a row for each symbol that the model reads, and that it predicts
    reader: str  # a program that reads its checkpoints
    follows: dict[str, str] = field(default_factory=dict)  # field of its own -> the one of ours that says it
    fixed: dict[str, bool] = field(default_factory=dict)  # fields of its own that are always this
    shells: dict[str, str] = field(default_factory=dict)  # first part of a weight's name with us -> with it

    def config(self, cfg, norms_first: dict[str, bool]) -> dict:
        """Its config as plain data, from a filled config of ours; norms_first: stack -> is its method a Pre-LN?"""
        of_stacks = [f"{stack}_{name}" for stack in norms_first for name in STACK_FIELDS]
        sources = {name: name for name in (*COMMON, *self.shared, *of_stacks)} | self.follows
        values = {name: getattr(cfg, source) for name, source in sources.items()}
        plain = {name: str(value) if isinstance(value, Enum) else value for name, value in values.items()}
        places = {f"{stack}_normalize_before": first for stack, first in norms_first.items()}
        return plain | places | self.fixed | {"_name": self.name, "arch": self.name}

    def weight_name(self, ours: str) -> str:
        """Its name for the weight that is called `ours` with us."""
        first, dot, rest = ours.partition(".")
        return self.shells.get(first, first) + dot + rest


STACK_FIELDS = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads", "learned_pos")
STOCK = {
    archs.MODEL_NAME: Stock(
        name="transformer",
        shared=("share_all_embeddings", "share_decoder_input_output_embed", "max_source_positions",
                "max_target_positions"),
        symbols=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        reader="fairseq-generate",
    ),
    archs.LM: Stock(
        name="transformer_lm",
        shared=("share_decoder_input_output_embed", "max_target_positions", "tokens_per_sample"),
        symbols=("decoder.embed_tokens.weight", "decoder.output_projection.weight"),
        reader="fairseq-eval-lm",
        follows={"decoder_input_dim": "decoder_embed_dim", "decoder_output_dim": "decoder_embed_dim"},
        # what the architectures of transformer_lm would say, and CTranslate2 asks for
        fixed={"no_decoder_final_norm": False, "character_embeddings": False, "adaptive_input": False, "tpu": False},
    ),
    archs.MASKED_LM: Stock(
        name="roberta",
        shared=("max_positions", "untie_weights_roberta", "pooler_activation_fn", "pooler_dropout"),
        symbols=("encoder.sentence_encoder.embed_tokens.weight",) * 2,
        reader="fairseq-validate",
        fixed={"load_checkpoint_heads": True},  # it leaves out its own otherwise
        shells={"encoder": "encoder.sentence_encoder", "lm_head": "encoder.lm_head"},
    ),
}  # fmt: skip
BY_NAME = {stock.name: stock for stock in STOCK.values()}


def stock_model(fields: dict, state: dict[str, Tensor]) -> models.BaseFairseqModel:
    """fairseq's own model with these weights, in evaluation mode; RuntimeError of torch's for one missing or left over.

    fields: of Stock.config; state: under that model's names. Built as fairseq builds what it loads: a transformer_lm
    without its architectures, which are Pre-LN whatever the config says.
    """
    sizes = (state[weight].size(0) for weight in BY_NAME[fields["_name"]].symbols)
    model = models.build_model(argparse.Namespace(**fields), blank_task(*sizes))
    model.load_state_dict(dict(state))
    return model.eval()
