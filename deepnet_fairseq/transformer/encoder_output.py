"""The encoder's output as the decoder reads it, of sentences even where beam search asks for rows of hypotheses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .products import to_add


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
        padding = encoder_out["encoder_padding_mask"]
        padding = padding[0] if len(padding) and padding[0].any() else None
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
