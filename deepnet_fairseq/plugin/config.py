"""The flags of the three models, named as those of fairseq's `transformer`, and a config class for each model.

How one is filled in, as fairseq's command line would, and what no model can be built from, refused by its flag.

Flat because fairseq's hierarchical TransformerConfig, given as a model's dataclass, trains six layers whatever the
flags say. Depth and widths default to None: archs.fill gives them the architecture's numbers, by one path for
command line, preset and YAML.
"""

import argparse
import dataclasses
from contextlib import nullcontext
from dataclasses import dataclass, field, make_dataclass
from typing import Optional  # fairseq reads field types at run time and does not know X | None

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.utils import get_available_activation_fns
from omegaconf import II, DictConfig, open_dict

from ..core import archs
from ..core.initialisation import PROFILES
from ..core.methods import METHODS, Method, Option, get_method
from ..core.probes import PROBES, get_probes
from ..errors import UserError

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
        False, "train with layers that torch.compile has fused: for GPUs, a CPU is slower by it; docs/speed.md"
    )
    deepnet_probe: Optional[str] = flag(None, f"watch training, with commas between, or all: {', '.join(PROBES)}")
    probe_interval: int = flag(10, "updates from one look of --deepnet-probe to the next")
    probe_dir: str = II("checkpoint.save_dir")
    rollbacks: int = flag(0, "so often a diverged run goes on from its last checkpoint; docs/troubleshooting.md")
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


def with_options(fields: type) -> type:
    """Class decorator: `fields` and the options of every method, what a model is built from."""
    more = [_option_field(method, key, option) for method in METHODS.values() for key, option in method.options.items()]
    names = {"__module__": __name__, "__doc__": fields.__doc__}
    return make_dataclass(fields.__name__, more, bases=(fields,), namespace=names)


def _option_field(method: type[Method], key: str, option: Option) -> tuple:
    kind = ChoiceEnum(option.choices) if option.choices else type(option.default)
    if option.default is None:
        kind = Optional[str]
    return f"{method.name}_{key}", kind, flag(option.default, f"--method {method.name}: {option.help}")


@with_options
@dataclass
class DeepTransformerConfig(DecoderFields, EncoderFields, Common):
    """Flags of `deepnet_transformer`; the longest sentences, in tokens, are the task's."""

    share_all_embeddings: bool = flag(False, "one matrix for encoder input, decoder input and output embeddings")
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


@with_options
@dataclass
class DeepLanguageModelConfig(DecoderFields, Common):
    """Flags of `deepnet_lm`; None where the architecture has the word."""

    method: Optional[str] = flag(None, METHOD)
    activation_fn: Optional[ACTIVATIONS] = flag(None, ACTIVATION)
    share_decoder_input_output_embed: Optional[bool] = flag(None, "one matrix for input and output embeddings")
    tokens_per_sample: int = II("task.tokens_per_sample")
    max_target_positions: Optional[int] = II("task.max_target_positions")


@with_options
@dataclass
class DeepMaskedLanguageModelConfig(EncoderFields, Common):
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


CONFIGS = {archs.MODEL_NAME: DeepTransformerConfig, archs.LM: DeepLanguageModelConfig}
CONFIGS[archs.MASKED_LM] = DeepMaskedLanguageModelConfig


def config_of(cfg) -> type:
    """The config class, one of CONFIGS, of the model that `cfg` (Namespace, omegaconf or dataclass) names."""
    return CONFIGS[archs.model_of(cfg)]


LENGTHS = ("max_source_positions", "max_target_positions", "tokens_per_sample", "max_positions")
ELSEWHERE = dict.fromkeys(LENGTHS, 1024) | {"probe_dir": "."}  # what fairseq's tasks and checkpoints say


def namespace(arch: str, **fields) -> argparse.Namespace:
    """A filled and checked config of architecture `arch`, as fairseq's command line would make it.

    fields: config fields by name ("decoder_layers") that are not to be the default; lengths are 1024 tokens by default.
    UserError, naming the flag, for what no model can be built from.
    """
    known = dataclasses.fields(config_of(argparse.Namespace(arch=arch)))
    defaults = {field.name: ELSEWHERE.get(field.name, field.default) for field in known}
    cfg = argparse.Namespace(**(defaults | fields | {"arch": arch}))
    archs.fill(cfg)
    check(cfg)
    return cfg


