"""The keys and values that a decoder keeps between the steps of beam search, and the encoder output it reads.

In beam search a row of the decoder's batch is one beam: a hypothesis that is still growing. A sentence has k beams, in
k rows one after the other. Shapes: B sentences of the batch, k beams of a sentence, B k rows, S source tokens, h heads
of d features, C width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .modules import additive_mask

SENTENCES = "deepnet_sentences"  # key of [Sentences] in the dictionary that an encoder returns
STEPS = 8  # a full cache makes room for as many further tokens as it holds, and for this many further steps at least
SHARE = 0.75  # finished sentences are dropped when less than this share of the cache's entries is still searched


class Sentences(NamedTuple):
    """Output of an encoder with each sentence once, while fairseq's beam search repeats encoder_out for each beam.

    states (S, B, C); padding (B, S), True at padding; rows: for each row of the decoder's batch, the index from 0 of
    the sentence that it reads; None as long as no sentence was repeated, so that row i reads sentence i.
    """

    states: Tensor
    padding: Tensor
    rows: Tensor | None = None


@dataclass(frozen=True)
class EncoderOutput:
    """Output of the encoder in the form that cross-attention reads.

    states (B, S, C); mask (B, 1, 1, S), added to scores: 0 at source tokens and the lowest number at padding, None if
    the encoder gave no padding mask; beams: k, how many rows of the decoder's batch read each sentence.
    """

    states: Tensor
    mask: Tensor | None
    beams: int = 1

    @classmethod
    def by_row(cls, encoder_out: dict) -> EncoderOutput:
        """Read an encoder's dictionary, our Encoder's or fairseq's, with one sentence for each row (beams=1)."""
        padding = encoder_out["encoder_padding_mask"]
        return cls._of(encoder_out["encoder_out"][0], padding[0] if padding else None)

    @classmethod
    def by_sentence(cls, encoder_out: dict) -> EncoderOutput:
        """Read an encoder's dictionary with each sentence once, for the k rows of its beams.

        The dictionary is read by_row if it has no Sentences, if their `rows` are None, or if these are not k for the
        first sentence, then k for the second and so on.
        """
        (sentences,) = encoder_out.get(SENTENCES, [None])
        if sentences is None or sentences.rows is None:
            return cls.by_row(encoder_out)

        num_sentences = len(sentences.padding)
        beams, rest = divmod(len(sentences.rows), num_sentences)
        in_order = torch.arange(num_sentences, device=sentences.rows.device).repeat_interleave(beams)  # 0 0 1 1 2 2
        if rest or not torch.equal(sentences.rows, in_order):
            return cls.by_row(encoder_out)
        return replace(cls._of(sentences.states, sentences.padding), beams=beams)

    @classmethod
    def _of(cls, states: Tensor, padding: Tensor | None) -> EncoderOutput:
        """Make an EncoderOutput of states (S, B, C) and padding (B, S), True at padding; None without padding."""
        states = states.transpose(0, 1)
        mask = None
        if padding is not None:
            mask = additive_mask(~padding[:, None, None], states.dtype)
        return cls(states, mask)


