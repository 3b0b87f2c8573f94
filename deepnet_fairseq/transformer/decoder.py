"""The decoder: fairseq's incremental contract outside, own layers and cache inside."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor, nn

from ..methods import Method
from .cache import DecoderCache
from .encoder_output import EncoderOutput
from .layer import CausalLayer, DecoderLayer
from .linear import Linear
from .shape import StackShape
from .stack import Stack
from .step import LayerStep


class Decoder(Stack, FairseqIncrementalDecoder):
    """M layers over target tokens and the projection to the vocabulary; without an encoder, no cross-attention.

    cfg: a filled model config; tied: is the projection the matrix of embed_tokens? B sentences (rows of hypotheses in
    beam search), T target and S source tokens, C width, V symbols.
    """

    CACHE = "deepnet.cache"  # its place in fairseq's incremental_state, which beam search carries along

    def __init__(self, cfg: Any, method: Method, dictionary: Dictionary, embed_tokens: nn.Embedding, tied: bool):
        FairseqIncrementalDecoder.__init__(self, dictionary)
        shape = StackShape.from_config(cfg, "decoder")
        self.attends = "encoder_attn" in method.sublayers("decoder")
        self.build(cfg, shape, method, embed_tokens, DecoderLayer if self.attends else CausalLayer)
        self.need_attn = self.attends
        self.output_projection = Linear(shape.dim, len(dictionary), bias=False)
        if tied:
            self.output_projection.weight = embed_tokens.weight

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict | None = None,
        incremental_state: dict | None = None,
        features_only: bool = False,
        **options: Any,
    ) -> tuple[Tensor, dict]:
        """prev_output_tokens (B, T) -> scores (B, T, V) (or features (B, T, C)) and what extract_features returns."""
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state, **options)
        return (x if features_only else self.output_layer(x)), extra

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict | None = None,
        incremental_state: dict | None = None,
        return_all_hiddens: bool = False,
        alignment_layer: int | None = None,
    ) -> tuple[Tensor, dict]:
        """Features (B, T, C); with an incremental_state those of the newest token alone (B, 1, C).

        The dictionary holds attn [(B, T, S)], the cross-attention of layer `alignment_layer` (default: the last)
        averaged over heads, or [None] where nobody asks (training, generation without alignments) or there is none;
        and inner_states, [(T, B, C) before and after every layer] if return_all_hiddens.
        """
        watched = alignment_layer if self.attends else None
        alignment: list[Tensor] = []
        if watched is None and self.need_attn and not self.training:
            watched = len(self.layers) - 1
        more = {} if watched is None else {watched: (alignment,)}
        positions = self.positions(prev_output_tokens, incremental_state)
        if incremental_state is not None:
            x, _embedding = self.embed(prev_output_tokens[:, -1:], positions)
            states: Iterable[Tensor] = self.step(x, incremental_state, encoder_out, more)
            alignment = [weights.flatten(0, 1).unsqueeze(1) for weights in alignment]  # (B, k, S) -> (rows, 1, S)
        else:
            x, _embedding = self.embed(prev_output_tokens, positions)
            inputs: tuple[Tensor | None, ...] = (self._left_padding_mask(prev_output_tokens),)
            if self.attends:
                memory = EncoderOutput.of(encoder_out)
                inputs += (memory.states, memory.mask)
            asked = more or return_all_hiddens
            states = self.states(x, *inputs, more=more) if asked else [self.transform(x, *inputs)]
        kept = list(states) if return_all_hiddens else deque(states, maxlen=1)
        inner_states = [state.transpose(0, 1) for state in kept] if return_all_hiddens else []
        return self.finish(kept[-1]), {"attn": alignment[:1] or [None], "inner_states": inner_states}

    @torch.no_grad()
    def step(
        self, x: Tensor, incremental_state: dict, encoder_out: dict | None, more: dict[int, tuple]
    ) -> list[Tensor]:
        """What `states` gives, of the newest token of every hypothesis alone, x (rows, 1, C).

        Without gradients, for the cache is written in place.
        """
        if self.CACHE not in incremental_state:
            memory = EncoderOutput.of(encoder_out, rows=False) if self.attends else None
            cache = DecoderCache(list(self.layers), memory, x)
            steps = [LayerStep(layer, index, cache) for index, layer in enumerate(self.layers)]
            incremental_state[self.CACHE] = cache, steps
        cache, steps = incremental_state[self.CACHE]
        mask = cache.advance()
        states = [x]
        history: list[Tensor] = []
        x = self.mix(x.squeeze(1), history)
        for index, step in enumerate(steps):
            x = self.mix(step(x, mask, *more.get(index, ())), history)
            states.append(x.unsqueeze(1))
        return states

    def output_layer(self, features: Tensor) -> Tensor:
        """(B, T, C) -> scores over the vocabulary (B, T, V)."""
        return self.output_projection(features)

    def reorder_incremental_state_scripting(self, incremental_state: dict, new_order: Tensor) -> None:
        """Beam search's call after each step; new_order (B',)."""
        if self.CACHE in incremental_state:
            cache, _steps = incremental_state[self.CACHE]
            cache.reorder(new_order)

    def make_generation_fast_(self, need_attn: bool = True, **_: Any) -> None:
        """fairseq-generate's call before decoding: attention weights only under --print-alignment."""
        self.need_attn = need_attn and self.attends

    def _left_padding_mask(self, tokens: Tensor) -> Tensor | None:
        """(B, 1, T, T), True where a query may look, if a sentence is padded on the left; None if none is.

        Padding on the right needs no mask: it lies in the future of every token. A padding query sees itself only, for
        a softmax over nothing is not a number.
        """
        padding = tokens.eq(self.padding_idx)
        if not padding[:, 0].any():
            return None
        length = tokens.size(1)
        causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=tokens.device)
        return (causal & ~padding[:, None, None]) | itself
