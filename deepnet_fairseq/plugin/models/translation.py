"""What the models have in common: how one is built, its stacks by name, what fairseq tells it.

And the one of two stacks, the encoder-decoder that fairseq knows as `deepnet_transformer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderDecoderModel, register_model
from torch import Tensor, nn

from ...core import archs
from ...core.initialisation import initialize
from ...core.methods import Method, get_method
from ...core.modules import submodules
from ...core.stack import Decoder, Encoder, Stack
from ...errors import UserError
from .. import config
from ..probing import attach_probes
from . import checkpoint_fit, compiled_layers


class DeepModel(nn.Module):
    """Mixin for fairseq's model shells: stacks of any depth under any registered method.

    A model of one's own gives NAME (a key of archs.STACKS), assemble, tokens, features and vocabulary_projection.
    """

    NAME: str  # as fairseq knows the model

    @classmethod
    def build_model(cls, cfg, task) -> DeepModel:
        """The model for a config (filled in place where the architecture leaves values open) and a task.

        cfg: argparse.Namespace, omegaconf or dataclass; task: fairseq's, or building.blank_task. Values are drawn from
        torch's global generator. UserError, naming the flag, for a config no model can be built from.
        """
        config.complete(cfg)
        archs.fill(cfg)
        config.check(cfg)
        method = get_method(cfg.method).from_config(cfg)
        model = cls.assemble(cfg, method, task)
        initialize(model, method, cfg.init_profile or method.init_profiles[0])
        method.attach(model, task)
        attach_probes(model, task, cfg)
        compiled_layers.attach(model, task, cfg)
        return model

    @classmethod
    def assemble(cls, cfg, method: Method, task) -> DeepModel:
        """The modules of a filled and checked config, their values still to be drawn."""
        raise NotImplementedError

    def stacks(self) -> dict[str, Stack]:
        """ "encoder" and "decoder", those that the model has, in forward order."""
        return {name: getattr(self, name) for name in archs.STACKS[self.NAME]}

    def tokens(self, *args: Any, **net_input: Any) -> dict[str, Tensor]:
        """What each stack reads, (B, T), of what `forward` is given."""
        raise NotImplementedError

    def features(self, *args: Any, **net_input: Any) -> dict[str, Tensor]:
        """What each stack gives, (B, T, C), for the net_input of a fairseq sample."""
        raise NotImplementedError

    def vocabulary_projection(self) -> nn.Linear:
        """The matrix (V, C) that gives scores of V symbols."""
        raise NotImplementedError

    def head_linears(self) -> Iterator[nn.Linear]:
        """Further matrices outside the stacks."""
        return iter(())

    def train(self, mode: bool = True) -> DeepModel:
        """As nn.Module.train without the cost of its attributes, for fairseq calls it twice an update.

        A module with a `train` of its own is asked.
        """
        for module in submodules(self):
            if module is self or type(module).train is nn.Module.train:
                module.__dict__["training"] = mode
            else:
                module.train(mode)
        return self

    def set_num_updates(self, num_updates: int) -> None:
        """fairseq's word before each update, to the parts that change with time."""
        for stack in self.stacks().values():
            stack.set_num_updates(num_updates)

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """Copies a checkpoint of this model or of fairseq's own of its kind; UserError if it is another model's."""
        state_dict = checkpoint_fit.with_split_projections(self.renamed(state_dict))
        state_dict = checkpoint_fit.without_foreign_keys(state_dict, self.state_dict())
        if strict:
            checkpoint_fit.check_fit(state_dict, self.state_dict())
            checkpoint_fit.check_ties(state_dict, self)
        return nn.Module.load_state_dict(self, state_dict, strict)

    def renamed(self, state_dict: dict[str, Tensor]) -> dict[str, Tensor]:
        """A checkpoint's entries under the names they have here."""
        return state_dict


def embedding(dictionary: Dictionary, dim: int) -> nn.Embedding:
    """A matrix (V, dim) for the symbols of a dictionary, its values still to be drawn."""
    return nn.Embedding(len(dictionary), dim, padding_idx=dictionary.pad())


@register_model(archs.MODEL_NAME, dataclass=config.DeepTransformerConfig)
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

    def forward(self, src_tokens, src_lengths, prev_output_tokens, return_all_hiddens=False, **options):
        """src_tokens (B, S), prev_output_tokens (B, T) -> what Decoder.forward returns, at first scores (B, T, V).

        options: further ones of Decoder.forward, features_only and alignment_layer.
        Hidden states on request only: fairseq's `transformer` keeps those of every layer alive in each training step.
        """
        memory = self.encoder(src_tokens, src_lengths, return_all_hiddens)
        return self.decoder(prev_output_tokens, memory, return_all_hiddens=return_all_hiddens, **options)

    def tokens(self, src_tokens, src_lengths, prev_output_tokens, *_rest, **_more):
        return {"encoder": src_tokens, "decoder": prev_output_tokens}

    def features(self, src_tokens, prev_output_tokens, src_lengths=None):
        memory = self.encoder(src_tokens, src_lengths)
        decoded, _extra = self.decoder(prev_output_tokens, memory, features_only=True)
        return {"encoder": memory["encoder_out"][0].transpose(0, 1), "decoder": decoded}

    def vocabulary_projection(self):
        return self.decoder.output_projection
