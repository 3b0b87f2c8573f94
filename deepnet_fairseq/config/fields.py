"""The flags of the three models, named as those of fairseq's `transformer`, and a config class for each model.

Flat because fairseq's hierarchical TransformerConfig, given as a model's dataclass, trains six layers whatever the
flags say. Depth and widths default to None: archs.fill gives them the architecture's numbers, by one path for
command line, preset and YAML.
"""

from dataclasses import dataclass, field, make_dataclass
from typing import Optional  # fairseq reads field types at run time and does not know X | None

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.utils import get_available_activation_fns
from omegaconf import II

from .. import archs
from ..initialisation import PROFILES
from ..methods import METHODS, Method, Option
from ..probes import PROBES

# relu_squared: fairseq has it and leaves it out of its list
ACTIVATIONS = ChoiceEnum([*dict.fromkeys([*get_available_activation_fns(), "relu_squared"])])
ACTIVATION = "activation of the feed-forward branch"
METHOD = f"stabilisation method: {', '.join(sorted(METHODS))}"


def flag(default, help: str):
    """A field of a config dataclass: its default, and the help that `fairseq-train --help` prints for its flag."""
    return field(default=default, metadata={"help": help})


@dataclass
class Common(FairseqDataclass):
    """Flags of every model: method, initialisation, dropout, memory and speed of training, probes, rollbacks."""

    method: str = flag("deepnorm", METHOD)
    init_profile: Optional[str] = flag(None, f"base initialisation, by default the method's own: {', '.join(PROFILES)}")
    activation_fn: ACTIVATIONS = flag("relu", ACTIVATION)
    dropout: float = flag(0.1, "dropout on embeddings and on the output of each branch")
    attention_dropout: float = flag(0.0, "dropout on attention weights")
    activation_dropout: float = flag(0.0, "dropout after the activation of the feed-forward branch")
    no_token_positional_embeddings: bool = flag(False, "no positional embeddings")
    no_scale_embedding: bool = flag(False, "do not multiply token embeddings by sqrt(width)")
    layernorm_embedding: bool = flag(False, "LayerNorm after the embeddings")
    checkpoint_activations: bool = flag(False, "recompute each layer in the backward pass to save memory")
    checkpoint_every: Optional[int] = flag(None, "recompute so many layers together, by default 1")
    offload_activations: bool = flag(False, "recompute, and keep what that starts from in the CPU's memory")
    compile_layers: bool = flag(
        False, "train with layers that torch.compile has fused: for GPUs, a CPU is slower by it; docs/kernels.md"
    )
    deepnet_probe: Optional[str] = flag(None, f"watch training, with commas between, or all: {', '.join(PROBES)}")
    probe_interval: int = flag(10, "updates from one look of --deepnet-probe to the next")
    probe_dir: str = II("checkpoint.save_dir")
    rollbacks: int = flag(0, "so often a diverged run goes on from its last checkpoint; docs/divergence.md")
    rollback_lr_factor: float = flag(0.5, "times this --lr at each of --rollbacks")


@dataclass
class EncoderFields(FairseqDataclass):
    """Flags of an encoder. Depth, heads and widths (in features) are the architecture's where they are None."""

    encoder_layers: Optional[int] = flag(None, "N, number of encoder layers")
    encoder_embed_dim: Optional[int] = flag(None, "width of the encoder")
    encoder_ffn_embed_dim: Optional[int] = flag(None, "feed-forward width of the encoder")
    encoder_attention_heads: Optional[int] = flag(None, "attention heads of the encoder")
    encoder_normalize_before: bool = flag(False, "accepted with methods that place the LayerNorm there (pre_ln)")
    encoder_learned_pos: bool = flag(False, "learned positions in the encoder")


