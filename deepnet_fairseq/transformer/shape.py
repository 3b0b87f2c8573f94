"""The numbers a stack is built from, read once from the config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

POSITIONS = {"encoder": ("max_source_positions", "max_positions"), "decoder": ("max_target_positions",)}


@dataclass(frozen=True)
class StackShape:
    """The shape of one stack: widths in features, dropouts as probabilities.

    memory_dim: width of what cross-attention reads, None in a stack without; max_positions: longest sentence in tokens.
    """

    stack: str
    num_layers: int
    dim: int
    ffn_dim: int
    num_heads: int
    memory_dim: int | None
    activation_fn: str
    dropout: float
    attention_dropout: float
    activation_dropout: float
    max_positions: int

    @classmethod
    def from_config(cls, cfg: Any, stack: str) -> StackShape:
        """The shape of `stack` ("encoder" or "decoder") in a filled config of any of the models."""

        def of_stack(name: str) -> Any:
            return getattr(cfg, f"{stack}_{name}")

        return cls(
            stack=stack,
            num_layers=of_stack("layers"),
            dim=of_stack("embed_dim"),
            ffn_dim=of_stack("ffn_embed_dim"),
            num_heads=of_stack("attention_heads"),
            memory_dim=getattr(cfg, "encoder_embed_dim", None) if stack == "decoder" else None,
            activation_fn=str(cfg.activation_fn),
            dropout=cfg.dropout,
            attention_dropout=cfg.attention_dropout,
            activation_dropout=cfg.activation_dropout,
            max_positions=next(getattr(cfg, name) for name in POSITIONS[stack] if hasattr(cfg, name)),
        )