def complete(cfg) -> None:
    """Gives a config from before some of our flags what they are by default, in place."""
    with open_dict(cfg) if isinstance(cfg, DictConfig) else nullcontext():
        for field in dataclasses.fields(config_of(cfg)):
            if not hasattr(cfg, field.name) and not str(field.default).startswith("${"):  # one that follows another
                setattr(cfg, field.name, field.default)


def check(cfg) -> None:
    """UserError naming the flag for the first thing in a filled config that no model can be built from."""
    method = get_method(cfg.method)
    if cfg.init_profile not in (None, *method.init_profiles):
        profiles = ", ".join(method.init_profiles)
        raise UserError(f"--init-profile {cfg.init_profile}: --method {method.name} is defined for {profiles}")
    stacks = archs.STACKS[archs.model_of(cfg)]
    for stack in stacks:
        _check_stack(cfg, stack)
    for other in METHODS.values():
        for key, option in other.options.items():
            if other is not method and getattr(cfg, f"{other.name}_{key}", option.default) != option.default:
                raise UserError(f"{other.flag(key)}: an option of --method {other.name}, not {method.name}; drop it")
    built = method.from_config(cfg)
    for stack in stacks:
        if getattr(cfg, f"{stack}_normalize_before") and built.norm != "pre":
            raise UserError(
                f"--{stack}-normalize-before: --method {method.name} computes {method.equation}; "
                "drop the flag or take --method pre_ln"
            )
    get_probes(cfg.deepnet_probe)
    _check_numbers(cfg)
    if getattr(cfg, "share_all_embeddings", False) and cfg.encoder_embed_dim != cfg.decoder_embed_dim:
        raise UserError(
            f"--share-all-embeddings: --encoder-embed-dim {cfg.encoder_embed_dim} and --decoder-embed-dim "
            f"{cfg.decoder_embed_dim} differ; make them equal or drop the flag"
        )


def _check_numbers(cfg) -> None:
    if cfg.checkpoint_every is not None and cfg.checkpoint_every < 1:
        every = f"--checkpoint-every {cfg.checkpoint_every}"
        raise UserError(f"{every}: must be at least 1 layer; drop it to keep activations")
    if cfg.probe_interval < 1:
        raise UserError(f"--probe-interval {cfg.probe_interval}: must be at least 1")
    if cfg.rollbacks < 0:
        raise UserError(f"--rollbacks {cfg.rollbacks}: must be 0 or more")
    if not 0 < cfg.rollback_lr_factor <= 1:
        raise UserError(f"--rollback-lr-factor {cfg.rollback_lr_factor}: must be above 0 and at most 1")
    for name in ("dropout", "attention_dropout", "activation_dropout", "pooler_dropout"):
        if not 0 <= getattr(cfg, name, 0) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(cfg, name)}: must be at least 0 and below 1")


def _check_stack(cfg, stack: str) -> None:
    layers, dim = getattr(cfg, f"{stack}_layers"), getattr(cfg, f"{stack}_embed_dim")
    heads = getattr(cfg, f"{stack}_attention_heads")
    if layers < 1:
        raise UserError(f"--{stack}-layers {layers}: a stack needs at least 1 layer")
    for name in ("embed_dim", "ffn_embed_dim", "attention_heads"):
        value = getattr(cfg, f"{stack}_{name}")
        if value < 1:
            raise UserError(f"--{stack}-{name.replace('_', '-')} {value}: must be at least 1")
    if dim < 4 and not (getattr(cfg, f"{stack}_learned_pos") or cfg.no_token_positional_embeddings):
        raise UserError(f"--{stack}-embed-dim {dim}: sinusoidal positions need at least 4")
    if dim % heads:
        raise UserError(f"--{stack}-attention-heads {heads}: must divide --{stack}-embed-dim {dim}")
