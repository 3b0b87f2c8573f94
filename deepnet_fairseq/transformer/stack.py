"""What encoder and decoder share: embeddings, the run through the layers, the last LayerNorm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from fairseq.modules import LayerNorm, PositionalEmbedding
from torch import Tensor, nn

from ..methods import Method
from . import traversal
from .dropout import Dropout
from .layer import Layer
from .recomputation import Recomputation
from .shape import StackShape


class Stack(nn.Module):
    """Mixin for fairseq's encoder and decoder shells: `build` after their __init__. B sentences, T tokens, C width."""

    def build(
        self, cfg: Any, shape: StackShape, method: Method, embed_tokens: nn.Embedding, layer_class: type[Layer]
    ) -> None:
        """Makes the modules under fairseq's names and the method's constants as buffers."""
        assert embed_tokens.padding_idx is not None  # fairseq's dictionaries have one
        self.padding_idx: int = embed_tokens.padding_idx
        self.max_tokens = shape.max_positions
        self.recomputation = Recomputation.from_config(cfg)
        self.embed_tokens = embed_tokens
        self.embed_scale = 1.0 if cfg.no_scale_embedding else math.sqrt(shape.dim)
        self.embed_positions = None
        if not cfg.no_token_positional_embeddings:
            learned = getattr(cfg, f"{shape.stack}_learned_pos")
            self.embed_positions = PositionalEmbedding(self.max_tokens, shape.dim, self.padding_idx, learned)
        self.layernorm_embedding = LayerNorm(shape.dim) if cfg.layernorm_embedding else None
        self.dropout = Dropout(shape.dropout, module_name=f"Transformer{shape.stack.capitalize()}")
        self.layers = nn.ModuleList([layer_class(shape, method, l) for l in range(1, shape.num_layers + 1)])
        self.layer_norm = LayerNorm(shape.dim) if method.norm == "pre" else None
        self.mixer = method.mixer(shape.stack, shape.dim)
        self.ending = method.ending(shape.stack, shape.dim)
        for name, value in method.constants(shape.stack).items():
            self.register_buffer(name, torch.tensor(value))

    def embed(self, tokens: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        """tokens (B, T), positions (B, T, C) -> input of the first layer and bare token embedding, each (B, T, C)."""
        embedding = self.embed_scale * self.embed_tokens(tokens)
        x = embedding if positions is None else embedding + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout(x), embedding

    def positions(self, tokens: Tensor, incremental_state: dict | None = None) -> Tensor | None:
        """Positional embeddings of tokens (B, T): (B, T, C), or (B, 1, C) of the last one in incremental decoding."""
        if self.embed_positions is None:
            return None
        return self.embed_positions(tokens, incremental_state=incremental_state)

    def transform(self, x: Tensor, *inputs: Any) -> Tensor:
        """x (B, T, C) through mixer and all layers: what training runs. inputs: those of every layer."""
        history: list[Tensor] = []
        x = self.mix(x, history)
        for layers in [self.layers] if self.recomputation is None else self.recomputation.groups(self.layers):
            x = self.run(layers, inputs, x, history)
        return x

    def states(self, x: Tensor, *inputs: Any, more: dict[int, tuple] | None = None) -> Iterator[Tensor]:
        """As `transform`, but layer by layer, and gives x (B, T, C) before the first and behind each one.

        more: further inputs of one layer, by its index from 0.
        """
        history: list[Tensor] = []
        yield x
        x = self.mix(x, history)
        for index, layer in enumerate(self.layers):
            x = self.run([layer], (*inputs, *(more or {}).get(index, ())), x, history)
            yield x

    def run(self, layers: Iterable[nn.Module], inputs: tuple, x: Tensor, history: list[Tensor]) -> Tensor:
        """x through some layers in a row, each with mixer; under --checkpoint-activations nothing but x is kept."""

        def part(x: Tensor, history: list[Tensor]) -> Tensor:
            for layer in layers:
                x = self.mix(layer(x, *inputs), history)
            return x

        return part(x, history) if self.recomputation is None else self.recomputation(part, x, history)

    def mix(self, y: Tensor, history: list[Tensor]) -> Tensor:
        """What the next layer reads when the embedding or a layer has given y; `history` lives for one forward pass."""
        return y if self.mixer is None else self.mixer(y, history)

    def finish(self, x: Tensor) -> Tensor:
        """The end of the stack, x (B, T, C) -> same: its LayerNorm under Pre-LN, then the method's `ending`."""
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x if self.ending is None else self.ending(x)

    def slots(self) -> Iterator[nn.Module]:
        """The modules that came from the method, of the stack and of its layers."""
        yield from (module for module in (self.mixer, self.ending) if module is not None)
        for layer in self.layers:
            yield from layer.slots()

    def set_num_updates(self, num_updates: int) -> None:
        """Tells the modules below that change with time how many updates are done."""
        traversal.set_num_updates(self, num_updates)

    def max_positions(self) -> int:
        """Longest sentence in tokens."""
        if self.embed_positions is None:
            return self.max_tokens
        return min(self.max_tokens, self.embed_positions.max_positions)
