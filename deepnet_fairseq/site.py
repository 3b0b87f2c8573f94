"""Addresses inside a model: every residual branch is a Site, every weight matrix of a branch has a Role."""

from __future__ import annotations

from dataclasses import dataclass

ROLES = ("q", "k", "v", "out", "fc1", "fc2")
SUBLAYERS = {"encoder": ("self_attn", "ffn"), "decoder": ("self_attn", "encoder_attn", "ffn")}
# fairseq's own names, so that a checkpoint of its `transformer` fits
NORM_NAMES = {"self_attn": "self_attn_layer_norm", "encoder_attn": "encoder_attn_layer_norm", "ffn": "final_layer_norm"}


@dataclass(frozen=True)
class Site:
    """One residual branch.

    stack: "encoder" or "decoder"; layer: 1-based depth inside the stack, the l of the papers;
    sublayer: "self_attn", "encoder_attn" or "ffn"; dim: width of the residual stream.
    """

    stack: str
    layer: int
    sublayer: str
    dim: int
