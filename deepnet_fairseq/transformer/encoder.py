"""The encoder: fairseq's contract outside, own layers inside."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from ..methods import Method
from .layer import EncoderLayer
from .products import to_add
from .shape import StackShape
from .stack import Stack


class Encoder(Stack, FairseqEncoder):
    """N EncoderLayers over source tokens; cfg: a filled model config. B sentences, S tokens, C width."""

    def __init__(self, cfg: Any, method: Method, dictionary: Dictionary, embed_tokens: nn.Embedding):
        FairseqEncoder.__init__(self, dictionary)
        self.build(cfg, StackShape.from_config(cfg, "encoder"), method, embed_tokens, EncoderLayer)

    def forward(self, src_tokens: Tensor, src_lengths: Tensor | None = None, return_all_hiddens: bool = False) -> dict:
        """src_tokens (B, S), padded on either side -> fairseq's dictionary of lists.

        encoder_out [(S, B, C)], encoder_padding_mask [(B, S)], encoder_embedding [(B, S, C)],
        encoder_states [(S, B, C) before and after every layer] if return_all_hiddens, src_lengths [(B, 1)].
        """
        padding = src_tokens.eq(self.padding_idx)
        x, embedding = self.embed(src_tokens, self.positions(src_tokens))
        mask = None
        if padding.any():  # the one synchronisation with the device in this pass
            mask = to_add(~padding[:, None, None], x.dtype)  # (B, 1, 1, S)
            x = x.masked_fill(padding.unsqueeze(-1), 0)
        states = list(self.states(x, mask)) if return_all_hiddens else []
        x = states[-1] if states else self.transform(x, mask)
        x = self.finish(x)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [embedding],
            "encoder_states": [state.transpose(0, 1) for state in states],
            "src_tokens": [],
            "src_lengths": [(~padding).sum(1, keepdim=True, dtype=torch.int32)],
        }

    def reorder_encoder_out(self, encoder_out: dict, new_order: Tensor) -> dict:
        """Row i of the decoder's batch reads what row new_order[i] read.

        The output stays one a sentence, whatever beam search asks for: `rows` says which sentence each row reads, and
        the decoder's cache holds what follows from it.
        """
        rows = encoder_out.get("rows")
        return encoder_out | {"rows": new_order if rows is None else rows.index_select(0, new_order)}
