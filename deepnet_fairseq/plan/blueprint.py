"""The modules of a stack without their storage: one layer of each kind, and what stands around the layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from fairseq.modules import LayerNorm, LearnedPositionalEmbedding
from torch import nn

from ..methods import Method, get_method
from ..models.language_models import MaskedTokenHead
from ..transformer.layer import CausalLayer, DecoderLayer, EncoderLayer, Layer, StackShape
from ..transformer.modules import Linear
from .objective import PADDING
from .setting import Setting


@dataclass(frozen=True)
class Blueprint:
    """A stack of the model.

    layers: the first and one that stands for all others; tokens: the embedding matrix, empty if it is the other
    stack's; tied: is it the output projection too?; embedding: positions and their LayerNorm; end: modules on the
    stack's output; output: of the last stack, what makes scores of features, empty if that is an embedding.
    """

    name: str
    shape: StackShape
    layers: list[Layer]
    tokens: list[nn.Embedding]
    tied: bool
    embedding: list[nn.Module]
    layernorm_embedding: bool
    mixer: nn.Module | None
    end: list[nn.Module]
    output: list[nn.Module]

    @property
    def mixer_and_ending(self) -> list[nn.Module]:
        """What stands on the stack beside its layers and embeddings."""
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
    first, last = stack == setting.stacks[0], stack == setting.stacks[-1]
    shared, vocab = getattr(cfg, "share_all_embeddings", False), setting.vocabularies[0 if first else 1]
    tied = shared or (last and _tied(cfg))
    with torch.device("meta"):
        tokens = [nn.Embedding(vocab, shape.dim)] if first or not shared else []
        embedding = []
        if getattr(cfg, f"{stack}_learned_pos") and not cfg.no_token_positional_embeddings:
            embedding.append(LearnedPositionalEmbedding(shape.max_positions + PADDING + 1, shape.dim, PADDING))
        if cfg.layernorm_embedding:
            embedding.append(LayerNorm(shape.dim))
        kind = _layer_class(stack, method)
        layers = [kind(shape, method, index) for index in range(1, min(shape.num_layers, 2) + 1)]
        end = [LayerNorm(shape.dim)] if method.norm == "pre" else []
        mixer, ending = method.mixer(stack, shape.dim), method.ending(stack, shape.dim)
        end += [] if ending is None else [ending]
        output = _output(setting, shape, tokens, tied) if last else []
    for module in (*tokens, *embedding, *layers, *end, *output, *([] if mixer is None else [mixer])):
        module.to(setting.precision.dtype)
    return Blueprint(stack, shape, layers, tokens, tied, embedding, cfg.layernorm_embedding, mixer, end, output)


def _layer_class(stack: str, method: Method) -> type[Layer]:
    if stack == "encoder":
        return EncoderLayer
    return DecoderLayer if "encoder_attn" in method.sublayers(stack) else CausalLayer


def _tied(cfg) -> bool:
    """Are scores products with the embedding of the stack that gives them?"""
    if hasattr(cfg, "untie_weights_roberta"):
        return not cfg.untie_weights_roberta
    return cfg.share_decoder_input_output_embed


def _output(setting: Setting, shape: StackShape, tokens: list[nn.Embedding], tied: bool) -> list[nn.Module]:
    """What makes scores of features, without a projection that is an embedding and nothing else."""
    vocab = setting.target_vocab
    if setting.objective.masks:
        return [MaskedTokenHead(shape.dim, vocab, shape.activation_fn, tokens[0] if tied else None)]
    return [] if tied else [Linear(shape.dim, vocab, bias=False)]
