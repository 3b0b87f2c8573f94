"""The models that fairseq knows by name: core's, in fairseq's shells. Importing this registers them.

`deepnet_transformer` translates, `deepnet_lm` is for language_modeling, `deepnet_masked_lm` for masked_lm and
fine-tuning. Names of the masked model's heads are RoBERTa's.
"""

from __future__ import annotations

import ctypes
import logging
import re
import sys
from pathlib import Path
from typing import Any

from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    BaseFairseqModel,
    FairseqEncoder,
    FairseqEncoderDecoderModel,
    FairseqEncoderModel,
    FairseqIncrementalDecoder,
    FairseqLanguageModel,
    register_model,
    register_model_architecture,
)
from fairseq.models.roberta.model import RobertaClassificationHead
from torch import Tensor, nn

from ..core import archs
from ..core.config import method_of
from ..core.methods import Method
from ..core.models import DeepModel, EncoderDecoder, LanguageModel, MaskedLanguageModel
from ..core.stack import Decoder, Encoder
from ..errors import UserError
from . import config

logger = logging.getLogger(__name__)
HEADS = "classification_heads"
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h
# RoBERTa's encoder is a shell around the encoder and the head
ROBERTA = re.compile(r"^(?:encoder|decoder)\.(sentence_encoder\.|(?=lm_head\.))")
OLD_NORM = ".emb_layer_norm.", ".layernorm_embedding."


class EncoderShell(Encoder, FairseqEncoder):
    """An Encoder that fairseq takes for one of its own; `dictionary` is given by the model."""

    def __init__(self) -> None:
        FairseqEncoder.__init__(self, dictionary=None)


class DecoderShell(Decoder, FairseqIncrementalDecoder):
    """A Decoder that fairseq takes for one of its own; `dictionary` is given by the model."""

    def __init__(self) -> None:
        FairseqIncrementalDecoder.__init__(self, dictionary=None)


def keep_freed_memory() -> None:
    """From now on glibc gives no block back to the kernel, which would fill its pages with zeros for the next step.

    At fairseq-generate's batches scores and caches are blocks of more than 32 MB, which it maps and unmaps each time.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)


class FairseqShell(DeepModel):
    """A model of core that fairseq builds for a task and trains; mixin in front of core's model and fairseq's."""

    encoder_class, decoder_class = EncoderShell, DecoderShell

    def __init__(self, *parts: nn.Module):
        BaseFairseqModel.__init__(self)
        super().__init__(*parts)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> FairseqShell:
        """The model for a config (filled in place where the architecture leaves values open) and a task.

        cfg: argparse.Namespace, omegaconf or dataclass; task: fairseq's, or building.blank_task. Values are drawn from
        torch's global generator. UserError, naming the flag, for a config no model can be built from.
        """
        config.complete(cfg)
        method = method_of(cfg)
        config.check(cfg)
        cls.fit_to(cfg, task)
        model = cls.create(cfg, method, len(task.source_dictionary), len(task.target_dictionary))
        model.args = model.cfg = cfg  # where fairseq's models keep it
        model.profiled, model.profile_source = method.profiled, method.profile if method.profiled else None
        dictionaries = {"encoder": task.source_dictionary, "decoder": task.target_dictionary}
        for name, stack in model.stacks().items():
            stack.dictionary = dictionaries[name]
        return model

    def prepare_for_inference_(self, cfg: Any) -> None:
        """fairseq-generate's call, and -interactive's and hub interfaces', before they translate."""
        super().prepare_for_inference_(cfg)
        programs = {f"fairseq_cli.{name}" for name in ("generate", "interactive")}  # a hub's process may be a server
        theirs = programs & sys.modules.keys() or Path(sys.argv[0]).parent.name == "fairseq_cli"
        if theirs and next(self.parameters()).is_cpu:
            keep_freed_memory()

    @classmethod
    def fit_to(cls, cfg: Any, task: Any) -> None:
        """Fills in what the task says; UserError, naming the flag, for a config that the task's dictionaries forbid."""


@register_model(archs.MODEL_NAME, dataclass=config.DeepTransformerConfig)
class DeepTransformer(FairseqShell, EncoderDecoder, FairseqEncoderDecoderModel):
    """core's EncoderDecoder as fairseq's."""

    @classmethod
    def fit_to(cls, cfg, task):
        if cfg.share_all_embeddings and task.source_dictionary != task.target_dictionary:
            raise UserError(
                "--share-all-embeddings: the data have two dictionaries; preprocess with --joined-dictionary"
            )


@register_model(archs.LM, dataclass=config.DeepLanguageModelConfig)
class DeepLanguageModel(FairseqShell, LanguageModel, FairseqLanguageModel):
    """core's LanguageModel as fairseq's."""

    @classmethod
    def fit_to(cls, cfg, task):
        if cfg.share_decoder_input_output_embed and len(task.source_dictionary) != len(task.target_dictionary):
            raise UserError(
                "--share-decoder-input-output-embed: the output has fewer symbols (--output-dictionary-size); drop one"
            )


@register_model(archs.MASKED_LM, dataclass=config.DeepMaskedLanguageModelConfig)
class DeepMaskedLanguageModel(FairseqShell, MaskedLanguageModel, FairseqEncoderModel):
    """core's MaskedLanguageModel as fairseq's, and heads to fine-tune it with."""

    @classmethod
    def fit_to(cls, cfg, task):
        if cfg.max_positions is None:
            cfg.max_positions = getattr(task.cfg, "tokens_per_sample", None) or task.max_positions()

    @classmethod
    def assemble(cls, cfg, method: Method, source_symbols: int, target_symbols: int):
        model = super().assemble(cfg, method, source_symbols, target_symbols)
        model.classification_heads = nn.ModuleDict()
        model.pooler = {"activation_fn": str(cfg.pooler_activation_fn), "pooler_dropout": cfg.pooler_dropout}
        model.load_checkpoint_heads = cfg.load_checkpoint_heads
        return model

    def forward(self, src_tokens, src_lengths=None, features_only=False, classification_head_name=None, **options):
        """As MaskedLanguageModel.forward; classes (B, classes) of the head that is named, if one is."""
        named = classification_head_name is not None
        x, extra = super().forward(src_tokens, src_lengths, features_only or named, **options)
        return (self.classification_heads[classification_head_name](x) if named else x), extra

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


MODELS: dict[str, type[FairseqShell]] = {
    model.NAME: model for model in (DeepTransformer, DeepLanguageModel, DeepMaskedLanguageModel)
}
archs.REGISTRIES.append(ARCH_MODEL_NAME_REGISTRY)  # an architecture that somebody else registered for one of them
for _arch, _model in archs.MODELS.items():
    if _arch in MODELS:
        ARCH_CONFIG_REGISTRY[_arch] = archs.fill  # where register_model has put an empty function
    else:
        register_model_architecture(_model, _arch)(archs.fill)
