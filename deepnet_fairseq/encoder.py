"""The encoder: fairseq's contract outside, own layers inside."""

from __future__ import annotations

import torch
from fairseq.models import FairseqEncoder
from torch import Tensor

from .layer import EncoderLayer
from .methods import Method
from .shape import StackShape
from .stack import Stack

# the batch dimension of each entry of an encoder's output
BATCH_DIM = {"encoder_out": 1, "encoder_padding_mask": 0, "encoder_embedding": 0, "encoder_states": 1, "src_lengths": 0}


class Encoder(Stack, FairseqEncoder):
    """N EncoderLayers over source tokens."""

    def __init__(self, cfg, method: Method, dictionary, embed_tokens):
        FairseqEncoder.__init__(self, dictionary)
        self.build(cfg, StackShape.from_config(cfg, "encoder"), method, embed_tokens, EncoderLayer)

    def forward(self, src_tokens: Tensor, src_lengths=None, return_all_hiddens: bool = False) -> dict:
        """src_tokens (B, S), padded on either side -> fairseq's dictionary of lists.

        encoder_out [(S, B, C)], encoder_padding_mask [(B, S)], encoder_embedding [(B, S, C)],
        encoder_states [(S, B, C) before and after every layer] if return_all_hiddens, src_lengths [(B, 1)].
        """
        padding = src_tokens.eq(self.padding_idx)
        x, embedding = self.embed(src_tokens, self.positions(src_tokens))
        mask = None
        if padding.any():  # the one synchronisation with the device in this pass
            mask = ~padding[:, None, None]  # (B, 1, 1, S)
            x = x.masked_fill(padding.unsqueeze(-1), 0)
        states, history = [x], []
        x = self.mix(x, history)
        for layer in self.layers:
            x = self.mix(self.run(layer, x, mask), history)
            if return_all_hiddens:
                states.append(x)
        x = self.finish(x)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [embedding],
            "encoder_states": [state.transpose(0, 1) for state in states] if return_all_hiddens else [],
            "src_tokens": [],
            "src_lengths": [(~padding).sum(1, keepdim=True, dtype=torch.int32)],
        }

    def reorder_encoder_out(self, encoder_out: dict, new_order: Tensor) -> dict:
        """Row i of the batch becomes the old row new_order[i]."""
        return encoder_out | {
            key: [tensor.index_select(dim, new_order) for tensor in encoder_out[key]] for key, dim in BATCH_DIM.items()
        }
