"""What a decoder remembers between steps of incremental decoding: keys and values of every layer.

The hypotheses of a sentence stand side by side where training has positions: L layers, B sentences, k beams, so that
queries are (B, h, k, d). A sentence's keys and values are held once for all its beams, and a beam that goes on from
another's prefix copies nothing: a mask, which all layers share, says whose past is whose. Most beams die young, so what
no beam looks back at any more is dropped when room runs out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .encoder_output import EncoderOutput

ROOM = 8  # steps to make room for at least, before what is no longer needed is dropped


class DecoderCache:
    """Keys and values of all layers.

    memory (L, 2, B, S, h, d) of the source, made once, None in a language model; prefix (L, 2, B, capacity, h, d) of
    the target, of which the first `used` are filled, k a step; past (B, k, used): 0 where a beam looks back at its own
    prefix, -inf elsewhere.
    """

    def __init__(self, layers: Sequence[nn.Module], source: EncoderOutput | None, first: Tensor):
        """source: what cross-attention reads, if there is any; first (rows, 1, C): the first step's input."""
        self.beams, self.used, self.steps = source.beams if source else 1, 0, 0
        self.memory = _project(layers, source.states) if source else None
        self.memory_mask = source.mask if source else None
        heads = layers[0].self_attn.num_heads
        kept = first if self.memory is None else self.memory
        sentences = first.size(0) // self.beams
        self.prefix = kept.new_empty(len(layers), 2, sentences, 0, heads, first.size(-1) // heads)
        self.past = kept.new_zeros(sentences, self.beams, 0)
        self._memory: Sequence[tuple[Tensor, Tensor]] = ()  # views of each layer's part
        self._prefix: Sequence[tuple[Tensor, Tensor]] = ()
        self._places: Sequence[Tensor] = ()

    def advance(self) -> Tensor | None:
        """Room for a token of every hypothesis. Returns the mask of this step, (B, 1, k, used), None for one beam."""
        if self.used + self.beams > self.prefix.size(3):
            self._make_room()
        self.used += self.beams
        self.steps += 1
        filled = self.prefix[:, :, :, : self.used]
        self._prefix = _by_layer(filled)
        self._places = filled[:, :, :, -self.beams :].permute(0, 2, 3, 1, 4, 5).unbind(0)  # (B, k, 2, h, d) each
        if self.memory is not None:
            self._memory = self._memory or _by_layer(self.memory)
        if self.beams == 1:
            return None
        itself = torch.full((self.beams, self.beams), float("-inf")).fill_diagonal_(0).to(self.past)
        self.past = torch.cat([self.past, itself.expand(len(self.past), -1, -1)], -1)
        return self.past[:, None]

    def append(self, layer: int, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Packed queries, keys and values of this step (rows, 3 C), of which it keeps keys and values.

        Returns queries (B, h, k, d), and keys and values of the whole prefix, (B, h, used, d).
        """
        place = self._places[layer]
        projected = projected.view(place.size(0), self.beams, 3, *place.shape[3:])
        place.copy_(projected.narrow(2, 1, 2))
        return projected.select(2, 0).transpose(1, 2), *self._prefix[layer]

    def source(self, layer: int, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (rows, C) -> (B, h, k, d), and keys and values of the source, (B, h, S, d)."""
        keys, values = self._memory[layer]
        return projected.view(keys.size(0), self.beams, *keys.shape[1::2]).transpose(1, 2), keys, values

    def reorder(self, new_order: Tensor) -> None:
        """Row i becomes the old row new_order[i]; new_order (rows,) may drop or repeat rows."""
        order = new_order.cpu()  # the one synchronisation with the device
        if self.beams > 1 and not self._keeps_groups(order):
            self._separate()
        if self.beams > 1:
            self.past = self.past.flatten(0, 1).index_select(0, new_order).unflatten(0, (-1, self.beams))
        sentences = order[:: self.beams] // self.beams
        if not torch.equal(sentences, torch.arange(self.prefix.size(2))):
            self._select(sentences.to(new_order.device))

    def _keeps_groups(self, order: Tensor) -> bool:
        """Does every group of beams come from one sentence, as in beam search?"""
        if len(order) % self.beams:
            return False
        sentences = order.view(-1, self.beams) // self.beams
        return bool((sentences == sentences[:, :1]).all())

    def _select(self, sentences: Tensor) -> None:
        self.prefix = self.prefix.index_select(2, sentences)
        if self.memory is not None:
            self.memory = self.memory.index_select(2, sentences)
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask.index_select(0, sentences)
        if self.beams == 1:
            self.past = self.past.index_select(0, sentences)
        self._memory = ()

    def _make_room(self) -> None:
        """Drops what no beam looks back at; as much room again as the rest takes."""
        needed = (self.past == 0).any(1)  # (B, used)
        kept = int(needed.sum(1).max()) if self.beams > 1 and self.used else self.used
        if kept == self.used:
            prefix = self.prefix[:, :, :, :kept]
        else:
            slots = torch.argsort(needed.to(torch.uint8), dim=1, descending=True, stable=True)[:, :kept]
            prefix = self._take(slots)
            self.past = self.past.gather(2, slots[:, None].expand(-1, self.beams, -1))
        room = max(kept, ROOM * self.beams)
        self.prefix = prefix.new_empty(*prefix.shape[:3], kept + room, *prefix.shape[4:])
        self.prefix[:, :, :, :kept] = prefix
        self.used = kept

    def _take(self, slots: Tensor) -> Tensor:
        """Of each sentence's prefix the places `slots` (B, n): (L, 2, B, n, h, d)."""
        first = torch.arange(len(slots), device=slots.device)[:, None] * self.prefix.size(3)
        return self.prefix.flatten(2, 3).index_select(2, (first + slots).flatten()).unflatten(2, slots.shape)

    def _separate(self) -> None:
        """Every hypothesis becomes a sentence of its own, for callers that mix those of several."""
        own = (self.past == 0).nonzero()[:, 2].view(len(self.past), -1)  # (B, k steps)
        self.prefix = self._take(own).flatten(2, 3).unflatten(2, (-1, self.steps))
        assert self.memory is not None  # beams share a source
        self.memory = self.memory.repeat_interleave(self.beams, 2)
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask.repeat_interleave(self.beams, 0)
        self.past = self.past.new_zeros(self.memory.size(2), 1, 0)
        self.beams, self.used, self._memory = 1, self.steps, ()


def _project(layers: Sequence[nn.Module], states: Tensor) -> Tensor:
    """Keys and values of the source (B, S, C) in all layers, written where they stay: (L, 2, B, S, h, d)."""
    memory = states.new_empty(0)
    for index, layer in enumerate(layers):
        projected = layer.encoder_attn.project_source(states).movedim(2, 0)
        if index == 0:
            memory = projected.new_empty(len(layers), *projected.shape)
        memory[index] = projected
    return memory


def _by_layer(keys_values: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(L, 2, B, S, h, d) -> keys and values of each layer, (B, h, S, d)."""
    return list(zip(*(part.transpose(2, 3).unbind(0) for part in keys_values.unbind(1)), strict=True))
