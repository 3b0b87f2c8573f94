"""Register the models of core/ with fairseq, each as a subclass of core's model class and of fairseq's.

`deepnet_transformer` is for translation, `deepnet_lm` for language_modeling, `deepnet_masked_lm` for masked_lm and
fine-tuning. The masked model's heads have the names of RoBERTa's.
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
    MODEL_DATACLASS_REGISTRY,
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
from hydra.core.config_store import ConfigStore
from torch import Tensor, nn

from ..core import archs
from ..core.config import fill_and_make_method
from ..core.methods import Method
from ..core.methods.base import REGISTRATION_LISTENERS
from ..core.models import DeepModel, EncoderDecoder, LanguageModel, MaskedLanguageModel
from ..core.stack import Decoder, Encoder
from ..errors import UserError
from . import flags
from .checkpoints.vocabulary import rows_by_symbol

logger = logging.getLogger(__name__)
HEADS = "classification_heads"
# parameters of mallopt, from malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
# what the names of weights in fairseq's RoBERTa begin with, and those in this package's model do not: RoBERTa's encoder
# holds the encoder proper, "sentence_encoder", and the head, "lm_head"; in the first releases it is called "decoder"
ROBERTA = re.compile(r"^(?:encoder|decoder)\.(sentence_encoder\.|(?=lm_head\.))")
# part of a name in the first releases of RoBERTa, and what stands in its place now
OLD_NORM = ".emb_layer_norm.", ".layernorm_embedding."


class EncoderShell(Encoder, FairseqEncoder):
    """core's Encoder as a FairseqEncoder.

    arguments: those of Encoder; dictionary: fairseq's Dictionary of the source, which build_model sets; digest: hash of
    that dictionary (vocabulary.py) in a model that building.from_checkpoint has loaded without it, else None.
    """

    digest: str | None = None

    def __init__(self, **arguments: Any):
        FairseqEncoder.__init__(self, dictionary=None)
        Encoder.__init__(self, **arguments)


class DecoderShell(Decoder, FairseqIncrementalDecoder):
    """core's Decoder as a FairseqIncrementalDecoder; its attributes are those of EncoderShell, for the target."""

    digest: str | None = None

    def __init__(self, **arguments: Any):
        FairseqIncrementalDecoder.__init__(self, dictionary=None)
        Decoder.__init__(self, **arguments)


