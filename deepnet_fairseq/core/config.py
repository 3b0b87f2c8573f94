"""Config classes of the three models, with fields named as the flags of fairseq's `transformer`.

fill_and_make_method replaces the None of fields that the user left open by the values of the architecture, and refuses
settings that no model can be built from, naming the flag. Options of methods are fields too: config_class makes the
class of all fields that there are, also of methods that somebody registers later. A stack is "encoder" or "decoder".

The classes are flat because fairseq's hierarchical TransformerConfig, given as a model's dataclass, trains six layers
whatever the flags say. Depth and widths default to None, so that archs.fill can tell what the user left open on the
command line, in Python and in YAML alike.
"""

import argparse
import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import lru_cache
from typing import Any, Optional  # fairseq reads field types at run time and does not know X | None

from ..errors import UserError
from . import archs
from .initialisation import PROFILES
from .methods import METHODS, Method, Option, get_method
from .methods.base import REGISTRATION_LISTENERS
from .modifiers import MODIFIERS, Modifier, make_method
from .modules import ACTIVATIONS

ACTIVATION = "activation of the feed-forward branch"
METHOD = "stabilisation method"
LONGEST = 1024  # tokens of a sentence by default, as in fairseq's `transformer`


def flag(default: Any, help: str, choices: Iterable[str] = ()) -> Any:
    """Make a field of a config dataclass, of which fairseq makes a command-line flag.

    default: the field's; help: text of the flag's help; choices: the texts that are permitted, () for any value.
    """
    return field(default=default, metadata={"help": help, "choices": tuple(choices)})


@dataclass
class Common:
    """Flags of every model: method, initialisation, activation, dropout, embeddings, memory of training."""

    method: str = flag("deepnorm", METHOD)
    init_profile: Optional[str] = flag(None, f"base initialisation, by default the method's own: {', '.join(PROFILES)}")
    activation_fn: str = flag("relu", ACTIVATION, ACTIVATIONS)
    dropout: float = flag(0.1, "dropout on embeddings and on the output of each branch")
    attention_dropout: float = flag(0.0, "dropout on attention weights")
    activation_dropout: float = flag(0.0, "dropout after the activation of the feed-forward branch")
    no_token_positional_embeddings: bool = flag(False, "no positional embeddings")
    no_scale_embedding: bool = flag(False, "do not multiply token embeddings by sqrt(width)")
    layernorm_embedding: bool = flag(False, "LayerNorm after the embeddings")
    checkpoint_activations: bool = flag(False, "recompute each layer in the backward pass to save memory")
    checkpoint_every: Optional[int] = flag(
        None, "with --checkpoint-activations: number of layers to recompute together, by default 1"
    )


@dataclass
class EncoderFields:
    """Flags of an encoder. Depth, heads and widths (in features) are the architecture's where they are None."""

    encoder_layers: Optional[int] = flag(None, "N, number of encoder layers")
    encoder_embed_dim: Optional[int] = flag(None, "width of the encoder")
    encoder_ffn_embed_dim: Optional[int] = flag(None, "feed-forward width of the encoder")
    encoder_attention_heads: Optional[int] = flag(None, "attention heads of the encoder")
    encoder_normalize_before: bool = flag(False, "accepted with methods that place the LayerNorm there (pre_ln)")
    encoder_learned_pos: bool = flag(False, "learned positions in the encoder")


@dataclass
class DecoderFields:
    """Flags of a decoder. Depth, heads and widths (in features) are the architecture's where they are None."""

    decoder_layers: Optional[int] = flag(None, "M, number of decoder layers")
    decoder_embed_dim: Optional[int] = flag(None, "width of the decoder, by default the encoder's")
    decoder_ffn_embed_dim: Optional[int] = flag(None, "feed-forward width of the decoder, by default the encoder's")
    decoder_attention_heads: Optional[int] = flag(None, "attention heads of the decoder, by default the encoder's")
    decoder_normalize_before: bool = flag(False, "accepted with methods that place the LayerNorm there (pre_ln)")
    decoder_learned_pos: bool = flag(False, "learned positions in the decoder")
    share_decoder_input_output_embed: bool = flag(False, "one matrix for decoder input and output embeddings")


@dataclass
class DeepTransformerConfig(DecoderFields, EncoderFields, Common):
    """Flags of `deepnet_transformer`."""

    share_all_embeddings: bool = flag(False, "one matrix for encoder input, decoder input and output embeddings")
    max_source_positions: int = flag(LONGEST, "longest source sentence in tokens")
    max_target_positions: int = flag(LONGEST, "longest target sentence in tokens")


@dataclass
class DeepLanguageModelConfig(DecoderFields, Common):
    """Flags of `deepnet_lm`; None where the architecture decides."""

    method: Optional[str] = flag(None, METHOD)
    activation_fn: Optional[str] = flag(None, ACTIVATION, ACTIVATIONS)
    share_decoder_input_output_embed: Optional[bool] = flag(None, "one matrix for input and output embeddings")
    tokens_per_sample: int = flag(LONGEST, "tokens of a sample")
    max_target_positions: Optional[int] = flag(LONGEST, "longest sample in tokens")


