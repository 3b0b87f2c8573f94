"""What a decoder remembers between steps of incremental decoding: keys and values of every layer.

The hypotheses of a sentence stand side by side where training has positions: L layers, B sentences, k beams, so that
queries are (B, h, k, d). A sentence's keys and values are held once for all its beams, and a beam that goes on from
another's prefix copies nothing: a mask, which all layers share, says whose past is whose.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .attention import Packed
from .memory import Memory

FIRST_CAPACITY = 16  # steps; doubled when they are used up


class DecoderCache:
    """Keys and values of all layers, kept inside fairseq's incremental_state so that beam search carries it along.

    memory (L, 2, B, h, S, d) of the source, made once; prefix (L, 2, B, h, capacity, d) of the target, of which the
    first `used` are filled, k a step; past (B, k, used): 0 where a beam looks back at its own prefix, -inf elsewhere.
    """

    KEY = "deepnet.cache"

    def __init__(self, layers: Sequence[nn.Module], source: Memory):
        self.beams, self.used = source.beams, 0
        keys_values = [torch.stack(layer.encoder_attn.keys_values(source.states)) for layer in layers]
        self.memory = torch.stack(keys_values)
        self.memory_mask = _to_add(source.mask, self.memory.dtype)
        self.prefix = torch.empty(*self.memory.shape[:4], 0, self.memory.size(-1)).to(self.memory)
        self.past = self.memory.new_zeros(self.memory.size(2), self.beams, 0)
        self.layers = [LayerCache(self, index, layer) for index, layer in enumerate(layers)]

    @classmethod
    def of(cls, incremental_state: dict, layers: Sequence[nn.Module], encoder_out: dict) -> DecoderCache:
        """The cache in `incremental_state`, made if this is the first step."""
        if cls.KEY not in incremental_state:
            incremental_state[cls.KEY] = cls(layers, Memory.of(encoder_out, rows=False))
        return incremental_state[cls.KEY]

    def advance(self) -> Tensor | None:
        """Room for a token of every hypothesis. Returns the mask of this step, (B, 1, k, used), None for one beam."""
        self.used += self.beams
        if self.used > self.prefix.size(4):
            more = max(FIRST_CAPACITY * self.beams, self.prefix.size(4))
            self.prefix = torch.cat(
                [self.prefix, self.prefix.new_empty(*self.prefix.shape[:4], more, self.prefix.size(5))], 4
            )
        if self.beams == 1:
            return None
        itself = torch.full((self.beams, self.beams), float("-inf")).fill_diagonal_(0).to(self.past)
        self.past = torch.cat([self.past, itself.expand(len(self.past), -1, -1)], -1)
        return self.past[:, None]

    def reorder(self, new_order: Tensor) -> None:
        """Row i becomes the old row new_order[i]; new_order (rows,) may drop or repeat rows."""
        order = new_order.cpu()  # the one synchronisation with the device
        if self.beams > 1 and not self._keeps_groups(order):
            self._separate()
        if self.beams > 1:
            self.past = self.past.flatten(0, 1).index_select(0, new_order).unflatten(0, (-1, self.beams))
        sentences = order[:: self.beams] // self.beams
        if not torch.equal(sentences, torch.arange(self.memory.size(2))):
            self._select(sentences.to(new_order.device))

    def _keeps_groups(self, order: Tensor) -> bool:
        """Does every group of beams come from one sentence, as in beam search?"""
        if len(order) % self.beams:
            return False
        sentences = order.view(-1, self.beams) // self.beams
        return bool((sentences == sentences[:, :1]).all())

    def _select(self, sentences: Tensor) -> None:
        self.memory, self.prefix = self.memory.index_select(2, sentences), self.prefix.index_select(2, sentences)
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask.index_select(0, sentences)
        if self.beams == 1:
            self.past = self.past.index_select(0, sentences)

    def _separate(self) -> None:
        """Every hypothesis becomes a sentence of its own, for callers that mix those of several."""
        steps, shape = self.used // self.beams, self.prefix.shape
        own = (self.past == 0).nonzero()[:, 2].view(1, 1, shape[2], 1, self.beams * steps, 1)
        prefix = self.prefix.gather(4, own.expand(*shape[:4], -1, shape[5])).unflatten(4, (self.beams, steps))
        self.prefix = prefix.transpose(3, 4).flatten(2, 3)  # (L, 2, B, h, k, steps, d) -> (L, 2, B k, h, steps, d)
        self.memory = self.memory.repeat_interleave(self.beams, 2)
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask.repeat_interleave(self.beams, 0)
        self.past = self.past.new_zeros(self.memory.size(2), 1, 0)
        self.beams, self.used = 1, steps


class LayerCache:
    """The part of one decoder layer, and its projections packed once for all steps."""

    def __init__(self, cache: DecoderCache, index: int, layer: nn.Module):
        attention = layer.self_attn
        self.cache, self.index = cache, index
        self.packed: Packed = attention.pack(attention.q_proj, attention.k_proj, attention.v_proj)

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keeps this step's keys and values, each (B, h, k, d); returns those of the whole prefix, (B, h, used, d)."""
        used, step = self.cache.used, keys.size(2)
        prefix = self.cache.prefix[self.index, :, :, :, :used]
        prefix[0, ..., used - step :, :] = keys
        prefix[1, ..., used - step :, :] = values
        return prefix[0], prefix[1]

    @property
    def memory_mask(self) -> Tensor | None:
        """What to add to scores over the source, (B, 1, 1, S)."""
        return self.cache.memory_mask

    def memory(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the source, each (B, h, S, d)."""
        return self.cache.memory[self.index].unbind(0)


def _to_add(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A bool mask as numbers to add to scores: attention would convert it in every layer."""
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))
