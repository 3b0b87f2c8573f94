"""The encoder-decoder model that fairseq knows as `deepnet_transformer`."""

from __future__ import annotations

from fairseq.models import FairseqEncoderDecoderModel, register_model
from torch import Tensor

from .. import archs
from ..config import DeepTransformerConfig
from ..errors import UserError
from ..transformer.stack import Decoder, Encoder
from .base import DeepModel, embedding


@register_model(archs.MODEL_NAME, dataclass=DeepTransformerConfig)
class DeepTransformer(DeepModel, FairseqEncoderDecoderModel):
    """A Transformer of N encoder and M decoder layers under any registered method.

    B sentences, S source and T target tokens, C width, V target symbols.
    """

    NAME = archs.MODEL_NAME

    @classmethod
    def assemble(cls, cfg, method, task):
        source, target = task.source_dictionary, task.target_dictionary
        if cfg.share_all_embeddings and source != target:
            raise UserError(
                "--share-all-embeddings: the data have two dictionaries; preprocess with --joined-dictionary"
            )
        of_source = embedding(source, cfg.encoder_embed_dim)
        of_target = of_source if cfg.share_all_embeddings else embedding(target, cfg.decoder_embed_dim)
        tied = cfg.share_all_embeddings or cfg.share_decoder_input_output_embed
        encoder = Encoder(cfg, method, source, of_source)
        return cls(encoder, Decoder(cfg, method, target, of_target, tied))

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = False,
        features_only: bool = False,
        alignment_layer: int | None = None,
    ):
        """src_tokens (B, S), prev_output_tokens (B, T) -> what Decoder.forward returns, at first scores (B, T, V).

        Hidden states on request only: fairseq's `transformer` keeps those of every layer alive in each training step.
        """
        memory = self.encoder(src_tokens, src_lengths, return_all_hiddens)
        return self.decoder(
            prev_output_tokens,
            memory,
            features_only=features_only,
            return_all_hiddens=return_all_hiddens,
            alignment_layer=alignment_layer,
        )

    def tokens(self, src_tokens, src_lengths, prev_output_tokens, *_rest, **_more):
        return {"encoder": src_tokens, "decoder": prev_output_tokens}

    def features(self, src_tokens, prev_output_tokens, src_lengths=None):
        memory = self.encoder(src_tokens, src_lengths)
        decoded, _extra = self.decoder(prev_output_tokens, memory, features_only=True)
        return {"encoder": memory["encoder_out"][0].transpose(0, 1), "decoder": decoded}

    def vocabulary_projection(self):
        return self.decoder.output_projection