@dataclass
class DeepMaskedLanguageModelConfig(EncoderFields, Common):
    """Flags of `deepnet_masked_lm`; None where the architecture decides."""

    method: Optional[str] = flag(None, METHOD)
    activation_fn: Optional[str] = flag(None, ACTIVATION, ACTIVATIONS)
    encoder_learned_pos: Optional[bool] = flag(None, "learned positions, as RoBERTa's")
    layernorm_embedding: Optional[bool] = flag(None, "LayerNorm after the embeddings, as RoBERTa's")
    no_scale_embedding: Optional[bool] = flag(None, "do not multiply token embeddings by sqrt(width), as RoBERTa")
    untie_weights_roberta: bool = flag(False, "train an output projection that is not the embedding")
    max_positions: Optional[int] = flag(LONGEST, "longest sample in tokens, by default the task's")


CONFIGS: dict[str, type] = {  # a model's own fields; config_class adds those of methods and modifiers
    archs.MODEL_NAME: DeepTransformerConfig,
    archs.LM: DeepLanguageModelConfig,
    archs.MASKED_LM: DeepMaskedLanguageModelConfig,
}


def config_class(model: str) -> type:
    """Return a dataclass of a model's own fields, the modifiers, and the options of all that is registered by now.

    model: a key of CONFIGS. A modifier is a bool field of its name, an option a field METHOD_KEY or MODIFIER_KEY.
    Raises a UserError if the name of such a field is that of another field already.
    """
    return _config_class(model, tuple(METHODS.values()), tuple(MODIFIERS.values()))


def _check_registered() -> None:
    """Raise a UserError if an option or modifier cannot be a field of a config.

    `register` and `register_modifier` call this, so that the error appears at the class that causes it.
    """
    for model in CONFIGS:
        config_class(model)


REGISTRATION_LISTENERS.append(_check_registered)


@lru_cache
def _config_class(model: str, methods: tuple[type[Method], ...], modifiers: tuple[type[Modifier], ...]) -> type:
    """Return the class of config_class for these methods and modifiers; lru_cache makes each class only once."""
    own_fields = {own.name: own for own in dataclasses.fields(CONFIGS[model])}

    # the field `method` again, with the names of all methods in its help
    method_names = ", ".join(sorted(method.name for method in methods))
    method_field = flag(own_fields["method"].default, f"{METHOD}: {method_names}")

    option_fields: dict[str, tuple[str, Any, Any]] = {}  # name -> (name, type, field)
    for name, kind, option_field in _option_fields(methods, modifiers):
        if name in own_fields or name in option_fields:
            raise UserError(name, "the name of two fields of a config; rename the option, method or modifier")
        option_fields[name] = (name, kind, option_field)

    return make_dataclass(
        CONFIGS[model].__name__,
        [("method", own_fields["method"].type, method_field), *option_fields.values()],
        bases=(CONFIGS[model],),
        namespace={"__module__": __name__, "__doc__": CONFIGS[model].__doc__},
    )