@dataclass
class DecoderFields(FairseqDataclass):
    """Flags of a decoder. Depth, heads and widths (in features) are the architecture's where they are None."""

    decoder_layers: Optional[int] = flag(None, "M, number of decoder layers")
    decoder_embed_dim: Optional[int] = flag(None, "width of the decoder, by default the encoder's")
    decoder_ffn_embed_dim: Optional[int] = flag(None, "feed-forward width of the decoder, by default the encoder's")
    decoder_attention_heads: Optional[int] = flag(None, "attention heads of the decoder, by default the encoder's")
    decoder_normalize_before: bool = flag(False, "accepted with methods that place the LayerNorm there (pre_ln)")
    decoder_learned_pos: bool = flag(False, "learned positions in the decoder")
    share_decoder_input_output_embed: bool = flag(False, "one matrix for decoder input and output embeddings")


@dataclass
class TranslationFields(DecoderFields, EncoderFields, Common):
    """Flags of `deepnet_transformer`; the longest sentences, in tokens, are the task's."""

    share_all_embeddings: bool = flag(False, "one matrix for encoder input, decoder input and output embeddings")
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


@dataclass
class CausalFields(DecoderFields, Common):
    """Flags of `deepnet_lm`; None where the architecture has the word."""

    method: Optional[str] = flag(None, METHOD)
    activation_fn: Optional[ACTIVATIONS] = flag(None, ACTIVATION)
    share_decoder_input_output_embed: Optional[bool] = flag(None, "one matrix for input and output embeddings")
    tokens_per_sample: int = II("task.tokens_per_sample")
    max_target_positions: Optional[int] = II("task.max_target_positions")


@dataclass
class MaskedFields(EncoderFields, Common):
    """Flags of `deepnet_masked_lm`; None where the architecture has the word."""

    method: Optional[str] = flag(None, METHOD)
    activation_fn: Optional[ACTIVATIONS] = flag(None, ACTIVATION)
    encoder_learned_pos: Optional[bool] = flag(None, "learned positions, as RoBERTa's")
    layernorm_embedding: Optional[bool] = flag(None, "LayerNorm after the embeddings, as RoBERTa's")
    no_scale_embedding: Optional[bool] = flag(None, "do not multiply token embeddings by sqrt(width), as RoBERTa")
    untie_weights_roberta: bool = flag(False, "an output projection that is not the embedding")
    pooler_activation_fn: ACTIVATIONS = flag("tanh", "activation in classification heads")
    pooler_dropout: float = flag(0.0, "dropout in classification heads")
    load_checkpoint_heads: bool = flag(False, "take the classification heads of a checkpoint that the task has not")
    max_positions: Optional[int] = flag(None, "longest sample in tokens, by default the task's")


def _option_field(method: type[Method], key: str, option: Option) -> tuple:
    kind = type(option.default)
    if option.choices:
        kind = ChoiceEnum(option.choices)
    elif option.default is None:
        kind = Optional[str]
    return f"{method.name}_{key}", kind, flag(option.default, f"--method {method.name}: {option.help}")


def _with_options(name: str, fields: type, doc: str) -> type:
    return make_dataclass(
        name,
        [_option_field(method, key, option) for method in METHODS.values() for key, option in method.options.items()],
        bases=(fields,),
        namespace={"__module__": __name__, "__doc__": doc},
    )


DeepTransformerConfig = _with_options("DeepTransformerConfig", TranslationFields, "What a model is built from.")
DeepLanguageModelConfig = _with_options(
    "DeepLanguageModelConfig", CausalFields, "What a decoder-only language model is built from."
)
DeepMaskedLanguageModelConfig = _with_options(
    "DeepMaskedLanguageModelConfig", MaskedFields, "What an encoder-only masked language model is built from."
)
CONFIGS = {
    archs.MODEL_NAME: DeepTransformerConfig,
    archs.LM: DeepLanguageModelConfig,
    archs.MASKED_LM: DeepMaskedLanguageModelConfig,
}


def config_of(cfg) -> type:
    """The config class, one of CONFIGS, of the model that `cfg` (Namespace, omegaconf or dataclass) names."""
    return CONFIGS[archs.model_of(cfg)]
