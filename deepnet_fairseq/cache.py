"""What a decoder remembers between steps of incremental decoding: keys and values of every layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

KeysValues = tuple[Tensor, Tensor]  # each (B, h, S, d)


class LayerCache:
    """Keys and values of one decoder layer: of the target prefix, which grows, and of the memory, made once."""

    def __init__(self):
        self.prefix: KeysValues | None = None
        self.memory: KeysValues | None = None

    def append(self, keys: Tensor, values: Tensor) -> KeysValues:
        """Adds the current step's keys and values and returns those of the whole prefix."""
        if self.prefix is not None:
            keys = torch.cat([self.prefix[0], keys], dim=2)
            values = torch.cat([self.prefix[1], values], dim=2)
        self.prefix = (keys, values)
        return self.prefix

    def remember(self, project: Callable[[], KeysValues]) -> KeysValues:
        """Keys and values of the memory, projected at the first step only."""
        if self.memory is None:
            self.memory = project()
        return self.memory

    def reorder(self, new_order: Tensor) -> None:
        """Row i becomes the old row new_order[i]; new_order (B',) may drop or repeat rows."""
        if self.prefix is not None:
            self.prefix = tuple(t.index_select(0, new_order) for t in self.prefix)
        if self.memory is not None:
            self.memory = tuple(t.index_select(0, new_order) for t in self.memory)


class DecoderCache:
    """One LayerCache a layer, kept inside fairseq's incremental_state so that beam search carries it along."""

    KEY = "deepnet.cache"

    def __init__(self, num_layers: int):
        self.layers = [LayerCache() for _ in range(num_layers)]

    @classmethod
    def of(cls, incremental_state: dict | None, num_layers: int) -> DecoderCache | None:
        """The cache in `incremental_state`, made if this is the first step; None outside incremental decoding."""
        if incremental_state is None:
            return None
        if cls.KEY not in incremental_state:
            incremental_state[cls.KEY] = cls(num_layers)
        return incremental_state[cls.KEY]

    @classmethod
    def reorder(cls, incremental_state: dict, new_order: Tensor) -> None:
        """One pass over the layers; fairseq's own search for modules with a state is a walk over the whole model."""
        if cls.KEY in incremental_state:
            for layer in incremental_state[cls.KEY].layers:
                layer.reorder(new_order)
