"""Make a trained model of this package one of fairseq's own, for programs that do not know this package.

A folded model is what fold.py makes of it, a plain Transformer; a stock model is one of fairseq's own classes, which
computes the same. "Ours" is what belongs to this package. A stack is the encoder or the decoder.
"""

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
from ...files import save_tensors
from ...plugin.building import blank_task, from_checkpoint
from ...plugin.checkpoints import vocabulary
from .fold import fold, why_not_foldable

TOLERANCE = 1e-3  # largest difference of log-probabilities in float32 that is accepted, in nats; 1e-5 is usual
NO_TRAINING = {  # entries that fairseq expects in a checkpoint, here as after a training without an update
    "optimizer_history": [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}],
    "extra_state": {"train_iterator": {"epoch": 1}},
    "last_optimizer_state": None,
}
COMMON = (  # config fields with the same name and value in all of fairseq's models and ours
    "activation_fn", "dropout", "attention_dropout", "activation_dropout", "no_token_positional_embeddings",
    "no_scale_embedding", "layernorm_embedding",
)  # fmt: skip


@dataclass(frozen=True)
class Stock:
    """One of fairseq's models ("it" below), and how one of this package's models becomes it."""

    name: str  # under which fairseq registers it
    shared: tuple[str, ...]  # config fields that our model has too, beside COMMON and STACK_FIELDS
    symbols: tuple[str, str]  # names of the weights with a row for each symbol that it reads, and that it predicts
    reader: str  # fairseq's program for its checkpoints, for a message
    follows: dict[str, str] = field(default_factory=dict)  # its config field -> our field of another name
    fixed: dict[str, bool] = field(default_factory=dict)  # its config field -> a value that is always the same
    prefixes: dict[str, str] = field(default_factory=dict)  # first part of our names of weights -> its own

    def config(self, cfg, pre_ln: dict[str, bool]) -> dict[str, Any]:
        """Return the config of fairseq's model, {field: plain value}, for a folded model of ours.

        cfg: config of our model, after archs.fill; pre_ln: "encoder" or "decoder" -> whether that stack is Pre-LN.
        """
        of_stacks = [f"{stack}_{name}" for stack in pre_ln for name in STACK_FIELDS]
        same_name = (*COMMON, *self.shared, *of_stacks)
        our_names = {name: name for name in same_name} | self.follows  # its field -> ours

        fields: dict[str, Any] = {}
        for name, our_name in our_names.items():
            value = getattr(cfg, our_name)
            fields[name] = str(value) if isinstance(value, Enum) else value  # an Enum is fairseq's ChoiceEnum
        for stack, is_pre_ln in pre_ln.items():
            fields[f"{stack}_normalize_before"] = is_pre_ln
        return fields | self.fixed | {"_name": self.name, "arch": self.name}


# config fields of each stack, without the "encoder_" or "decoder_" in front
STACK_FIELDS = ("layers", "embed_dim", "ffn_embed_dim", "attention_heads", "learned_pos")
STOCK = {  # registered name of our model -> fairseq's model that it becomes
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
        # what fairseq's architectures of transformer_lm would set, and CTranslate2 reads
        fixed={"no_decoder_final_norm": False, "character_embeddings": False, "adaptive_input": False, "tpu": False},
    ),
    archs.MASKED_LM: Stock(
        name="roberta",
        shared=("max_positions", "untie_weights_roberta", "pooler_activation_fn", "pooler_dropout"),
        symbols=("encoder.sentence_encoder.embed_tokens.weight",) * 2,
        reader="fairseq-validate",
        fixed={"load_checkpoint_heads": True},  # without that fairseq drops classification heads when it loads
        prefixes={"encoder": "encoder.sentence_encoder", "lm_head": "encoder.lm_head"},
    ),
}  # fmt: skip
BY_NAME = {stock.name: stock for stock in STOCK.values()}  # fairseq's registered name -> its model


def stock_model(config: dict, state: dict[str, Tensor]) -> models.BaseFairseqModel:
    """Build fairseq's own model with these weights, in evaluation mode.

    config: as Stock.config returns it; state: the weights by that model's names. No architecture function of fairseq's
    fills the config, as none does when fairseq loads a checkpoint: those of transformer_lm would make any model Pre-LN.
    torch raises a RuntimeError for a weight that is missing or left over.
    """
    read, predicted = BY_NAME[config["_name"]].symbols  # names of the weights that tell the sizes of the vocabularies
    task = blank_task(state[read].size(0), state[predicted].size(0))
    model = models.build_model(argparse.Namespace(**config), task)
    model.load_state_dict(dict(state))
    return model.eval()


@dataclass
class Folded:
    """A trained model of ours as one of fairseq's.

    config: of fairseq's model, as Stock.config returns it; state: its weights by their names there; difference: largest
    difference of log-probabilities, in nats, from the original model on a made-up batch; method: that it was trained
    with.

    fold_checkpoint alone sets the last two. sections: the sections of the run's config but "model", as
    {section: {field: value}}; origin: the run and vocabulary of its checkpoint, as vocabulary.origin_of returns them.
    """

    config: dict[str, Any]
    state: dict[str, Tensor]
    difference: float
    method: str = ""
    sections: dict = field(default_factory=dict)
    origin: dict | None = None

    @property
    def stock(self) -> Stock:
        """The one of fairseq's models that the folded model is."""
        return BY_NAME[self.config["_name"]]

    @property
    def vocabulary_sizes(self) -> tuple[int, int]:
        """The numbers of symbols that the model reads, and that it predicts."""
        read, predicted = self.stock.symbols
        return self.state[read].size(0), self.state[predicted].size(0)


