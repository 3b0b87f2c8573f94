"""The keys and values that a decoder keeps between the steps of beam search, and the encoder output it reads.

B sentences, k beams a sentence, S source tokens, h heads of d features, C width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .modules import to_add

SENTENCES = "deepnet_sentences"  # key of [Sentences] in the dictionary that an encoder returns
STEPS = 8  # minimum number of further steps for which a full cache makes room
SHARE = 0.75  # share of a cache's sentences that must be alive; below it, finished ones are dropped


class Sentences(NamedTuple):
    """Sentences of an encoder's output, each once, however often beam search has repeated them.

    states (S, B, C); padding (B, S), True at padding; rows (R,): which sentence each row of the decoder's batch reads,
    None where it reads its own.
    """

    states: Tensor
    padding: Tensor
    rows: Tensor | None = None


@dataclass(frozen=True)
class EncoderOutput:
    """Output of the encoder in the form that cross-attention reads.

    states (B, S, C); mask (B, 1, 1, S), 0 at source tokens and the lowest number at padding, None if all are tokens;
    beams: rows of the decoder's batch that read one sentence.
    """

    states: Tensor
    mask: Tensor | None
    beams: int = 1

    @classmethod
    def by_row(cls, encoder_out: dict) -> EncoderOutput:
        """Read the dictionary of Encoder.forward, or of another encoder, with a sentence for each row of the batch."""
        padding = encoder_out["encoder_padding_mask"]
        return cls._of(encoder_out["encoder_out"][0], padding[0] if padding else None)

    @classmethod
    def by_sentence(cls, encoder_out: dict) -> EncoderOutput:
        """Read the dictionary with each sentence once, where the decoder's rows are k beams of each, in order."""
        (sentences,) = encoder_out.get(SENTENCES, [None])
        if sentences is None or sentences.rows is None:
            return cls.by_row(encoder_out)
        beams, rest = divmod(len(sentences.rows), len(sentences.padding))
        each = torch.arange(len(sentences.padding), device=sentences.rows.device).repeat_interleave(beams)
        if rest or not torch.equal(sentences.rows, each):
            return cls.by_row(encoder_out)
        return replace(cls._of(sentences.states, sentences.padding), beams=beams)

    @classmethod
    def _of(cls, states: Tensor, padding: Tensor | None) -> EncoderOutput:
        """Make an EncoderOutput of states (S, B, C) and padding (B, S), None without padding."""
        states = states.transpose(0, 1)
        return cls(states, None if padding is None else to_add(~padding[:, None, None], states.dtype))


