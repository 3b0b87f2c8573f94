"""A trained model as a checkpoint of fairseq's `transformer`, for programs that have never heard of this package."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import torch
from fairseq.models.transformer import TransformerModel, base_architecture
from omegaconf import OmegaConf
from torch import Tensor, nn

from ..building import SPECIALS, blank_task, from_checkpoint
from ..errors import UserError
from ..whole_file import save
from .fold import fold
from .obstacle import obstacle

# what fairseq's `transformer` shares with this package, by name
FIELDS = (
    "activation_fn", "dropout", "attention_dropout", "activation_dropout", "share_all_embeddings",
    "share_decoder_input_output_embed", "no_token_positional_embeddings", "no_scale_embedding", "layernorm_embedding",
    "max_source_positions", "max_target_positions",
    *(f"{stack}_{name}" for stack in ("encoder", "decoder")
      for name in ("layers", "embed_dim", "ffn_embed_dim", "attention_heads", "learned_pos")),
)  # fmt: skip
TOLERANCE = 1e-3  # on log-probabilities; in practice 1e-5
NO_TRAINING = {  # fairseq reads these of every checkpoint
    "optimizer_history": [{"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}],
    "extra_state": {"train_iterator": {"epoch": 1}},
    "last_optimizer_state": None,
}


@dataclass
class Folded:
    """model: config fields of a `transformer`; state: its parameters; sections: the run's other config, plain data;
    difference: largest difference of log-probabilities from the original on a made-up batch."""

    model: dict
    state: dict[str, Tensor]
    difference: float
    sections: dict = field(default_factory=dict)


def fold_checkpoint(path: str, way: str = "upstream") -> Folded:
    """Folds the model of a checkpoint; UserError, naming the file, if it cannot be folded."""
    model, cfg = from_checkpoint(path)
    try:
        folded = fold_model(model, cfg.model, way)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    folded.sections = OmegaConf.to_container(cfg, enum_to_str=True)
    del folded.sections["model"]
    if not isinstance(folded.sections.get("task"), dict):
        raise UserError(f"{path}: its config has no task section; give a checkpoint of fairseq-train")
    folded.sections.get("common", {})["user_dir"] = None
    return folded


def fold_model(model: nn.Module, cfg, way: str = "upstream") -> Folded:
    """`model`, built from the filled model config `cfg`, as a plain Transformer; `model` itself is used up.

    Both score a made-up batch in float32, and UserError is raised if they differ, or if the model does not fold.
    """
    reason = obstacle(model)
    if reason:
        raise UserError(f"--method {cfg.method} has no plain Transformer: {reason}")
    norm_first = model.encoder.layers[0].norm_place == "pre"
    fields = {name: getattr(cfg, name) for name in FIELDS} | {"_name": "transformer", "arch": "transformer"}
    fields |= {"encoder_normalize_before": norm_first, "decoder_normalize_before": norm_first}
    fields["activation_fn"] = str(fields["activation_fn"])
    before = _scores(model)
    try:
        fields |= fold(model, way)
    except ValueError as error:
        raise UserError(f"--fold {way}: {error}; leave the flag out") from error
    state = _stock_state(model.float())
    difference = (before - _scores(stock_model(fields, state))).abs().max().item()
    if not difference <= TOLERANCE:
        raise UserError(f"the folded model's scores differ by {difference:.1e}; nothing was written")
    return Folded(fields, state, difference)


def stock_model(fields: dict, state: dict[str, Tensor]) -> TransformerModel:
    """fairseq's own model with these weights; it raises if one is missing or left over."""
    cfg = argparse.Namespace(**fields)
    base_architecture(cfg)
    sizes = (state[f"{stack}.embed_tokens.weight"].size(0) for stack in ("encoder", "decoder"))
    model = TransformerModel.build_model(cfg, blank_task(*sizes))
    model.load_state_dict(dict(state))
    return model.eval()


def write_transformer(folded: Folded, out: Path, half: bool = False) -> None:
    """A checkpoint of plain data: weights (float16 if `half`) and config, no optimiser, no class to unpickle."""
    state = {k: v.half() if half and v.is_floating_point() else v for k, v in folded.state.items()}
    cfg = folded.sections | {"model": folded.model}
    save({"args": None, "cfg": cfg, "model": state} | NO_TRAINING, out)


def _stock_state(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that a plain Transformer has, under its names; tied ones share memory."""
    stacks = {"encoder": model.encoder, "decoder": model.decoder}
    of_methods = {id(p) for s in stacks.values() for m in s.slots() for p in (*m.parameters(), *m.buffers())}
    of_methods |= {id(buffer) for stack in stacks.values() for buffer in stack.buffers(recurse=False)}
    values = model.state_dict(keep_vars=True)
    state = {name: value.detach() for name, value in values.items() if id(value) not in of_methods}
    return state | {f"{name}.version": torch.tensor([3.0]) for name in stacks}


@torch.no_grad()
def _scores(model: nn.Module) -> Tensor:
    """Log-probabilities (B, T, V) of a made-up batch with a padded source."""
    model.eval()
    generator = torch.Generator().manual_seed(0)
    sizes = [stack.embed_tokens.num_embeddings for stack in (model.encoder, model.decoder)]
    longest = min(12, model.encoder.max_positions(), model.decoder.max_positions())
    src, prev = (torch.randint(SPECIALS, max(size, SPECIALS + 1), (4, longest), generator=generator) for size in sizes)
    src[0, : longest // 3] = model.encoder.padding_idx
    lengths = src.ne(model.encoder.padding_idx).sum(1)
    return model(src, lengths, prev)[0].float().log_softmax(-1)
