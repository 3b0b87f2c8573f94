"""torchscale's EncoderDecoder as a fairseq model, the way of its own examples/fairseq, for stock fairseq.

Same work as fairseq's `transformer`: with the same weights it gives the same scores. Positions are fairseq's, as in
torchscale's example; layers, attention, masks and incremental decoding are torchscale's. Of timm it takes one function,
for stochastic depth, which is off; timm needs torchvision, whose wheel does not load beside a CPU build of torch. Of
fairscale it takes the wrapper that recomputes a layer; fairseq has a copy. Stand-ins take their place.
Annotations are not postponed: fairseq reads the types of a config's fields at run time.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from fairseq.dataclass import FairseqDataclass
from fairseq.models import FairseqEncoder, FairseqEncoderDecoderModel, FairseqIncrementalDecoder, register_model
from fairseq.models.transformer import Embedding
from fairseq.modules import PositionalEmbedding
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from omegaconf import II
from torch import nn

from ..config import flag


@contextmanager
def stand_ins() -> Iterator[None]:
    """In this block `timm.models.layers` and, if it is missing, `fairscale.nn` are these; nothing of it stays."""
    modules = _package("timm.models.layers", drop_path=_off)
    try:
        import fairscale.nn  # noqa: F401
    except ImportError:
        modules |= _package("fairscale.nn", checkpoint_wrapper=checkpoint_wrapper, wrap=_off)
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]
        sys.modules.update({name: module for name, module in before.items() if module})


def _package(name: str, **content) -> dict[str, ModuleType]:
    """A module by its full name, and those above it."""
    parts = name.split(".")
    found = {full: ModuleType(full) for full in (".".join(parts[: i + 1]) for i in range(len(parts)))}
    vars(found[name]).update(content)
    return found


def _off(*_):
    raise AssertionError("stochastic depth and sharding are off")


with stand_ins():
    from torchscale.architecture.config import EncoderDecoderConfig
    from torchscale.architecture.decoder import Decoder
    from torchscale.architecture.encoder import Encoder

NAME = "deepnet_bench_torchscale"


@dataclass
class TorchscaleConfig(FairseqDataclass):
    """Flags of the model under fairseq's names, which are those of torchscale's EncoderDecoderConfig as well."""

    encoder_layers: int = flag(6, "")
    encoder_embed_dim: int = flag(512, "")
    encoder_ffn_embed_dim: int = flag(2048, "")
    encoder_attention_heads: int = flag(8, "")
    decoder_layers: int = flag(6, "")
    decoder_embed_dim: int = flag(512, "")
    decoder_ffn_embed_dim: int = flag(2048, "")
    decoder_attention_heads: int = flag(8, "")
    dropout: float = flag(0.1, "")
    attention_dropout: float = flag(0.0, "")
    activation_dropout: float = flag(0.0, "")
    share_all_embeddings: bool = flag(False, "always so")
    checkpoint_activations: bool = flag(False, "")
    deepnorm: bool = flag(False, "DeepNorm instead of Post-LN")
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


@register_model(NAME, dataclass=TorchscaleConfig)
class TorchscaleModel(FairseqEncoderDecoderModel):
    """A Post-LN or DeepNorm Transformer with one embedding matrix."""

    @classmethod
    def build_model(cls, cfg: TorchscaleConfig, task) -> "TorchscaleModel":
        dictionary = task.target_dictionary
        config = EncoderDecoderConfig(
            encoder_normalize_before=False,
            decoder_normalize_before=False,
            subln=False,
            activation_fn="relu",
            no_scale_embedding=False,
            **{name: getattr(cfg, name) for name in TorchscaleConfig.__dataclass_fields__ if name in cfg},
        )
        tokens = Embedding(len(dictionary), cfg.encoder_embed_dim, dictionary.pad())
        logits = nn.Linear(cfg.encoder_embed_dim, len(dictionary), bias=False)
        logits.weight = tokens.weight

        def positions(most: int) -> nn.Module:
            return PositionalEmbedding(most, cfg.encoder_embed_dim, dictionary.pad())

        shared = {"is_encoder_decoder": True, "dictionary": dictionary}
        return cls(
            TorchscaleEncoder(config, tokens, positions(cfg.max_source_positions), **shared),
            TorchscaleDecoder(config, tokens, positions(cfg.max_target_positions), logits, **shared),
        )

    def forward(self, src_tokens, src_lengths, prev_output_tokens, **kwargs):
        return self.decoder(prev_output_tokens, encoder_out=self.encoder(src_tokens))


class TorchscaleEncoder(Encoder, FairseqEncoder):
    """torchscale's encoder behind fairseq's interface: padding becomes its mask, and beams are reordered."""

    def forward(self, src_tokens, src_lengths=None, **kwargs):
        return super().forward(src_tokens, src_tokens.eq(self.dictionary.pad()), **kwargs)

    def reorder_encoder_out(self, encoder_out, new_order):
        moved = ("encoder_out", "encoder_padding_mask")
        return {name: encoder_out[name].index_select(0, new_order) for name in moved}

    def max_positions(self) -> int:
        return self.embed_positions.max_positions


class TorchscaleDecoder(Decoder, FairseqIncrementalDecoder):
    """The same of its decoder, whose incremental state holds tensors by layer and name."""

    def forward(self, prev_output_tokens, **kwargs):
        return super().forward(prev_output_tokens, prev_output_tokens.eq(self.dictionary.pad()), **kwargs)

    def reorder_incremental_state_scripting(self, incremental_state, new_order) -> None:
        for state in incremental_state.values():
            for name, tensor in state.items():
                state[name] = tensor.index_select(0, new_order)

    def max_positions(self) -> int:
        return self.embed_positions.max_positions
