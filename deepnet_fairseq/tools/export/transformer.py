"""A trained model as one of fairseq's own, for programs that have never heard of this package."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from fairseq import models
from omegaconf import OmegaConf
from torch import Tensor, nn

from ...core import archs
from ...core.models import SPECIALS, DeepModel
from ...errors import UserError
from ...files import save
from ...plugin.building import blank_task, from_checkpoint
from ...plugin.checkpoints import vocabulary
from .fold import fold, why_not_foldable

TOLERANCE = 1e-3  # on log-probabilities; in practice 1e-5
NO_TRAINING = {  # fairseq reads these of every checkpoint
    "optimizer_history": [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}],
    "extra_state": {"train_iterator": {"epoch": 1}},
    "last_optimizer_state": None,
}
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
        norm_flags = {f"{stack}_normalize_before": first for stack, first in norms_first.items()}
        return plain | norm_flags | self.fixed | {"_name": self.name, "arch": self.name}


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


@dataclass
class Folded:
    """A trained model of ours as one of fairseq's.

    model: config fields of fairseq's model; state: its parameters; difference: largest difference of log-probabilities,
    in nats, from the original on a made-up batch; method: what it was trained with; sections: the run's other config,
    plain data; origin: what vocabulary it was trained with, of vocabulary.origin_of.
    """

    model: dict
    state: dict[str, Tensor]
    difference: float
    method: str = ""
    sections: dict = field(default_factory=dict)
    origin: dict | None = None

    @property
    def stock(self) -> Stock:
        """Return which of fairseq's models it is."""
        return BY_NAME[self.model["_name"]]

    @property
    def rows(self) -> tuple[int, int]:
        """Return how many symbols it reads, and how many it predicts."""
        read, predicted = (self.state[weight].size(0) for weight in self.stock.symbols)
        return read, predicted


def fold_checkpoint(path: str) -> Folded:
    """Fold the model of a checkpoint; UserError, naming the file, if it cannot be folded."""
    model, cfg = from_checkpoint(path)
    try:
        folded = fold_model(model, cfg.model)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    folded.origin = model.origin
    sections: Any = OmegaConf.to_container(cfg, enum_to_str=True)
    del sections["model"]
    folded.sections = sections
    folded.sections.get("common", {})["user_dir"] = None
    return folded


def fold_model(model: DeepModel, cfg) -> Folded:
    """Return `model`, built from the filled config `cfg`, as fairseq's own of its kind; `model` itself is used up.

    Both score a made-up batch in float32, and UserError is raised if they differ, or if the model does not fold.
    """
    reason = why_not_foldable(model)
    if reason:
        raise UserError(f"--method {cfg.method} has no plain Transformer: {reason}")
    stock = STOCK[model.NAME]
    norms_first = {name: stack.layer_norm is not None for name, stack in model.stacks().items()}
    fields = stock.config(cfg, norms_first)
    net_input = _made_up(model)
    before = _scores(model, net_input)
    fields |= {name: value for name, value in fold(model).items() if name in fields}
    state = _stock_state(model.float(), stock)
    difference = (before - _scores(stock_model(fields, state), net_input)).abs().max().item()
    if not difference <= TOLERANCE:
        raise UserError(f"the folded model's scores differ by {difference:.1e}; nothing was written")
    return Folded(fields, state, difference, cfg.method)


def write_transformer(folded: Folded, out: Path, half: bool) -> None:
    """A checkpoint of plain data: weights (float16 if `half`) and config, no optimiser, no class to unpickle."""
    state = {k: v.half() if half and v.is_floating_point() else v for k, v in folded.state.items()}
    cfg = folded.sections | {"model": folded.model}
    known = {} if folded.origin is None else vocabulary.to_save(folded.origin)
    save({"args": None, "cfg": cfg, "model": state, "task_state": known} | NO_TRAINING, out)


def _stock_state(model: DeepModel, stock: Stock) -> dict[str, Tensor]:
    """The parameters that a plain Transformer has, under its names; tied ones share memory."""
    stacks = model.stacks()
    of_methods = {id(p) for s in stacks.values() for _, m in s.slots() for p in (*m.parameters(), *m.buffers())}
    constants = {f"{name}.{constant}" for name, stack in stacks.items() for constant in stack.constants}
    values = model.state_dict(keep_vars=True)
    state = {
        name: value.detach() for name, value in values.items() if id(value) not in of_methods and name not in constants
    }
    state |= {f"{name}.version": torch.tensor([3.0]) for name in stacks}
    names = (name.split(".", 1) for name in state)
    return {f"{stock.shells.get(a, a)}.{b}": value for (a, b), value in zip(names, state.values(), strict=True)}


def _made_up(model: DeepModel) -> dict[str, Tensor]:
    """net_input of a batch; a sentence of what an encoder reads is padded."""
    stacks, generator = model.stacks(), torch.Generator().manual_seed(0)
    longest = min(12, *(stack.max_positions() for stack in stacks.values()))
    sizes = [max(stack.embed_tokens.num_embeddings, SPECIALS + 1) for stack in stacks.values()]
    drawn = [torch.randint(SPECIALS, size, (4, longest), generator=generator) for size in sizes]
    if "encoder" in stacks:
        drawn[0][0, : longest // 3] = model.encoder.padding_idx
    lengths = drawn[0].ne(next(iter(stacks.values())).padding_idx).sum(1)
    return {"src_lengths": lengths} | dict(zip(("src_tokens", "prev_output_tokens"), drawn, strict=False))


@torch.no_grad()
def _scores(model: nn.Module, net_input: dict[str, Tensor]) -> Tensor:
    """Log-probabilities (B, T, V)."""
    return model.eval()(**net_input)[0].float().log_softmax(-1)
