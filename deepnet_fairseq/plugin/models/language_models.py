"""Models of one stack: `deepnet_lm` for language_modeling, `deepnet_masked_lm` for masked_lm and fine-tuning.

Names of the masked model's heads are RoBERTa's.
"""

from __future__ import annotations

import logging
import re

from fairseq.models import FairseqEncoderModel, FairseqLanguageModel, register_model
from fairseq.models.roberta.model import RobertaClassificationHead
from fairseq.modules import LayerNorm
from fairseq.utils import get_activation_fn
from torch import Tensor, nn

from ...core import archs
from ...core.modules import Linear
from ...core.stack import Decoder, Encoder
from ...errors import UserError
from ..config import DeepLanguageModelConfig, DeepMaskedLanguageModelConfig
from .translation import DeepModel, embedding


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
        embed_tokens = embedding(source, cfg.decoder_embed_dim)
        return cls(Decoder(cfg, method, target, embed_tokens, tied=cfg.share_decoder_input_output_embed))

    def forward(self, src_tokens: Tensor, src_lengths: Tensor | None = None, **options):
        """src_tokens (B, T) -> what Decoder.forward returns, at first scores (B, T, V) of the tokens that follow."""
        return self.decoder(src_tokens, **options)

    def tokens(self, src_tokens, *_rest, **_more):
        return {"decoder": src_tokens}

    def features(self, src_tokens, src_lengths=None):
        return {"decoder": self.decoder(src_tokens, features_only=True)[0]}

    def vocabulary_projection(self):
        return self.decoder.output_projection


class MaskedTokenHead(Linear):
    """Scores of the vocabulary, W LN(act(dense(x))) + b (Devlin et al. 2019, section 3.1); W may be the embedding."""

    def __init__(self, dim: int, vocabulary: int, activation_fn: str, embedding: nn.Embedding | None):
        super().__init__(dim, vocabulary)
        self.dense = Linear(dim, dim)
        self.activation_fn = get_activation_fn(activation_fn)
        self.layer_norm = LayerNorm(dim)
        if embedding is not None:
            self.weight = embedding.weight

    def forward(self, features: Tensor, masked_tokens: Tensor | None = None) -> Tensor:
        """features (B, T, C) -> (B, T, V); of the places that masked_tokens (B, T) marks alone, (masked, V)."""
        if masked_tokens is not None:
            features = features[masked_tokens]
        return super().forward(self.layer_norm(self.activation_fn(self.dense(features))))


logger = logging.getLogger(__name__)
HEADS = "classification_heads"
# RoBERTa's encoder is a shell around the encoder and the head
ROBERTA = re.compile(r"^(?:encoder|decoder)\.(sentence_encoder\.|(?=lm_head\.))")
OLD_NORM = ".emb_layer_norm.", ".layernorm_embedding."