def fold_checkpoint(path: str) -> Folded:
    """Fold the model of a checkpoint file of this package's.

    Call deepnet_fairseq.register() before. Raises a UserError, naming the file, if it is no such checkpoint or if its
    model cannot be folded.
    """
    model, cfg = from_checkpoint(path)
    try:
        folded = fold_model(model, cfg.model)
    except UserError as error:
        raise UserError(path, str(error)) from error

    folded.origin = model.origin
    sections: Any = OmegaConf.to_container(cfg, enum_to_str=True)
    del sections["model"]  # that of fairseq's model takes its place
    if "common" in sections:  # from_checkpoint asks for the sections "task" and "model" alone
        sections["common"]["user_dir"] = None  # the folded model needs no plug-in
    folded.sections = sections
    return folded


def fold_model(model: DeepModel, cfg) -> Folded:
    """Fold a model in place, and return it as fairseq's model of its kind (see STOCK).

    cfg: the config that `model` was built from, after archs.fill. `model` shares its weights with the result. Raises a
    UserError if it cannot be folded, or if the log-probabilities on a made-up batch in float32 differ by more than
    TOLERANCE from those before.
    """
    reason = why_not_foldable(model)
    if reason:
        raise UserError(f"--method {cfg.method} has no plain Transformer", reason)
    stock = STOCK[model.NAME]
    pre_ln = {name: stack.layer_norm is not None for name, stack in model.stacks().items()}
    config = stock.config(cfg, pre_ln)
    net_input = _made_up(model)
    expected = _scores(model, net_input)

    changes = fold(model)
    for name, value in changes.items():
        if name in config:  # fold also names fields of fairseq's other models
            config[name] = value
    state = _stock_state(model.float(), stock)

    folded_scores = _scores(stock_model(config, state), net_input)
    difference = (expected - folded_scores).abs().max().item()
    if not difference <= TOLERANCE:  # a NaN fails as well
        raise UserError("the folded model", f"its scores differ by {difference:.1e}; nothing was written")
    return Folded(config, state, difference, cfg.method)


def write_transformer(folded: Folded, out: Path, half: bool) -> None:
    """Write a checkpoint for stock fairseq to the file `out`.

    half: whether the weights are written in float16. The checkpoint holds weights, config and digests of the vocabulary
    (vocabulary.py) but no state of an optimiser, and no class of this package, which a reader would need.
    """
    state = {}
    for name, value in folded.state.items():
        state[name] = value.half() if half and value.is_floating_point() else value
    cfg = folded.sections | {"model": folded.config}
    task_state = {} if folded.origin is None else vocabulary.task_state_of(folded.origin)
    save_tensors({"args": None, "cfg": cfg, "model": state, "task_state": task_state} | NO_TRAINING, out)


def _stock_state(model: DeepModel, stock: Stock) -> dict[str, Tensor]:
    """Return the weights of a folded model that a plain Transformer has, by the names in fairseq's model `stock`.

    What a method has put into slots is left out. Tied weights share memory.
    """
    stacks = model.stacks()
    method_tensors: set[int] = set()  # ids of tensors in the method's slots
    constants: set[str] = set()  # names of the method's constants, which the state dict also holds (core/constants.py)
    for name, stack in stacks.items():
        constants.update(f"{name}.{constant}" for constant in stack.constants)
        for _, module in stack.slots():
            for tensor in (*module.parameters(), *module.buffers()):
                method_tensors.add(id(tensor))

    state = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in method_tensors and name not in constants:
            state[name] = tensor.detach()
    for name in stacks:
        state[f"{name}.version"] = torch.tensor([3.0])  # below 3, fairseq drops the closing LayerNorm

    renamed = {}
    for name, tensor in state.items():
        first, rest = name.split(".", 1)
        prefix = stock.prefixes.get(first, first)
        renamed[f"{prefix}.{rest}"] = tensor
    return renamed


def _made_up(model: DeepModel) -> dict[str, Tensor]:
    """Return fairseq's net_input of a made-up batch of 4 sentences, the same each time.

    It is {"src_lengths": (4,), "src_tokens": (4, T)}, and for an encoder-decoder "prev_output_tokens", (4, T). One
    sentence has padding on the left if an encoder reads it.
    """
    stacks = model.stacks()
    longest = min(12, *(stack.max_positions() for stack in stacks.values()))  # T
    generator = torch.Generator().manual_seed(0)
    batches = []  # tokens for each stack, the encoder's first
    for stack in stacks.values():
        symbols = stack.embed_tokens.num_embeddings
        batches.append(torch.randint(SPECIALS, symbols, (4, longest), generator=generator))

    src_tokens = batches[0]
    if "encoder" in stacks:
        src_tokens[0, : longest // 3] = model.encoder.padding_idx
    first_stack = next(iter(stacks.values()))
    lengths = src_tokens.ne(first_stack.padding_idx).sum(1)
    net_input = {"src_lengths": lengths, "src_tokens": src_tokens}
    if len(batches) > 1:
        net_input["prev_output_tokens"] = batches[1]
    return net_input


@torch.no_grad()
def _scores(model: nn.Module, net_input: dict[str, Tensor]) -> Tensor:
    """Return the log-probabilities (B, T, V) that a model gives to a batch; leave the model in evaluation mode."""
    logits = model.eval()(**net_input)[0]
    return logits.float().log_softmax(-1)
