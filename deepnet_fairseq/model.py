"""The encoder-decoder model that fairseq knows as `deepnet_transformer`."""

from __future__ import annotations

from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    FairseqEncoderDecoderModel,
    register_model,
    register_model_architecture,
)
from torch import Tensor, nn

from . import archs, config, graphs, loading, walk
from .config import DeepTransformerConfig
from .decoder import Decoder
from .encoder import Encoder
from .errors import UserError
from .init import initialize
from .methods import get_method
from .probes.attach import attach_probes


@register_model(archs.MODEL_NAME, dataclass=DeepTransformerConfig)
class DeepTransformer(FairseqEncoderDecoderModel):
    """A Transformer of any depth under any registered method."""

    @classmethod
    def build_model(cls, cfg, task) -> DeepTransformer:
        """The model for a config (filled in place where the architecture leaves values open) and a translation task.

        Raises UserError, naming the flag, for a config no model can be built from.
        """
        config.complete(cfg)
        archs.fill(cfg)
        config.check(cfg)
        method = get_method(cfg.method).from_config(cfg)
        source, target = embeddings(cfg, task.source_dictionary, task.target_dictionary)
        model = cls(
            Encoder(cfg, method, task.source_dictionary, source), Decoder(cfg, method, task.target_dictionary, target)
        )
        initialize(model, method, cfg.init_profile or method.init_profiles[0])
        method.attach(model, task)
        attach_probes(model, task, cfg)
        graphs.attach(model, task, cfg)
        return model

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None,
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = False,
        features_only: bool = False,
        alignment_layer: int | None = None,
    ):
        """src_tokens (B, S), prev_output_tokens (B, T) -> what Decoder.forward returns. Hidden states on request only:
        fairseq's `transformer` keeps those of every layer alive in each training step."""
        memory = self.encoder(src_tokens, src_lengths, return_all_hiddens)
        return self.decoder(
            prev_output_tokens,
            memory,
            features_only=features_only,
            return_all_hiddens=return_all_hiddens,
            alignment_layer=alignment_layer,
        )

    def train(self, mode: bool = True) -> DeepTransformer:
        """As nn.Module.train; fairseq calls it twice an update."""
        walk.train(self, mode)
        return self

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq's word before each update, to the parts that change with time."""
        for stack in (self.encoder, self.decoder):
            stack.set_num_updates(num_updates)

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """Copies a checkpoint of this model or of fairseq's `transformer`; UserError if it is another model's."""
        state_dict = loading.without_foreign_keys(state_dict, self.state_dict())
        if strict:
            loading.check_fit(state_dict, self.state_dict())
        return nn.Module.load_state_dict(self, state_dict, strict)


def embeddings(cfg, source_dictionary, target_dictionary) -> tuple[nn.Embedding, nn.Embedding]:
    """Token embeddings of encoder and decoder; one and the same under --share-all-embeddings."""

    def embedding(dictionary, dim):
        return nn.Embedding(len(dictionary), dim, padding_idx=dictionary.pad())

    source = embedding(source_dictionary, cfg.encoder_embed_dim)
    if not cfg.share_all_embeddings:
        return source, embedding(target_dictionary, cfg.decoder_embed_dim)
    if source_dictionary != target_dictionary:
        raise UserError("--share-all-embeddings: the data have two dictionaries; preprocess with --joined-dictionary")
    return source, source


ARCH_CONFIG_REGISTRY[archs.MODEL_NAME] = archs.fill  # register_model has put an empty function there
for _arch in archs.PRESETS.keys() - {archs.MODEL_NAME}:
    register_model_architecture(archs.MODEL_NAME, _arch)(archs.fill)