def keep_freed_memory() -> None:
    """Make glibc keep freed memory in the process, for the next step of a search on a CPU; elsewhere do nothing.

    With fairseq-generate's batches, scores and caches are blocks of more than 32 MB. glibc maps and unmaps such blocks
    at each step, and the kernel has to zero their pages each time.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)  # map no block by itself
        libc.mallopt(M_TRIM_THRESHOLD, -1)  # give nothing back from the end of the heap


class FairseqShell(DeepModel):
    """Mixin in front of core's model class and fairseq's, by which fairseq builds, loads and prepares the model."""

    encoder_class = EncoderShell
    decoder_class = DecoderShell
    # where the checkpoint of this model comes from, as vocabulary.origin_of returns it; None unless
    # building.from_checkpoint has made the model
    origin: dict[str, Any] | None = None
    # while weights of another vocabulary are loaded (vocabulary.loading_by_symbol): {"source" or "target": row in the
    # checkpoint's embeddings of each symbol, -1 for a new symbol}; else None
    rows: dict[str, list[int]] | None = None

    def __init__(self, *parts: nn.Module):
        """Set what fairseq's class has, then what core's class has. parts: stacks and heads, as core's class takes."""
        BaseFairseqModel.__init__(self)
        super().__init__(*parts)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> FairseqShell:
        """Build the model for a config and a task; fairseq calls this.

        cfg: argparse.Namespace, omegaconf or dataclass; values that it leaves open are filled in place, by its
        architecture; task: fairseq's, or building.blank_task. Weights are drawn from torch's global generator. Raises a
        UserError, naming the flag, for a config that no model can be built from.
        """
        flags.add_missing_flags(cfg)
        method = fill_and_make_method(cfg)
        flags.check_training_flags(cfg)
        cls.fit_to(cfg, task)

        model = cls.create(
            cfg,
            method,
            source_symbols=len(task.source_dictionary),
            target_symbols=len(task.target_dictionary),
        )
        model.args = cfg  # attribute in which fairseq's models keep it
        model.cfg = cfg
        model.profiled = method.profiled  # whether a new training sets omegas by a profile (admin_profile.py)
        model.profile_source = method.profile if method.profiled else None  # --admin-profile: a file, "auto" or None

        dictionaries = {"encoder": task.source_dictionary, "decoder": task.target_dictionary}
        for name, stack in model.stacks().items():
            stack.dictionary = dictionaries[name]
        return model

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare for generation; fairseq-generate, fairseq-interactive and hub interfaces call this.

        cfg: fairseq's whole config.
        """
        super().prepare_for_inference_(cfg)
        imported = "fairseq_cli.generate" in sys.modules or "fairseq_cli.interactive" in sys.modules
        in_program = imported or Path(sys.argv[0]).parent.name == "fairseq_cli"  # `python -m fairseq_cli.generate`
        # keep_freed_memory changes the whole process, which for a hub interface may be a server
        if in_program and next(self.parameters()).is_cpu:
            keep_freed_memory()

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """Load a state dict as DeepModel does; under --new-vocabulary embeddings are matched by symbol first.

        model_cfg, args: fairseq's, unused.
        """
        if self.rows is not None:  # the checkpoint is of another vocabulary
            state_dict = rows_by_symbol(self.renamed(state_dict), self.state_dict(), self.rows)
        return super().load_state_dict(state_dict, strict)

    @classmethod
    def fit_to(cls, cfg: Any, task: Any) -> None:
        """Fill in, in `cfg`, settings that the task decides; here none, subclasses override this.

        Raises a UserError, naming the flag, for a setting that the task's dictionaries do not allow.
        """


@register_model(archs.MODEL_NAME, dataclass=flags.CONFIGS[archs.MODEL_NAME])
class DeepTransformer(FairseqShell, EncoderDecoder, FairseqEncoderDecoderModel):
    """core's EncoderDecoder as fairseq's."""

    @classmethod
    def fit_to(cls, cfg, task):
        if cfg.share_all_embeddings and task.source_dictionary != task.target_dictionary:
            raise UserError(
                "--share-all-embeddings", "the data have two dictionaries; preprocess with --joined-dictionary"
            )


@register_model(archs.LM, dataclass=flags.CONFIGS[archs.LM])
class DeepLanguageModel(FairseqShell, LanguageModel, FairseqLanguageModel):
    """core's LanguageModel as fairseq's."""

    @classmethod
    def fit_to(cls, cfg, task):
        if cfg.share_decoder_input_output_embed and len(task.source_dictionary) != len(task.target_dictionary):
            raise UserError(
                "--share-decoder-input-output-embed",
                "the output has fewer symbols (--output-dictionary-size); drop one",
            )


@register_model(archs.MASKED_LM, dataclass=flags.CONFIGS[archs.MASKED_LM])
class DeepMaskedLanguageModel(FairseqShell, MaskedLanguageModel, FairseqEncoderModel):
    """core's MaskedLanguageModel as fairseq's, with heads for fine-tuning."""

    @classmethod
    def fit_to(cls, cfg, task):
        if cfg.max_positions is None:  # without --max-positions the task's longest input decides
            cfg.max_positions = getattr(task.cfg, "tokens_per_sample", None) or task.max_positions()

    @classmethod
    def assemble(cls, cfg, method: Method, *, source_symbols: int, target_symbols: int):
        """Make the modules as MaskedLanguageModel does; heads are added later, by register_classification_head."""
        model = super().assemble(cfg, method, source_symbols=source_symbols, target_symbols=target_symbols)
        model.classification_heads = nn.ModuleDict()
        # arguments of every head, by the names that fairseq's RobertaClassificationHead gives them
        model.pooler = {"activation_fn": str(cfg.pooler_activation_fn), "pooler_dropout": cfg.pooler_dropout}
        model.load_checkpoint_heads = cfg.load_checkpoint_heads
        return model

    def forward(self, src_tokens, src_lengths=None, features_only=False, classification_head_name=None, **options):
        """Run MaskedLanguageModel.forward, or the encoder and the named head; return scores and extra as it does.

        The arguments are those of MaskedLanguageModel.forward. The scores of a head are (B, classes).
        """
        if classification_head_name is None:
            return super().forward(src_tokens, src_lengths, features_only, **options)
        x, extra = super().forward(src_tokens, src_lengths, features_only=True, **options)
        return self.classification_heads[classification_head_name](x), extra

    @property
    def has_idle_parameters(self) -> bool:
        """True with heads: fine-tuning one gives lm_head no gradient, which DistributedDataParallel must know."""
        return len(self.classification_heads) > 0

    def get_normalized_probs(self, net_output, log_probs, sample=None):
        """Return the probabilities, or their natural logarithms, of the scores that forward has returned, in float32.

        net_output: result of forward; sample: fairseq's, unused.
        """
        logits = net_output[0].float()
        return logits.log_softmax(-1) if log_probs else logits.softmax(-1)

    def register_classification_head(
        self, name: str, num_classes: int, inner_dim: int | None = None, **_unused
    ) -> None:
        """Add or replace the classification head `name`; fairseq's sentence_prediction calls this.

        num_classes: number of scores that it returns; inner_dim: width of its hidden layer, the encoder's if None. The
        head is RoBERTa's, on the features x of a sentence's first token: out_proj(drop(act(dense(drop(x))))). Its
        weights are drawn with variance 1 / fan-in.
        """
        dim = self.encoder.embed_tokens.embedding_dim
        head = RobertaClassificationHead(dim, inner_dim or dim, num_classes, **self.pooler)
        for linear in (head.dense, head.out_proj):
            nn.init.normal_(linear.weight, 0.0, linear.in_features**-0.5)
            nn.init.zeros_(linear.bias)
        self.classification_heads[name] = head

    def renamed(self, state_dict):
        """Return a checkpoint's state dict with this model's names, and with exactly this model's heads.

        state_dict: of fairseq's `roberta`, of any release, or of this model. A head that the checkpoint lacks comes
        with its present values. A head of the checkpoint that the model lacks, or has in another size, is left out;
        under --load-checkpoint-heads one that the model lacks is registered instead.
        """
        state = {}
        for key, value in state_dict.items():
            # "encoder.sentence_encoder.X" becomes "encoder.X", "encoder.lm_head.X" becomes "lm_head.X"
            key = ROBERTA.sub(lambda match: "encoder." if match[1] else "", key)  # match[1]: "sentence_encoder." or ""
            state[key.replace(*OLD_NORM)] = value
        is_of_roberta = state.keys() != state_dict.keys()
        if is_of_roberta and self.encoder.embed_scale != 1:
            logger.warning("a checkpoint of roberta, which does not scale embeddings: give --no-scale-embedding")

        heads = {key.split(".")[1] for key in state if key.startswith(f"{HEADS}.")}
        for name in sorted(heads):  # sorted, because each may log a warning
            self._fit_head(name, state)
        own_heads = {f"{HEADS}.{key}": value for key, value in self.classification_heads.state_dict().items()}
        return own_heads | state  # the checkpoint's values replace present ones

    def _fit_head(self, name: str, state: dict[str, Tensor]) -> None:
        """Remove a checkpoint's head from `state`, unless the model has one of its size, or gets it here.

        name: of the head; state: a checkpoint's state dict with this model's names. The model gets the head under
        --load-checkpoint-heads.
        """
        stem = f"{HEADS}.{name}."
        inner_dim = state[f"{stem}dense.weight"].size(0)
        num_classes = state[f"{stem}out_proj.weight"].size(0)

        if name not in self.classification_heads and self.load_checkpoint_heads:
            self.register_classification_head(name, num_classes, inner_dim)
        if name in self.classification_heads:
            own = self.classification_heads[name]
            if own.dense.out_features == inner_dim and own.out_proj.out_features == num_classes:
                return

        logger.warning(
            f"the checkpoint's classification head {name} ({num_classes} classes) is not this task's: left out"
        )
        for key in [key for key in state if key.startswith(stem)]:
            del state[key]


MODELS: dict[str, type[FairseqShell]] = {
    model.NAME: model for model in (DeepTransformer, DeepLanguageModel, DeepMaskedLanguageModel)
}
archs.REGISTRIES.append(ARCH_MODEL_NAME_REGISTRY)  # where other code may register architectures of these models
for _arch, _model in archs.MODELS.items():
    if _arch in MODELS:
        ARCH_CONFIG_REGISTRY[_arch] = archs.fill  # register_model has put an empty function there
    else:
        register_model_architecture(_model, _arch)(archs.fill)


def renew_configs() -> None:
    """Make the config classes anew, with the options of methods registered since, and give them to fairseq and hydra.

    This repeats what fairseq's register_model did with the former class of each model. fairseq asks for the classes
    when it parses a command line, after it has imported --user-dir, which may register methods.
    """
    flags.make_classes()
    for name, model in MODELS.items():
        config_class = flags.CONFIGS[name]
        MODEL_DATACLASS_REGISTRY[name] = config_class
        setattr(model, "__dataclass", config_class)

        defaults = config_class()
        defaults._name = name
        ConfigStore.instance().store(name=name, group="model", node=defaults, provider="fairseq")


REGISTRATION_LISTENERS.append(renew_configs)
