"""The modules of a stack without their storage: one layer of each kind, and what stands around the layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from fairseq.modules import LayerNorm, LearnedPositionalEmbedding
from torch import nn

from ..layer import DecoderLayer, EncoderLayer, Layer
from ..linear import Linear
from ..methods import get_method
from ..shape import StackShape
from .setting import Setting

LAYERS = {"encoder": EncoderLayer, "decoder": DecoderLayer}
PADDING = 1  # index of fairseq's padding symbol; positions are counted behind it


@dataclass(frozen=True)
class Blueprint:
    """layers: the first and one that stands for all others; tokens: the embedding matrix, empty if it is the other
    stack's; tied: is it the output projection too?; embedding: positions and their LayerNorm; end: modules on the
    stack's output; output: the projection to the vocabulary, empty if it is an embedding."""

    name: str
    shape: StackShape
    layers: list[Layer]
    tokens: list[nn.Module]
    tied: bool
    embedding: list[nn.Module]
    layernorm_embedding: bool
    mixer: nn.Module | None
    end: list[nn.Module]
    output: list[nn.Module]

    @property
    def mixer_and_ending(self) -> list[nn.Module]:
        return [*([self.mixer] if self.mixer is not None else []), *self.end]

    def every_layer(self) -> Iterable[Layer]:
        """The layers in order, the second standing for those behind it."""
        last = len(self.layers) - 1
        return (self.layers[min(index, last)] for index in range(self.shape.num_layers))

    @staticmethod
    def parameters(modules: Iterable[nn.Module], trainable: bool = False) -> int:
        """How many numbers the modules hold, one that several share counted once."""
        found = {p: None for module in modules for p in module.parameters() if p.requires_grad or not trainable}
        return sum(p.numel() for p in found)

    @staticmethod
    def gradients(modules: Iterable[nn.Module]) -> int:
        """Bytes of their gradients."""
        found = {p: None for module in modules for p in module.parameters() if p.requires_grad}
        return sum(p.numel() * p.element_size() for p in found)

    @staticmethod
    def weights(modules: Iterable[nn.Module]) -> int:
        """Bytes of their parameters."""
        found = {p: None for module in modules for p in module.parameters()}
        return sum(p.numel() * p.element_size() for p in found)


def blueprint(setting: Setting, stack: str) -> Blueprint:
    """`stack` ("encoder" or "decoder") of the setting's model, in its precision."""
    cfg, shape = setting.cfg, StackShape.from_config(setting.cfg, stack)
    method = get_method(cfg.method).from_config(cfg)
    vocab = setting.source_vocab if stack == "encoder" else setting.target_vocab
    projected = cfg.share_all_embeddings or cfg.share_decoder_input_output_embed
    tied = projected if stack == "decoder" else cfg.share_all_embeddings
    with torch.device("meta"):
        owned = stack == "encoder" or not cfg.share_all_embeddings
        tokens, embedding = [nn.Embedding(vocab, shape.dim)] if owned else [], []
        if getattr(cfg, f"{stack}_learned_pos") and not cfg.no_token_positional_embeddings:
            side = "source" if stack == "encoder" else "target"
            rows = getattr(cfg, f"max_{side}_positions") + PADDING + 1
            embedding.append(LearnedPositionalEmbedding(rows, shape.dim, PADDING))
        if cfg.layernorm_embedding:
            embedding.append(LayerNorm(shape.dim))
        layers = [LAYERS[stack](shape, method, index) for index in range(1, min(shape.num_layers, 2) + 1)]
        end = [LayerNorm(shape.dim)] if method.norm == "pre" else []
        mixer, ending = method.mixer(stack, shape.dim), method.ending(stack, shape.dim)
        end += [] if ending is None else [ending]
        output = [] if stack == "encoder" or projected else [Linear(shape.dim, vocab, bias=False)]
    for module in (*tokens, *embedding, *layers, *end, *output, *([] if mixer is None else [mixer])):
        module.to(setting.precision.dtype)
    return Blueprint(stack, shape, layers, tokens, tied, embedding, cfg.layernorm_embedding, mixer, end, output)