class DecoderCache:
    """Keys and values of all attentions of a decoder.

    A step of beam search calls the layers with x (P, k, C): the beams of a sentence stand where training has positions.
    All beams of a sentence share its keys and values, and `visible` says which of them a beam may look at, so that a
    beam that continues another one's prefix copies nothing. For three sentences a, b and c with two beams, after two
    steps (a1: key of the first beam's first token, a1': of the second beam's):

        keys of a layer   a: [a1 a1' a2 a2']    b: [b1 b1' b2 b2']    c: [c1 c1' c2 c2']
        visible to a's    first beam  [1 0 1 0]   its own two tokens
                          second beam [1 0 0 1]   it continues the first beam's first token

    The cache has P entries, one for each sentence; a cell of an entry holds the keys or values of one token. When a
    sentence ends, nothing moves: if b does, the batch is a and c (B = 2), which stay in entries 0 and 2 (P = 3), and
    the layers compute entry 1 in vain. Only when fewer than SHARE of the entries are in use, when all cells are taken,
    or when a sentence is repeated, one copy keeps the entries in use, and of their cells those that a beam still reads.

    beams: k; num_entries: P; length: steps so far
    capacity, used: cells of each entry, and how many of them are filled, k more in each step
    prefixes: module of self-attention -> [keys, values], (P, capacity, h, d) each, or (P, used, h, d) with gradients
    sources: module of cross-attention -> (keys, values) of the source, (P, S, h, d) each
    memory: what cross-attention reads, one sentence for each entry; None in a decoder without it
    visible (B, k, used): True where a beam may look at a cell of its sentence; None before the first step
    entries (B,): the entry of each sentence of the batch, None where they are 0 .. B - 1
    """

    def __init__(self, memory: EncoderOutput | None, rows: int):
        """Make an empty cache.

        memory: the input of cross-attention, which also says how many beams a sentence has; None in a decoder without
        it, where each row counts as a sentence with one beam. rows: number of rows of the decoder's batch, B k.
        """
        self.memory = memory
        self.beams = memory.beams if memory else 1
        self.length = 0
        self.used = 0
        self.capacity = 0
        self.num_entries = rows // self.beams
        self.prefixes: dict[nn.Module, list[Tensor]] = {}
        self.sources: dict[nn.Module, tuple[Tensor, ...]] = {}
        self.visible: Tensor | None = None
        self.entries: Tensor | None = None
        # inverse of `entries`: the batch's sentence in each entry, (P,); 0 where a sentence has ended
        self._sentence_of_entry: Tensor | None = None

    def advance(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Begin a step with the newest token of each row, x (B k, 1, C).

        Returns x (P, k, C) as the layers read it, and the mask of self-attention (P, 1, k, used), added to scores; None
        with one beam, which may look at everything.
        """
        num_sentences = x.size(0) // self.beams  # B
        itself = torch.eye(self.beams, dtype=torch.bool, device=x.device).expand(num_sentences, -1, -1)  # (B, k, k)
        if self.visible is None:
            self.visible = itself[..., :0]  # no cells before the first step
        if self.used + self.beams > self.capacity:
            self._compact(self.entries)  # makes room

        self.visible = torch.cat([self.visible, itself], 2)  # of the k new tokens each beam sees its own
        self.used += self.beams
        self.length += 1

        mask = None
        if self.beams > 1:
            visible_by_entry = self._by_entry(self.visible)  # (P, k, used)
            mask = additive_mask(visible_by_entry[:, None], x.dtype)
        by_sentence = x.view(-1, self.beams, x.size(-1))  # (B, k, C)
        return self._by_entry(by_sentence), mask

    def rows_of_batch(self, x: Tensor) -> Tensor:
        """Turn x (P, k, ..), which the layers have computed in this step, into rows of the batch, (B k, 1, ..).

        Entries of sentences that have ended are left out.
        """
        if self.entries is not None:
            x = x.index_select(0, self.entries)
        return x.flatten(0, 1).unsqueeze(1)

    def extend(self, attention: nn.Module, keys: Tensor, values: Tensor) -> list[Tensor]:
        """Add this step's keys and values of a self-attention, (P, k, h, d) each.

        attention: the module, by which the cache keeps them apart from those of other layers. Returns [keys, values] of
        all steps so far, (P, used, h, d) each. `advance` must have begun the step.
        """
        newest = (keys, values)
        before = self.used - self.beams  # cells filled in earlier steps; `advance` has counted this step's already
        prefix = self.prefixes.get(attention)
        if not prefix:  # the first step: no cells
            prefix = [new.new_empty(new.size(0), 0, *new.shape[2:]) for new in newest]

        if torch.is_grad_enabled():  # autograd may read the old tensors later, so they must not be overwritten
            prefix = [torch.cat([old[:, :before], new], 1) for old, new in zip(prefix, newest, strict=True)]
        else:
            missing_cells = self.capacity - prefix[0].size(1)
            if missing_cells > 0:
                prefix = [F.pad(old, (0, 0, 0, 0, 0, missing_cells)) for old in prefix]  # at the end of dimension 1
            for old, new in zip(prefix, newest, strict=True):
                old[:, before : self.used] = new

        self.prefixes[attention] = prefix
        return [tensor[:, : self.used] for tensor in prefix]

    def of_source(self, attention: nn.Module, project: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return a cross-attention's keys and values of the source, (P, S, h, d) each.

        attention: the module; project: computes them, and is called in the first step only.
        """
        if attention not in self.sources:
            self.sources[attention] = project()
        return self.sources[attention]

    def reorder(self, new_order: Tensor) -> None:
        """Let row i continue row new_order[i] of the last step; new_order (rows,) may drop or repeat rows.

        Raises a ValueError if the k rows of a sentence would not all continue rows of one sentence.
        """
        if self.visible is None:  # before the first step there is nothing to reorder
            return
        # a host-device synchronisation, the only one of a step unless sentences end or the cache is full
        order = new_order.cpu()
        # the sentences that the rows of each sentence come from must be one
        if len(order) % self.beams or (order.view(-1, self.beams) // self.beams).diff(dim=1).any():
            raise ValueError("hypotheses of several sentences may not change places")

        sentences = order[:: self.beams] // self.beams  # (B,): index in the last step of each sentence of the batch
        before = len(self.visible)  # B of the last step
        visible_to_rows = self.visible.flatten(0, 1).index_select(0, new_order)
        self.visible = visible_to_rows.unflatten(0, (-1, self.beams))
        if torch.equal(sentences, torch.arange(before)):  # only beams of the same sentence have changed places
            return

        # sentences have ended, or changed places; `entries` is the entry of each that the batch has now
        sentences = sentences.to(new_order.device)
        entries = sentences if self.entries is None else self.entries[sentences]
        few_are_left = len(entries) < SHARE * self.num_entries
        some_are_repeated = len(entries.unique()) < len(entries)
        if few_are_left or some_are_repeated:  # a sentence that is repeated needs an entry for each copy
            self._compact(entries)
        else:
            self.entries = entries
            self._sentence_of_entry = entries.new_zeros(self.num_entries)
            self._sentence_of_entry[entries] = torch.arange(len(entries), device=entries.device)

    def _by_entry(self, x: Tensor) -> Tensor:
        """Return x (B, ..), one for each sentence of the batch, as (P, ..), one for each entry.

        An entry whose sentence has ended gets what the first sentence of the batch has; what the layers compute from
        that is not read.
        """
        return x if self._sentence_of_entry is None else x.index_select(0, self._sentence_of_entry)

    def _compact(self, entries: Tensor | None) -> None:
        """Keep the entries in use, and of their cells those that a beam still reads; make room for further steps.

        entries (B,): the entry of each sentence of the batch, None where they are 0 .. B - 1. Afterwards sentence i is
        in entry i. Each entry keeps as many cells as the one that needs most, and has free cells for as many further
        tokens, at least for STEPS steps.
        """
        assert self.visible is not None
        needed = self.visible.any(1)  # (B, used), True where a beam reads the cell
        kept = int(needed.sum(1).max()) if self.used else 0
        self.used = kept
        self.capacity = kept + max(kept, STEPS * self.beams)

        # (B, kept): indices of the cells to keep, those that a sentence needs in front, in their order; behind them
        # others, which no beam reads, where it needs fewer than `kept`
        needed_first = needed.view(torch.uint8).argsort(dim=1, descending=True, stable=True)
        cells = needed_first[:, :kept]
        self.visible = self.visible.gather(2, cells[:, None].expand(-1, self.beams, -1))

        # copy these cells, and any numbers into the free ones
        cells_and_free = F.pad(cells, (0, self.capacity - kept))  # (B, capacity)
        for attention, prefix in self.prefixes.items():
            old_entries = torch.arange(len(cells), device=cells.device) if entries is None else entries
            first_cells = old_entries * prefix[0].size(1)  # index of each entry's first cell among the cells of all
            index = first_cells[:, None] + cells_and_free
            copies = [tensor.flatten(0, 1).index_select(0, index.flatten()) for tensor in prefix]
            self.prefixes[attention] = [tensor.unflatten(0, index.shape) for tensor in copies]

        if entries is not None:
            self._keep_sources(entries)
        self.num_entries = len(cells)
        self.entries = None
        self._sentence_of_entry = None

    def _keep_sources(self, entries: Tensor) -> None:
        """Keep only these entries (B,), in this order, of the encoder's output and of its keys and values."""
        for attention, source in self.sources.items():
            self.sources[attention] = tuple(tensor.index_select(0, entries) for tensor in source)
        if self.memory is None:
            return
        mask = self.memory.mask
        if mask is not None:  # made anew, because index_select would not keep its rows a multiple of 8 numbers apart
            mask = additive_mask(mask.index_select(0, entries) == 0, mask.dtype)
        states = self.memory.states.index_select(0, entries)
        self.memory = replace(self.memory, states=states, mask=mask)