class DecoderCache:
    """Keys and values of all attentions of a decoder.

    A step of beam search calls the layers with x (B, k, C): the beams of a sentence stand where training has positions.
    All beams of a sentence share its keys and values, and `past` says which of them a beam may look at, so that a beam
    that continues another one's prefix copies nothing. For three sentences a, b and c with two beams, after two steps:

        keys of a layer   a: [a1 a1' a2 a2']    b: [b1 b1' b2 b2']    c: [c1 c1' c2 c2']
        past of a         first beam  [1 0 1 0]   its own two tokens
                          second beam [1 0 0 1]   it continues the first beam's first token

    Where b ends, nothing moves: the batch is then a and c, which lie at places 0 and 2, and the row of b is computed in
    vain, until fewer than SHARE of the sentences are alive or the room is used up. Then one copy keeps those that are
    alive, and the parts of their prefixes that a beam still reads.

    prefixes: attention -> keys and values of the target, (P, capacity, h, d) for P sentences, of which `used` are
    filled, k a step; sources: attention -> those of the source, (P, S, h, d); past (B, k, used), bool; places (B,):
    where the batch's sentences lie, None where they lie in order. length: steps so far.
    """

    def __init__(self, memory: EncoderOutput | None, rows: int):
        """Make an empty cache; memory: the input of cross-attention, if any; rows: of the decoder's batch, B k."""
        self.memory = memory
        self.beams = memory.beams if memory else 1
        self.length = 0
        self.used = 0
        self.capacity = 0
        self.sentences = rows // self.beams
        self.prefixes: dict[nn.Module, list[Tensor]] = {}
        self.sources: dict[nn.Module, tuple[Tensor, ...]] = {}
        self.past: Tensor | None = None
        self.places: Tensor | None = None
        self._sentence_at: Tensor | None = None  # inverse of places, (P,); arbitrary where a sentence has ended

    def advance(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Begin a step: map newest tokens x (B k, 1, C) to x (P, k, C) and mask (P, 1, k, used), None for one beam."""
        batch_sentences = x.size(0) // self.beams
        itself = torch.eye(self.beams, dtype=torch.bool, device=x.device).expand(batch_sentences, -1, -1)
        if self.past is None:
            self.past = itself[..., :0]
        if self.used + self.beams > self.capacity:
            self._compact(self.places)

        self.past = torch.cat([self.past, itself], 2)
        self.used += self.beams
        self.length += 1

        mask = None
        if self.beams > 1:
            mask = to_add(self._by_place(self.past)[:, None], x.dtype)
        return self._by_place(x.view(-1, self.beams, x.size(-1))), mask

    def of_batch(self, x: Tensor) -> Tensor:
        """Return x (P, k, ..) of this step as rows of the batch, (B k, 1, ..)."""
        if self.places is not None:
            x = x.index_select(0, self.places)
        return x.flatten(0, 1).unsqueeze(1)

    def extend(self, attention: nn.Module, keys: Tensor, values: Tensor) -> list[Tensor]:
        """Add this step's keys and values, (P, k, h, d) each, and return those of the whole prefix, (P, used, h, d)."""
        newest = (keys, values)
        before = self.used - self.beams
        prefix = self.prefixes.get(attention)
        if not prefix:
            prefix = [new.new_empty(new.size(0), 0, *new.shape[2:]) for new in newest]

        if torch.is_grad_enabled():  # autograd may read the old tensors later, so they must not be overwritten
            prefix = [torch.cat([old[:, :before], new], 1) for old, new in zip(prefix, newest, strict=True)]
        else:
            if prefix[0].size(1) < self.capacity:
                prefix = [F.pad(old, (0, 0, 0, 0, 0, self.capacity - old.size(1))) for old in prefix]
            for old, new in zip(prefix, newest, strict=True):
                old[:, before : self.used] = new

        self.prefixes[attention] = prefix
        return [tensor[:, : self.used] for tensor in prefix]

    def of_source(self, attention: nn.Module, project: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Return keys and values of the source, (P, S, h, d) each; `project` computes them at the first step."""
        if attention not in self.sources:
            self.sources[attention] = project()
        return self.sources[attention]

    def reorder(self, new_order: Tensor) -> None:
        """Let row i continue row new_order[i] of the last step; new_order (rows,) may drop or repeat rows.

        Raises a ValueError where beams share a source and the rows of one sentence would come from several.
        """
        if self.past is None:
            return
        order = new_order.cpu()  # the only host-device synchronisation of a step
        if len(order) % self.beams or (order.view(-1, self.beams) // self.beams).diff(dim=1).any():
            raise ValueError("hypotheses of several sentences may not change places")

        sentences = order[:: self.beams] // self.beams
        before = len(self.past)
        self.past = self.past.flatten(0, 1).index_select(0, new_order).unflatten(0, (-1, self.beams))
        if torch.equal(sentences, torch.arange(before)):
            return

        # sentences have ended, or changed places
        sentences = sentences.to(new_order.device)
        places = sentences if self.places is None else self.places[sentences]
        few_are_left = len(places) < SHARE * self.sentences
        some_are_repeated = len(places.unique()) < len(places)
        if few_are_left or some_are_repeated:
            self._compact(places)
        else:
            self.places = places
            self._sentence_at = places.new_zeros(self.sentences)
            self._sentence_at[places] = torch.arange(len(places), device=places.device)

    def _by_place(self, x: Tensor) -> Tensor:
        """Return x (B, ..) of the batch's sentences in the order of the cache, (P, ..)."""
        return x if self._sentence_at is None else x.index_select(0, self._sentence_at)

    def _compact(self, places: Tensor | None) -> None:
        """Drop finished sentences and the tokens that no beam reads any more, and double the capacity.

        places: where the sentences lie that stay, None if all do.
        """
        assert self.past is not None
        needed = self.past.any(1)  # (B, used), True where a beam reads the token
        kept = int(needed.sum(1).max()) if self.used else 0
        self.used = kept
        self.capacity = kept + max(kept, STEPS * self.beams)

        # the needed tokens of each sentence in front, in their order; where a sentence needs fewer, others follow
        slots = needed.view(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :kept]
        self.past = self.past.gather(2, slots[:, None].expand(-1, self.beams, -1))
        for attention, prefix in self.prefixes.items():
            sentences = torch.arange(len(slots), device=slots.device) if places is None else places
            rows = sentences * prefix[0].size(1)
            index = rows[:, None] + F.pad(slots, (0, self.capacity - kept))  # unused room holds arbitrary numbers
            taken = [tensor.flatten(0, 1).index_select(0, index.flatten()) for tensor in prefix]
            self.prefixes[attention] = [tensor.unflatten(0, index.shape) for tensor in taken]

        if places is not None:
            self._drop_sources(places)
        self.sentences = len(slots)
        self.places = None
        self._sentence_at = None

    def _drop_sources(self, places: Tensor) -> None:
        """Keep what cross-attention reads of the sentences at `places` alone."""
        for attention, source in self.sources.items():
            self.sources[attention] = tuple(tensor.index_select(0, places) for tensor in source)
        if self.memory is None:
            return
        mask = self.memory.mask
        if mask is not None:
            mask = to_add(mask.index_select(0, places) == 0, mask.dtype)
        states = self.memory.states.index_select(0, places)
        self.memory = replace(self.memory, states=states, mask=mask)