@register_model(archs.MASKED_LM, dataclass=DeepMaskedLanguageModelConfig)
class DeepMaskedLanguageModel(DeepModel, FairseqEncoderModel):
    """A masked language model of N layers under any registered method, and heads to fine-tune it with.

    Devlin et al. 2019, as RoBERTa (Liu et al. 2019) trains it. B texts, T tokens, C width, V symbols.
    """

    NAME = archs.MASKED_LM

    @classmethod
    def assemble(cls, cfg, method, task):
        if cfg.max_positions is None:
            cfg.max_positions = getattr(task.cfg, "tokens_per_sample", None) or task.max_positions()
        dictionary = task.source_dictionary
        embed_tokens = embedding(dictionary, cfg.encoder_embed_dim)
        tied = None if cfg.untie_weights_roberta else embed_tokens
        activation = str(cfg.activation_fn)
        lm_head = MaskedTokenHead(cfg.encoder_embed_dim, len(dictionary), activation, tied)
        return cls(cfg, Encoder(cfg, method, dictionary, embed_tokens), lm_head)

    def __init__(self, cfg, encoder: Encoder, lm_head: MaskedTokenHead):
        super().__init__(encoder)
        self.lm_head = lm_head
        self.classification_heads = nn.ModuleDict()
        self.pooler = {"activation_fn": str(cfg.pooler_activation_fn), "pooler_dropout": cfg.pooler_dropout}
        self.load_checkpoint_heads = cfg.load_checkpoint_heads

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        classification_head_name: str | None = None,
        masked_tokens: Tensor | None = None,
        **_rest,
    ):
        """src_tokens (B, T) -> scores (B, T, V) and {"inner_states": None}.

        Scores of the places that masked_tokens (B, T) marks alone are (masked, V). In their place: features (B, T, C)
        if features_only, or classes (B, classes) of the named head. inner_states: [(T, B, C) before and after every
        layer] if return_all_hiddens. The task masked_lm also gives src_id, which no model here reads.
        """
        encoded = self.encoder(src_tokens, src_lengths, return_all_hiddens)
        x = encoded["encoder_out"][0].transpose(0, 1)
        if classification_head_name is not None:
            x = self.classification_heads[classification_head_name](x)
        elif not features_only:
            x = self.lm_head(x, masked_tokens)
        return x, {"inner_states": encoded["encoder_states"] if return_all_hiddens else None}

    def tokens(self, src_tokens, *_rest, **_more):
        return {"encoder": src_tokens}

    def features(self, src_tokens, src_lengths=None, **_rest):
        return {"encoder": self(src_tokens, src_lengths, features_only=True)[0]}

    def vocabulary_projection(self):
        return self.lm_head

    def head_linears(self):
        yield self.lm_head.dense

    @property
    def has_idle_parameters(self) -> bool:
        """Fine-tuning a head leaves lm_head out, which processes that wait for each gradient must know of."""
        return len(self.classification_heads) > 0

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        """Probabilities, or their natural logarithms, of what forward gives, in float32: (B, T, V) or as those."""
        logits = net_output[0].float()
        return logits.log_softmax(-1) if log_probs else logits.softmax(-1)

    def register_classification_head(
        self, name: str, num_classes: int, inner_dim: int | None = None, **_unused
    ) -> None:
        """Adds the head `name`, or replaces it; inner_dim: C by default. fairseq's sentence_prediction calls it.

        It is RoBERTa's, of a sentence's first token x: out_proj(drop(act(dense(drop(x))))).
        """
        dim = self.encoder.embed_tokens.embedding_dim
        head = RobertaClassificationHead(dim, inner_dim or dim, num_classes, **self.pooler)
        for linear in (head.dense, head.out_proj):
            nn.init.normal_(linear.weight, 0.0, linear.in_features**-0.5)
            nn.init.zeros_(linear.bias)
        self.classification_heads[name] = head

    def renamed(self, state_dict):
        """Entries of fairseq's `roberta` too, with the names of its first releases.

        A head that the checkpoint lacks keeps its values; one that the task has not, or has in another size, is left
        out, or registered under --load-checkpoint-heads.
        """
        renamed = {ROBERTA.sub(lambda shell: "encoder." if shell[1] else "", key): key for key in state_dict}
        state = {key.replace(*OLD_NORM): state_dict[old] for key, old in renamed.items()}
        if state.keys() != state_dict.keys() and self.encoder.embed_scale != 1:
            logger.warning("a checkpoint of roberta, which does not scale embeddings: give --no-scale-embedding")
        for name in {key.split(".")[1] for key in state if key.startswith(f"{HEADS}.")}:
            self._take_head(name, state)
        own = {f"{HEADS}.{key}": value for key, value in self.classification_heads.state_dict().items()}
        return own | state

    def _take_head(self, name: str, state: dict[str, Tensor]) -> None:
        stem = f"{HEADS}.{name}."
        sizes = state[f"{stem}dense.weight"].size(0), state[f"{stem}out_proj.weight"].size(0)
        if name not in self.classification_heads and self.load_checkpoint_heads:
            self.register_classification_head(name, sizes[1], sizes[0])
        if name in self.classification_heads:
            own = self.classification_heads[name]
            if (own.dense.out_features, own.out_proj.out_features) == sizes:
                return
        logger.warning(f"the checkpoint's classification head {name} ({sizes[1]} classes) is not this task's: left out")
        for key in [key for key in state if key.startswith(stem)]:
            del state[key]
