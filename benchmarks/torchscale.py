"""torchscale's EncoderDecoder as a fairseq model, the way of its own examples/fairseq, for stock fairseq.

It does the same work as fairseq's `transformer`: with the same weights it gives the same scores. Positions are
fairseq's, as in torchscale's example; layers, attention, masks and incremental decoding are torchscale's. torchscale
imports a function of timm, which needs torchvision, for stochastic depth, and fairscale's wrapper for recomputation.
Both are off here, and stand-ins take their place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from fairseq import models
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from fairseq.models.transformer import Embedding, TransformerModel, base_architecture
from fairseq.modules import PositionalEmbedding
from torch import nn

from .timing import TORCHSCALE_ARCH


@contextmanager
def stand_ins() -> Iterator[None]:
    """Provide `timm.models.layers` and `fairscale.nn` in this block; afterwards restore what was there before."""
    modules = _package("timm.models.layers", drop_path=_off)
    modules |= _package("fairscale.nn", checkpoint_wrapper=_off, wrap=_off)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        for name, module in before.items():
            if module:
                sys.modules[name] = module


def _package(name: str, **content) -> dict[str, ModuleType]:
    """Return a new module and the packages above it, by their full names. content: the module's attributes."""
    parts = name.split(".")
    modules = {}
    for depth in range(1, len(parts) + 1):
        full_name = ".".join(parts[:depth])
        modules[full_name] = ModuleType(full_name)
    vars(modules[name]).update(content)
    return modules


def _off(*_):
    """Stand in for a function of timm or fairscale that nothing should call."""
    raise AssertionError("stochastic depth, recomputation and sharding are off")


with stand_ins():
    from torchscale.architecture.config import EncoderDecoderConfig
    from torchscale.architecture.decoder import Decoder
    from torchscale.architecture.encoder import Encoder


@models.register_model(TORCHSCALE_ARCH)
class TorchscaleModel(FairseqEncoderDecoderModel):
    """Post-LN Transformer with one embedding matrix, by the flags of fairseq's `transformer`.

    torchscale's EncoderDecoderConfig has options of the same names and ignores the others.
    """

    @classmethod
    def add_args(cls, parser) -> None:
        TransformerModel.add_args(parser)

    @classmethod
    def build_model(cls, args, task) -> TorchscaleModel:
        dictionary = task.target_dictionary
        width = args.encoder_embed_dim
        tokens = Embedding(len(dictionary), width, dictionary.pad())
        logits = nn.Linear(width, len(dictionary), bias=False)
        logits.weight = tokens.weight
        most_source, most_target = task.max_positions()
        source_positions = PositionalEmbedding(most_source, width, dictionary.pad())
        target_positions = PositionalEmbedding(most_target, width, dictionary.pad())

        config = EncoderDecoderConfig(subln=False, **vars(args))
        shared = {"is_encoder_decoder": True, "dictionary": dictionary}
        encoder = TorchscaleEncoder(config, tokens, source_positions, **shared)
        decoder = TorchscaleDecoder(config, tokens, target_positions, logits, **shared)
        return cls(encoder, decoder)

    def forward(self, src_tokens, src_lengths, prev_output_tokens, **kwargs):
        return self.decoder(prev_output_tokens, encoder_out=self.encoder(src_tokens))


models.register_model_architecture(TORCHSCALE_ARCH, TORCHSCALE_ARCH)(base_architecture)


class TorchscaleEncoder(Encoder, FairseqEncoder):
    """torchscale's encoder behind fairseq's interface: makes the padding mask, and reorders beams."""

    def forward(self, src_tokens, src_lengths=None, **kwargs):
        return super().forward(src_tokens, src_tokens.eq(self.dictionary.pad()), **kwargs)

    def reorder_encoder_out(self, encoder_out, new_order):
        moved = ("encoder_out", "encoder_padding_mask")
        return {name: encoder_out[name].index_select(0, new_order) for name in moved}

    def max_positions(self) -> int:
        return self.embed_positions.max_positions


class TorchscaleDecoder(Decoder, FairseqIncrementalDecoder):
    """torchscale's decoder, whose incremental state holds tensors by layer and name."""

    def forward(self, prev_output_tokens, **kwargs):
        return super().forward(prev_output_tokens, prev_output_tokens.eq(self.dictionary.pad()), **kwargs)

    def reorder_incremental_state_scripting(self, incremental_state, new_order) -> None:
        for state in incremental_state.values():
            for name, tensor in state.items():
                state[name] = tensor.index_select(0, new_order)

    def max_positions(self) -> int:
        return self.embed_positions.max_positions
