"""Addresses inside a model: every residual branch is a Site, every weight matrix of a branch has a Role."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

BRANCHES = ("self_attn", "encoder_attn", "ffn")  # of a layer with cross-attention; the others lack encoder_attn
# fairseq's own names, so that a checkpoint of its `transformer` fits
NORM_NAMES = {"self_attn": "self_attn_layer_norm", "encoder_attn": "encoder_attn_layer_norm", "ffn": "final_layer_norm"}
SUBLAYERS = {norm: sublayer for sublayer, norm in NORM_NAMES.items()}  # by the name of their LayerNorm


@dataclass(frozen=True)
class Site:
    """One residual branch.

    stack: "encoder" or "decoder"; layer: 1-based depth inside the stack, the l of the papers;
    sublayer: "self_attn", "encoder_attn" or "ffn"; dim: width of the residual stream; num_heads: of the stack's
    attention.
    """

    stack: str
    layer: int
    sublayer: str
    dim: int
    num_heads: int

    def __str__(self) -> str:
        return f"{self.stack}.{self.layer}.{self.sublayer}"


@dataclass(frozen=True)
class Weight:
    """One weight matrix of a branch.

    role: "q", "k", "v", "out", "fc1" or "fc2"; source_dim: width of what the branch's keys and values are made from.
    """

    site: Site
    role: str
    linear: nn.Linear
    source_dim: int