def _option_fields(
    methods: Iterable[type[Method]], modifiers: Iterable[type[Modifier]]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield (name, type, field) for each option of the methods, for each modifier, and for each option of a modifier.

    The triples are what dataclasses.make_dataclass takes.
    """
    for method in methods:
        for key, option in method.options.items():
            yield _option_field(method.name, key, f"--method {method.name}", option)
    for modifier in modifiers:
        yield modifier.modifier, bool, flag(False, f"{modifier.help}, in any method")
        for key, option in modifier.options.items():
            yield _option_field(modifier.modifier, key, modifier.flag(), option)


def _option_field(owner: str, key: str, owner_flag: str, option: Option) -> tuple[str, Any, Any]:
    """Return (name, type, field) of an option.

    owner: name of the method or modifier; key: the option's in the class's `options`; owner_flag: flag that turns the
    owner on, with which the help begins.
    """
    kind = Optional[str] if option.default is None else type(option.default)
    return f"{owner}_{key}", kind, flag(option.default, f"{owner_flag}: {option.help}", option.choices)


def config_and_method(arch: str, **fields: Any) -> tuple[argparse.Namespace, Method]:
    """Return a filled and checked config of architecture `arch`, and its method.

    The config has the flags of the model; those of training are the plugin's (plugin/flags.py). fields: values by name
    of a field, as `decoder_layers=18`, where they differ from the default. Raises a UserError, naming the flag, for
    settings that no model can be built from.
    """
    model = archs.model_of(argparse.Namespace(arch=arch))
    defaults = {field.name: field.default for field in dataclasses.fields(config_class(model))}
    cfg = argparse.Namespace(**(defaults | fields | {"arch": arch}))
    return cfg, fill_and_make_method(cfg)


settle = config_and_method  # its name until 0.1; gone with the next release


def namespace(arch: str, **fields: Any) -> argparse.Namespace:
    """Return the config of `config_and_method` alone."""
    cfg, _method = config_and_method(arch, **fields)
    return cfg


def check_fields(arch: str, fields: Mapping[str, Any], more: Iterable[str] = ()) -> None:
    """Raise a UserError if there is no such architecture, method or field.

    fields: config field -> value, the method's name under "method"; more: further names of fields that are permitted.
    The message for a field has the nearest name that exists.
    """
    if arch not in archs.PRESETS:
        raise UserError(archs.unknown_arch_message(f"--arch {arch}"))
    if fields.get("method") is not None:
        get_method(fields["method"])  # first: a message on one of its options would not name the method
    config_fields = dataclasses.fields(config_class(archs.MODELS[arch]))
    known = {field.name for field in config_fields} | set(more)
    for name in fields:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {near[0]}?" if near else "drop it"
            raise UserError(name, f"{arch} has no such field; {hint}")


def fill_and_make_method(cfg: Any) -> Method:
    """Fill a model config in place (archs.fill), check it, and return its method.

    cfg: argparse.Namespace, omegaconf or dataclass. Raises a UserError, naming the flag, for settings that no model can
    be built from. A model that is already built has its method in model.method.
    """
    archs.fill(cfg)
    stacks = archs.STACKS[archs.model_of(cfg)]

    # in this order: a method reads depths, which must be right, and LayerNorms are the method's
    _check_options(cfg)
    for stack in stacks:
        _check_stack(cfg, stack)
    method = make_method(cfg)
    for stack in stacks:
        _check_norms(cfg, stack, method)
    _check_numbers(cfg)
    return method


method_of = fill_and_make_method  # its name until 0.1; gone with the next release


def _check_options(cfg: Any) -> None:
    """Raise a UserError for a setting that does not go with the config's method.

    Such settings are a --method that does not exist, an init profile that the method does not have, and an option of
    another method whose value is not its default.
    """
    method = get_method(cfg.method)
    if cfg.init_profile not in (None, *method.init_profiles):
        profiles = ", ".join(method.init_profiles)
        raise UserError(f"--init-profile {cfg.init_profile}", f"--method {method.name} is defined for {profiles}")
    for other in METHODS.values():
        if other is method:
            continue
        for key, option in other.options.items():
            # a config that was made before the other method was registered has no fields of its options
            if getattr(cfg, f"{other.name}_{key}", option.default) != option.default:
                raise UserError(other.flag(key), f"an option of --method {other.name}, not {method.name}; drop it")


def _check_norms(cfg: Any, stack: str, method: Method) -> None:
    """Raise a UserError for --STACK-normalize-before, fairseq's flag for Pre-LN, unless all its branches are Pre-LN."""
    if getattr(cfg, f"{stack}_normalize_before") and method.norm_places(stack) != {"pre"}:
        raise UserError(
            f"--{stack}-normalize-before",
            f"--method {method.name} computes {method.equation}; drop the flag or take --method pre_ln",
        )


def _check_numbers(cfg: Any) -> None:
    """Raise a UserError for a number that no model can have, or widths of two stacks that cannot share embeddings.

    The numbers of one stack are left to _check_stack.
    """
    if cfg.checkpoint_every is not None and cfg.checkpoint_every < 1:
        every = f"--checkpoint-every {cfg.checkpoint_every}"
        raise UserError(every, "must be at least 1 layer; drop it to keep activations")
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        check_probability(cfg, name)
    # language models have no share_all_embeddings
    if getattr(cfg, "share_all_embeddings", False) and cfg.encoder_embed_dim != cfg.decoder_embed_dim:
        raise UserError(
            "--share-all-embeddings",
            f"--encoder-embed-dim {cfg.encoder_embed_dim} and --decoder-embed-dim "
            f"{cfg.decoder_embed_dim} differ; make them equal or drop the flag",
        )


def check_probability(cfg: Any, name: str) -> None:
    """Raise a UserError unless the config's field `name` is at least 0 and below 1, as a probability of dropout."""
    if not 0 <= getattr(cfg, name) < 1:
        raise UserError(f"--{name.replace('_', '-')} {getattr(cfg, name)}", "must be at least 0 and below 1")


def _check_stack(cfg: Any, stack: str) -> None:
    """Raise a UserError for a depth, width or number of heads that `stack` cannot have."""
    layers = getattr(cfg, f"{stack}_layers")
    dim = getattr(cfg, f"{stack}_embed_dim")
    heads = getattr(cfg, f"{stack}_attention_heads")
    if layers < 1:
        raise UserError(f"--{stack}-layers {layers}", "a stack needs at least 1 layer")
    for name in ("embed_dim", "ffn_embed_dim", "attention_heads"):
        value = getattr(cfg, f"{stack}_{name}")
        if value < 1:
            raise UserError(f"--{stack}-{name.replace('_', '-')} {value}", "must be at least 1")
    has_sinusoids = not (getattr(cfg, f"{stack}_learned_pos") or cfg.no_token_positional_embeddings)
    if dim < 4 and has_sinusoids:  # their formula divides by dim / 2 - 1
        raise UserError(f"--{stack}-embed-dim {dim}", "sinusoidal positions need at least 4")
    if dim % heads:
        raise UserError(f"--{stack}-attention-heads {heads}", f"must divide --{stack}-embed-dim {dim}")
