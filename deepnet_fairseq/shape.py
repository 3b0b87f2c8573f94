"""The numbers a stack is built from, read once from the config."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StackShape:
    """Widths in units of features, dropouts as probabilities; memory_dim: width of what cross-attention reads."""

    stack: str
    num_layers: int
    dim: int
    ffn_dim: int
    num_heads: int
    memory_dim: int
    activation_fn: str
    dropout: float
    attention_dropout: float
    activation_dropout: float

    @classmethod
    def from_config(cls, cfg, stack: str) -> StackShape:
        """The shape of `stack` ("encoder" or "decoder") in a resolved DeepTransformerConfig."""

        def of_stack(name):
            return getattr(cfg, f"{stack}_{name}")

        return cls(
            stack=stack,
            num_layers=of_stack("layers"),
            dim=of_stack("embed_dim"),
            ffn_dim=of_stack("ffn_embed_dim"),
            num_heads=of_stack("attention_heads"),
            memory_dim=cfg.encoder_embed_dim,
            activation_fn=cfg.activation_fn,
            dropout=cfg.dropout,
            attention_dropout=cfg.attention_dropout,
            activation_dropout=cfg.activation_dropout,
        )
