"""The flat model config; flag names are those of fairseq's `transformer`.

Flat because fairseq's hierarchical TransformerConfig, given as a model's dataclass, trains six layers whatever the
flags say. Depth and widths default to None: archs.fill gives them the architecture's numbers, by one path for
command line, preset and YAML.
"""

import argparse
from dataclasses import dataclass, field
from typing import Optional  # fairseq reads field types at run time and does not know X | None

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.utils import get_available_activation_fns
from omegaconf import II

from . import archs
from .errors import UserError
from .init_profiles import PROFILES
from .methods import METHODS, get_method


def _flag(default, help: str):
    return field(default=default, metadata={"help": help})


@dataclass
class DeepTransformerConfig(FairseqDataclass):
    method: str = _flag("deepnorm", f"stabilisation method: {', '.join(sorted(METHODS))}")
    init_profile: Optional[str] = _flag(
        None, f"base initialisation, by default the method's own: {', '.join(PROFILES)}"
    )
    activation_fn: ChoiceEnum(get_available_activation_fns()) = _flag("relu", "activation of the feed-forward branch")
    dropout: float = _flag(0.1, "dropout on embeddings and on the output of each branch")
    attention_dropout: float = _flag(0.0, "dropout on attention weights")
    activation_dropout: float = _flag(0.0, "dropout after the activation of the feed-forward branch")

    encoder_layers: Optional[int] = _flag(None, "N, number of encoder layers")
    encoder_embed_dim: Optional[int] = _flag(None, "width of the encoder")
    encoder_ffn_embed_dim: Optional[int] = _flag(None, "feed-forward width of the encoder")
    encoder_attention_heads: Optional[int] = _flag(None, "attention heads of the encoder")
    encoder_normalize_before: bool = _flag(False, "accepted with methods that place the LayerNorm there (pre_ln)")
    encoder_learned_pos: bool = _flag(False, "learned positions in the encoder")

    decoder_layers: Optional[int] = _flag(None, "M, number of decoder layers")
    decoder_embed_dim: Optional[int] = _flag(None, "width of the decoder, by default the encoder's")
    decoder_ffn_embed_dim: Optional[int] = _flag(None, "feed-forward width of the decoder, by default the encoder's")
    decoder_attention_heads: Optional[int] = _flag(None, "attention heads of the decoder, by default the encoder's")
    decoder_normalize_before: bool = _flag(False, "accepted with methods that place the LayerNorm there (pre_ln)")
    decoder_learned_pos: bool = _flag(False, "learned positions in the decoder")

    share_decoder_input_output_embed: bool = _flag(False, "one matrix for decoder input and output embeddings")
    share_all_embeddings: bool = _flag(False, "one matrix for encoder input, decoder input and output embeddings")
    no_token_positional_embeddings: bool = _flag(False, "no positional embeddings")
    no_scale_embedding: bool = _flag(False, "do not multiply token embeddings by sqrt(width)")
    layernorm_embedding: bool = _flag(False, "LayerNorm after the embeddings")
    checkpoint_activations: bool = _flag(False, "recompute each layer in the backward pass to save memory")
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


def namespace(arch: str, **fields) -> argparse.Namespace:
    """A filled and checked config of architecture `arch`, as fairseq's command line would make it."""
    defaults = {name: field.default for name, field in DeepTransformerConfig.__dataclass_fields__.items()}
    positions = {"max_source_positions": 1024, "max_target_positions": 1024}
    cfg = argparse.Namespace(**(defaults | positions | fields | {"arch": arch}))
    archs.fill(cfg)
    check(cfg)
    return cfg


def check(cfg) -> None:
    """UserError naming the flag for the first thing in a filled config that no model can be built from."""
    method = get_method(cfg.method)
    _check_init_profile(cfg, method)
    for stack in ("encoder", "decoder"):
        _check_stack(cfg, stack, method)
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        if not 0 <= getattr(cfg, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(cfg, name)}: must be at least 0 and below 1")
    if cfg.share_all_embeddings and cfg.encoder_embed_dim != cfg.decoder_embed_dim:
        raise UserError(
            f"--share-all-embeddings: --encoder-embed-dim {cfg.encoder_embed_dim} and --decoder-embed-dim "
            f"{cfg.decoder_embed_dim} differ; make them equal or drop the flag"
        )


def _check_init_profile(cfg, method) -> None:
    if cfg.init_profile is None or cfg.init_profile in method.init_profiles:
        return
    raise UserError(
        f"--init-profile {cfg.init_profile}: --method {method.name} is defined for {', '.join(method.init_profiles)}"
    )


def _check_stack(cfg, stack: str, method) -> None:
    layers, dim = getattr(cfg, f"{stack}_layers"), getattr(cfg, f"{stack}_embed_dim")
    heads = getattr(cfg, f"{stack}_attention_heads")
    if layers < 1:
        raise UserError(f"--{stack}-layers {layers}: a stack needs at least 1 layer")
    for name in ("embed_dim", "ffn_embed_dim", "attention_heads"):
        value = getattr(cfg, f"{stack}_{name}")
        if value < 1:
            raise UserError(f"--{stack}-{name.replace('_', '-')} {value}: must be at least 1")
    if dim < 4 and not (getattr(cfg, f"{stack}_learned_pos") or cfg.no_token_positional_embeddings):
        raise UserError(f"--{stack}-embed-dim {dim}: sinusoidal positions need at least 4")
    if dim % heads:
        raise UserError(f"--{stack}-attention-heads {heads}: must divide --{stack}-embed-dim {dim}")
    if getattr(cfg, f"{stack}_normalize_before") and method.norm != "pre":
        raise UserError(
            f"--{stack}-normalize-before: --method {method.name} computes {method.equation}; "
            "drop the flag or take --method pre_ln"
        )
