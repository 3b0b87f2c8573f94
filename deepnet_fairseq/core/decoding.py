"""Decoding a token at a time: what a decoder remembers between steps, and a step of its layers.

The hypotheses of a sentence stand side by side where training has positions: L layers, B sentences, k beams, so that
queries are (B, h, k, d). A sentence's keys and values are held once for all its beams, and a beam that goes on from
another's prefix copies nothing: a mask, which all layers share, says whose past is whose. Most beams die young, so what
no beam looks back at any more is dropped when room runs out. Where a sentence ends, the last one of the batch
takes its place: keys and values of the others, large beside what a step computes, stay where they are, and the step's
rows are put in their order.

In a step a layer's Python would cost as much as its arithmetic. It is the same equation as layer.py's, with everything
resolved that stays the same from step to step: weights that share an input are packed, modules that nobody watches are
called by their forward, those that do nothing now are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import attention_weights, to_add
from .modules import Dropout, pack, watched
from .slots import NORM_NAMES

ROOM = 8  # steps to make room for at least, before what is no longer needed is dropped


@dataclass(frozen=True)
class EncoderOutput:
    """states (B, S, C); mask (B, 1, 1, S), 0 at source tokens, else the lowest number; one for `beams` rows."""

    states: Tensor
    mask: Tensor | None
    beams: int = 1

    @classmethod
    def of(cls, encoder_out: dict | None, rows: bool = True) -> EncoderOutput:
        """From what Encoder.forward returns. rows: one sentence a row of the decoder, not one for a group of beams."""
        assert encoder_out is not None  # a decoder that attends is given one
        states = encoder_out["encoder_out"][0].transpose(0, 1)  # (S, B, C) -> (B, S, C)
        places = encoder_out["encoder_padding_mask"]
        padded = len(places) > 0 and encoder_out.get("padded")
        if padded is None:  # another's encoder does not say
            padded = bool(places[0].any())
        padding = places[0] if padded else None
        order, beams = encoder_out.get("rows"), 1
        if order is not None:
            beams = 1 if rows else _group_size(order, states.size(0))
            if beams == 1:
                states = states.index_select(0, order)
                padding = None if padding is None else padding.index_select(0, order)
        mask = None if padding is None else to_add(~padding[:, None, None], states.dtype)
        return cls(states, mask, beams)


def _group_size(rows: Tensor, sentences: int) -> int:
    """k if rows (R,) are 0, ..., sentences - 1, each k times in a row; else 1."""
    beams = len(rows) // sentences
    grouped = torch.arange(sentences, device=rows.device).repeat_interleave(beams)
    return beams if len(grouped) == len(rows) and torch.equal(rows, grouped) else 1


class DecoderCache:
    """Keys and values of all layers.

    memory (L, 2, B, S, h, d) of the source, made once, None in a language model; prefix (L, 2, B, capacity, h, d) of
    the target, of which the first `used` are filled, k a step; past (B, k, capacity), where there are several beams: 0
    where one looks back at its own prefix, -inf elsewhere. The sentences of memory and prefix have an order of their
    own as soon as one has ended: sentence i of the batch, and of `past`, lies at places[i], (B,) on the host; None as
    long as they lie in the batch's order.
    """

    def __init__(self, layers: Sequence[nn.Module], source: EncoderOutput | None, first: Tensor):
        """source: what cross-attention reads, if there is any; first (rows, 1, C): the first step's input."""
        self.beams, self.used = source.beams if source else 1, 0
        self.memory = _project(layers, source.states) if source else None
        self.memory_mask = source.mask if source else None
        heads = layers[0].self_attn.num_heads
        kept = first if self.memory is None else self.memory
        sentences = first.size(0) // self.beams
        self.prefix = kept.new_empty(len(layers), 2, sentences, 0, heads, first.size(-1) // heads)
        self.past = kept.new_zeros(sentences, self.beams, 0)
        self.places: Tensor | None = None
        self._sentences: Tensor | None = None  # of the batch, in the cache's order, (B,)
        self._order: Tensor | None = None  # the same of rows, (B k,); and the way back
        self._back: Tensor | None = None
        self._memory: Sequence[tuple[Tensor, Tensor]] = ()  # views of each layer's part
        self._prefix: Sequence[tuple[Tensor, Tensor]] = ()
        self._newest: Sequence[Tensor] = ()

    def advance(self) -> Tensor | None:
        """Room for a token of every hypothesis. Returns the mask of this step, (B, 1, k, used), None for one beam."""
        if self.used + self.beams > self.prefix.size(3):
            self._make_room()
        self.used += self.beams
        filled = self.prefix[:, :, :, : self.used]
        self._prefix = _by_layer(filled)
        self._newest = filled[:, :, :, -self.beams :].permute(0, 2, 3, 1, 4, 5).unbind(0)  # (B, k, 2, h, d) each
        if self.memory is not None:
            self._memory = self._memory or _by_layer(self.memory)
        if self.beams == 1:
            return None
        newest = self.past[..., self.used - self.beams : self.used]
        newest.fill_(float("-inf")).diagonal(dim1=1, dim2=2).zero_()  # a beam looks at itself
        return self._by_place(self.past)[:, None, :, : self.used]

    def arranged(self, x: Tensor) -> Tensor:
        """Rows of the batch, x (B k, ..), in the order in which the cache holds their sentences."""
        return x if self._order is None else x.index_select(0, self._order)

    def restored(self, x: Tensor) -> Tensor:
        """The way back, to the batch's order."""
        return x if self._back is None else x.index_select(0, self._back)

    def append(self, layer: int, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Packed queries, keys and values of this step (rows, 3 C), of which it keeps keys and values.

        Returns queries (B, h, k, d), and keys and values of the whole prefix, (B, h, used, d).
        """
        newest = self._newest[layer]
        projected = projected.view(newest.size(0), self.beams, 3, *newest.shape[3:])
        newest.copy_(projected.narrow(2, 1, 2))
        return projected.select(2, 0).transpose(1, 2), *self._prefix[layer]

    def source(self, layer: int, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (rows, C) -> (B, h, k, d), and keys and values of the source, (B, h, S, d)."""
        keys, values = self._memory[layer]
        return projected.view(keys.size(0), self.beams, *keys.shape[1::2]).transpose(1, 2), keys, values

    def reorder(self, new_order: Tensor) -> None:
        """Row i becomes the old row new_order[i]; new_order (rows,) may drop or repeat rows.

        ValueError where beams share a source and the rows of a group come from several sentences.
        """
        order = new_order.cpu()  # the one synchronisation with the device
        if self.beams > 1:
            if len(order) % self.beams or (order.view(-1, self.beams) // self.beams).diff(dim=1).any():
                raise ValueError("hypotheses of several sentences may not change places")
            self.past = self.past.flatten(0, 1).index_select(0, new_order).unflatten(0, (-1, self.beams))
        sentences = order[:: self.beams] // self.beams
        if not torch.equal(sentences, torch.arange(self.prefix.size(2))):
            places = sentences if self.places is None else self.places[sentences]
            if len(places.unique()) == len(places):
                self._close_ranks(places)
            else:  # some go on twice
                self._select(places.to(new_order.device))
                self._put_at(torch.arange(len(places)), new_order.device)
            self._memory = ()

    def _select(self, places: Tensor) -> None:
        self.prefix = self.prefix.index_select(2, places)
        if self.memory is not None:
            self.memory = self.memory.index_select(2, places)
        if self.memory_mask is not None:
            self.memory_mask = to_add(self.memory_mask.index_select(0, places) == 0, self.memory_mask.dtype)

    def _close_ranks(self, places: Tensor) -> None:
        """The sentences at `places` stay, and those of them that lie behind the first B move into the gaps there."""
        places, count = places.clone(), len(places)
        held = [self.prefix[:, :, :, : self.used].movedim(2, 0)]  # sentences in front
        if self.memory is not None:
            held.append(self.memory.movedim(2, 0))
        if self.memory_mask is not None:
            held.append(self.memory_mask)
        gaps = sorted(set(range(count)) - set(places.tolist()))
        for gap, sentence in zip(gaps, (places >= count).nonzero().flatten().tolist(), strict=True):
            for each in held:
                each[gap].copy_(each[int(places[sentence])])
            places[sentence] = gap
        self.prefix = self.prefix[:, :, :count]
        self.memory = None if self.memory is None else self.memory[:, :, :count]
        self.memory_mask = None if self.memory_mask is None else self.memory_mask[:count]
        self._put_at(places, self.prefix.device)

    def _put_at(self, places: Tensor, device: torch.device) -> None:
        """Notes where the sentences lie now."""
        if torch.equal(places, torch.arange(len(places))):
            self.places = self._sentences = self._order = self._back = None
            return
        self.places, beams = places, torch.arange(self.beams, device=device)
        self._sentences = places.argsort().to(device)
        self._order, self._back = (
            (sentences[:, None] * self.beams + beams).flatten() for sentences in (self._sentences, places.to(device))
        )

    def _by_place(self, x: Tensor) -> Tensor:
        """x (B, ..) of the batch's sentences in the cache's order."""
        return x if self._sentences is None else x.index_select(0, self._sentences)

    def _make_room(self) -> None:
        """Drops what no beam looks back at; as much room again as the rest takes."""
        needed = (self.past[..., : self.used] == 0).any(1)  # (B, used)
        kept = int(needed.sum(1).max()) if self.beams > 1 and self.used else self.used
        capacity = -(-(kept + max(kept, ROOM * self.beams)) // 8) * 8  # as attention.to_add's rows
        if kept == self.used:
            prefix = self.prefix.new_empty(*self.prefix.shape[:3], capacity, *self.prefix.shape[4:])
            prefix[:, :, :, :kept] = self.prefix[:, :, :, :kept]
            past = self.past.new_empty(*self.past.shape[:2], capacity)
            past[..., :kept] = self.past[..., :kept]
            self.prefix, self.past = prefix, past
        else:  # one copy: what stands in the new room is of no account
            slots = torch.argsort(needed.to(torch.uint8), dim=1, descending=True, stable=True)[:, :kept]
            slots = F.pad(slots, (0, capacity - kept))
            self.past = self.past.gather(2, slots[:, None].expand(-1, self.beams, -1))
            self.prefix = self._take(self._by_place(slots))
        self.used = kept

    def _take(self, slots: Tensor) -> Tensor:
        """Of each sentence's prefix the positions `slots` (B, n): (L, 2, B, n, h, d)."""
        first = torch.arange(len(slots), device=slots.device)[:, None] * self.prefix.size(3)
        return self.prefix.flatten(2, 3).index_select(2, (first + slots).flatten()).unflatten(2, slots.shape)


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


class LayerStep:
    """A decoder layer's step: the newest token of each hypothesis, x (rows, W) -> same; rows: B sentences x k beams."""

    def __init__(self, layer: nn.Module, index: int, cache: DecoderCache):
        self.index, self.cache = index, cache
        self.own, self.ffn = _Branch(layer, "self_attn"), _Branch(layer, "ffn")
        self.cross = _Branch(layer, "encoder_attn") if "encoder_attn" in layer.sites else None

    def __call__(self, x: Tensor, mask: Tensor | None, alignment: list | None = None) -> Tensor:
        """mask (B, 1, k, prefix) as the cache gives it; alignment takes the cross-attention (rows, 1, S), if
        asked, its rows in the batch's order."""
        cache, entry = self.cache, x
        q, keys, values = cache.append(self.index, self.own.enter(x))
        x = self.own.leave(x, self.own.attend(q, keys, values, mask))
        if self.cross is not None:
            q, keys, values = cache.source(self.index, self.cross.enter(x))
            if alignment is not None:
                weights = attention_weights(q, keys, cache.memory_mask)
                alignment.append(cache.restored(weights.flatten(0, 1)).unsqueeze(1))
            x = self.cross.leave(x, self.cross.attend(q, keys, values, cache.memory_mask))
        inside = self.ffn.enter(x)
        return self.ffn.leave(x if self.ffn.bypass is None else self.ffn.bypass(x, entry), inside)


class _Branch:
    """A branch of a layer: the functions in front of its body and behind it, shortcut and last LayerNorm."""

    def __init__(self, layer: nn.Module, sublayer: str):
        slots = {name: called(module) for name, module in layer.slots(sublayer).items()}
        norm = called(getattr(layer, NORM_NAMES[sublayer], None))
        *first, last = layer.matrices(sublayer).values()
        packed = _projection(*(first[:1] if sublayer == "encoder_attn" else first))  # the source's are in the cache
        entrance = [norm if layer.norm_place[sublayer] == "pre" else None, slots.get("before"), packed]
        if sublayer == "ffn":
            entrance += [slots.get("hidden"), layer.activation_fn, called(layer.activation_dropout)]
        else:
            attention = getattr(layer, sublayer)
            if attention.heads is not None:
                entrance.append(partial(attention.by_head, roles="q" if sublayer == "encoder_attn" else "qkv"))
            dropout = attention.dropout
            self.dropout = dropout.p if dropout.drops else 0.0
        leaving = [slots.get("inner"), _projection(last), slots.get("outer"), called(layer.dropout)]
        self.entrance, self.leaving = ([f for f in functions if f is not None] for functions in (entrance, leaving))
        self.residual: Any = slots["residual"]  # every branch has one
        self.bypass = slots.get("bypass")
        self.norm = norm if layer.norm_place[sublayer] == "post" else None

    def enter(self, x: Tensor) -> Tensor:
        """Shortcut x (rows, W) -> packed projections for attention, or what fc2 reads but for the slot in between."""
        for function in self.entrance:
            x = function(x)
        return x

    def attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """q (B, h, k, d), keys and values (B, h, S, d) -> (rows, C)."""
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, dropout_p=self.dropout)
        return y.transpose(1, 2).reshape(q.size(0) * q.size(2), -1)

    def leave(self, x: Tensor, f: Tensor) -> Tensor:
        """Shortcut x (rows, W) and what the body gives -> output of the sublayer (rows, W)."""
        for function in self.leaving:
            f = function(f)
        x = self.residual(x, f)
        return x if self.norm is None else self.norm(x)


def called(module: nn.Module | None) -> Callable | None:
    """How to call a module without the cost of nn.Module's own call; None for one that does nothing here.

    One that hooks watch is called as ever.
    """
    if module is None or (isinstance(module, Dropout) and not module.drops):
        return None
    if watched(module):
        return module
    if type(module) is nn.LayerNorm:
        shape, weight, bias, eps = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
    return module.forward


def _projection(*linears: nn.Linear) -> Callable[[Tensor], Tensor]:
    """x (rows, in) -> the outputs side by side."""
    if watched(*linears):
        return lambda x: torch.cat([linear(x) for linear in linears], -1)
    weight, bias = pack(*linears) if len(linears) > 1 else (linears[0].weight, linears[0].bias)
    if not weight.is_cpu:
        return lambda x: F.linear(x, weight, bias)
    weight = weight.t().contiguous()  # a CPU multiplies few rows faster by it
    return partial(torch.mm, mat2=weight) if bias is None else lambda x: torch.addmm(bias, x, weight)
