"""The decoder-only model that fairseq knows as `deepnet_lm`, for the task language_modeling."""

from __future__ import annotations

from fairseq.models import FairseqLanguageModel, register_model
from torch import Tensor, nn

from .. import archs
from ..config import DeepLanguageModelConfig
from ..errors import UserError
from ..transformer.decoder import Decoder
from .base import DeepModel, register_architectures


@register_model(archs.LM, dataclass=DeepLanguageModelConfig)
class DeepLanguageModel(DeepModel, FairseqLanguageModel):
    """A causal language model of M layers under any registered method. B texts, T tokens, C width, V symbols."""

    NAME = archs.LM

    @classmethod
    def assemble(cls, cfg, method, task):
        if cfg.max_target_positions is None:
            cfg.max_target_positions = cfg.tokens_per_sample
        source, target = task.source_dictionary, task.target_dictionary
        if cfg.share_decoder_input_output_embed and len(source) != len(target):
            raise UserError(
                "--share-decoder-input-output-embed: the output has fewer symbols (--output-dictionary-size); drop one"
            )
        embed_tokens = nn.Embedding(len(source), cfg.decoder_embed_dim, padding_idx=source.pad())
        return cls(Decoder(cfg, method, target, embed_tokens, tied=cfg.share_decoder_input_output_embed))

    def forward(self, src_tokens: Tensor, src_lengths: Tensor | None = None, **options):
        """src_tokens (B, T) -> what Decoder.forward returns, at first scores (B, T, V) of the tokens that follow."""
        return self.decoder(src_tokens, **options)

    def tokens(self, src_tokens, src_lengths=None):
        return {"decoder": src_tokens}

    def features(self, src_tokens, src_lengths=None):
        return {"decoder": self.decoder(src_tokens, features_only=True)[0]}

    def vocabulary_projection(self):
        return self.decoder.output_projection


register_architectures(archs.LM)
