"""torchscale's EncoderDecoder as a fairseq model, the way of its own examples/fairseq, for stock fairseq.

The model does the same work as fairseq's `transformer`: with the same weights it gives the same scores. Positions are
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
    """Let torchscale import `timm.models.layers` and `fairscale.nn` in a `with` block, installed or not.

    Afterwards sys.modules has under these names what it had before, so that other programs find the real ones.
    """
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
    """Return {full name: new module} for a module and the packages above it, as sys.modules has them.

    name: of the module, as "timm.models.layers"; content: its attributes.
    """
    parts = name.split(".")
    modules = {}
    for depth in range(1, len(parts) + 1):
        full_name = ".".join(parts[:depth])
        modules[full_name] = ModuleType(full_name)
    vars(modules[name]).update(content)
    return modules


def _off(*_):
    """Stand in for a function of timm or fairscale that torchscale imports, but calls only for what is off here."""
    raise AssertionError("stochastic depth, recomputation and sharding are off")


with stand_ins():
    from torchscale.architecture.config import EncoderDecoderConfig
    from torchscale.architecture.decoder import Decoder
    from torchscale.architecture.encoder import Encoder


@models.register_model(TORCHSCALE_ARCH)
class TorchscaleModel(FairseqEncoderDecoderModel):
    """torchscale's Post-LN Transformer by the flags of fairseq's `transformer`, with one matrix for all embeddings."""

    @classmethod
    def add_args(cls, parser) -> None:
        """Add the flags of fairseq's `transformer`."""
        TransformerModel.add_args(parser)

    @classmethod
    def build_model(cls, args, task) -> TorchscaleModel:
        """Build the model. args: values of the flags, of which torchscale's config takes those whose names it knows."""
        dictionary = task.target_dictionary
        width = args.encoder_embed_dim
        tokens = Embedding(len(dictionary), width, dictionary.pad())
        logits = nn.Linear(width, len(dictionary), bias=False)
        logits.weight = tokens.weight  # --share-all-embeddings
        most_source, most_target = task.max_positions()
        source_positions = PositionalEmbedding(most_source, width, dictionary.pad())
        target_positions = PositionalEmbedding(most_target, width, dictionary.pad())

        config = EncoderDecoderConfig(subln=False, **vars(args))  # without the LayerNorms of Sub-LN
        shared = {"is_encoder_decoder": True, "dictionary": dictionary}
        encoder = TorchscaleEncoder(config, tokens, source_positions, **shared)
        decoder = TorchscaleDecoder(config, tokens, target_positions, logits, **shared)
        return cls(encoder, decoder)

    def forward(self, src_tokens, src_lengths, prev_output_tokens, **kwargs):
        """Return (scores (B, T, V), extras), as fairseq's models do; the source's padding tells its lengths."""
        return self.decoder(prev_output_tokens, encoder_out=self.encoder(src_tokens))


models.register_model_architecture(TORCHSCALE_ARCH, TORCHSCALE_ARCH)(base_architecture)


class TorchscaleEncoder(Encoder, FairseqEncoder):
    """torchscale's encoder behind fairseq's interface: makes the padding mask, and reorders beams."""

    def forward(self, src_tokens, src_lengths=None, **kwargs):
        """Encode sources (B, S), padded with the dictionary's padding token."""
        return super().forward(src_tokens, src_tokens.eq(self.dictionary.pad()), **kwargs)

    def reorder_encoder_out(self, encoder_out, new_order):
        """Return the entries that the decoder reads, with the batch's rows in the order of `new_order`."""
        moved = ("encoder_out", "encoder_padding_mask")
        return {name: encoder_out[name].index_select(0, new_order) for name in moved}

    def max_positions(self) -> int:
        return self.embed_positions.max_positions


class TorchscaleDecoder(Decoder, FairseqIncrementalDecoder):
    """torchscale's decoder behind fairseq's interface: makes the padding mask, and reorders beams."""

    def forward(self, prev_output_tokens, **kwargs):
        """Decode targets (B, T), padded with the dictionary's padding token; return (scores (B, T, V), extras)."""
        return super().forward(prev_output_tokens, prev_output_tokens.eq(self.dictionary.pad()), **kwargs)

    def reorder_incremental_state_scripting(self, incremental_state, new_order) -> None:
        """Put the rows of torchscale's incremental state, {layer: {name: tensor}}, into the order `new_order`."""
        for state in incremental_state.values():
            for name, tensor in state.items():
                state[name] = tensor.index_select(0, new_order)

    def max_positions(self) -> int:
        return self.embed_positions.max_positions
