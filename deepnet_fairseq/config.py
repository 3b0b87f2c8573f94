"""The flat model config; flag names are those of fairseq's `transformer`, then the options of every method.

Flat because fairseq's hierarchical TransformerConfig, given as a model's dataclass, trains six layers whatever the
flags say. Depth and widths default to None: archs.fill gives them the architecture's numbers, by one path for
command line, preset and YAML.
"""

import argparse
from contextlib import nullcontext
from dataclasses import dataclass, field, make_dataclass
from typing import Optional  # fairseq reads field types at run time and does not know X | None

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.utils import get_available_activation_fns
from omegaconf import II, DictConfig, open_dict

from . import archs
from .errors import UserError
from .init_profiles import PROFILES
from .methods import METHODS, Method, Option, get_method
from .probes import PROBES, get_probes
from .recomputation import Recomputation


def _flag(default, help: str):
    return field(default=default, metadata={"help": help})


@dataclass
class _CommonConfig(FairseqDataclass):
    method: str = _flag("deepnorm", f"stabilisation method: {', '.join(sorted(METHODS))}")
    init_profile: Optional[str] = _flag(
        None, f"base initialisation, by default the method's own: {', '.join(PROFILES)}"
    )
    activation_fn: ChoiceEnum(get_available_activation_fns()) = _flag("relu", "activation of the feed-forward branch")
    dropout: float = _flag(0.1, "dropout on embeddings and on the output of each branch")
    attention_dropout: float = _flag(0.0, "dropout on attention weights")
    activation_dropout: float = _flag(0.0, "dropout after the activation of the feed-forward branch")

    encoder_layers: Optional[int] = _flag(None, "N, number of encoder layers")
    encoder_embed_dim: Optional[int] = _flag(None, "width of the encoder")
    encoder_ffn_embed_dim: Optional[int] = _flag(None, "feed-forward width of the encoder")
    encoder_attention_heads: Optional[int] = _flag(None, "attention heads of the encoder")
    encoder_normalize_before: bool = _flag(False, "accepted with methods that place the LayerNorm there (pre_ln)")
    encoder_learned_pos: bool = _flag(False, "learned positions in the encoder")

    decoder_layers: Optional[int] = _flag(None, "M, number of decoder layers")
    decoder_embed_dim: Optional[int] = _flag(None, "width of the decoder, by default the encoder's")
    decoder_ffn_embed_dim: Optional[int] = _flag(None, "feed-forward width of the decoder, by default the encoder's")
    decoder_attention_heads: Optional[int] = _flag(None, "attention heads of the decoder, by default the encoder's")
    decoder_normalize_before: bool = _flag(False, "accepted with methods that place the LayerNorm there (pre_ln)")
    decoder_learned_pos: bool = _flag(False, "learned positions in the decoder")

    share_decoder_input_output_embed: bool = _flag(False, "one matrix for decoder input and output embeddings")
    share_all_embeddings: bool = _flag(False, "one matrix for encoder input, decoder input and output embeddings")
    no_token_positional_embeddings: bool = _flag(False, "no positional embeddings")
    no_scale_embedding: bool = _flag(False, "do not multiply token embeddings by sqrt(width)")
    layernorm_embedding: bool = _flag(False, "LayerNorm after the embeddings")
    checkpoint_activations: bool = _flag(False, "recompute each layer in the backward pass to save memory")
    checkpoint_every: Optional[int] = _flag(None, "recompute so many layers together, by default 1")
    offload_activations: bool = _flag(False, "recompute, and keep what that starts from in the CPU's memory")
    cuda_graphs: bool = _flag(
        False, "train by CUDA graphs: for many layers and few shapes of batches (--num-batch-buckets); docs/kernels.md"
    )
    cuda_graphs_limit: int = _flag(64, "shapes of batches that --cuda-graphs captures; further ones run without")
    compile_layers: bool = _flag(
        False, "train with layers that torch.compile has fused: for GPUs, a CPU is slower by it; docs/kernels.md"
    )
    deepnet_probe: Optional[str] = _flag(None, f"watch training, with commas between, or all: {', '.join(PROBES)}")
    probe_interval: int = _flag(10, "updates from one look of --deepnet-probe to the next")
    probe_dir: str = II("checkpoint.save_dir")
    rollbacks: int = _flag(0, "so often a diverged run goes on from its last checkpoint; docs/divergence.md")
    rollback_lr_factor: float = _flag(0.5, "times this --lr at each of --rollbacks")
    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


def _option_field(method: type[Method], key: str, option: Option) -> tuple:
    kind = type(option.default)
    if option.choices:
        kind = ChoiceEnum(option.choices)
    elif option.default is None:
        kind = Optional[str]
    return f"{method.name}_{key}", kind, _flag(option.default, f"--method {method.name}: {option.help}")


DeepTransformerConfig = make_dataclass(
    "DeepTransformerConfig",
    [_option_field(method, key, option) for method in METHODS.values() for key, option in method.options.items()],
    bases=(_CommonConfig,),
    namespace={"__module__": __name__, "__doc__": "What a model is built from."},
)


def namespace(arch: str, **fields) -> argparse.Namespace:
    """A filled and checked config of architecture `arch`, as fairseq's command line would make it."""
    defaults = {name: field.default for name, field in DeepTransformerConfig.__dataclass_fields__.items()}
    elsewhere = {"max_source_positions": 1024, "max_target_positions": 1024, "probe_dir": "."}
    cfg = argparse.Namespace(**(defaults | elsewhere | fields | {"arch": arch}))
    archs.fill(cfg)
    check(cfg)
    return cfg


def complete(cfg) -> None:
    """Gives a config from before some of our flags what they are by default, in place."""
    with open_dict(cfg) if isinstance(cfg, DictConfig) else nullcontext():
        for name, field in DeepTransformerConfig.__dataclass_fields__.items():
            if not hasattr(cfg, name) and not str(field.default).startswith("${"):  # a setting that follows another
                setattr(cfg, name, field.default)


def check(cfg) -> None:
    """UserError naming the flag for the first thing in a filled config that no model can be built from."""
    method = get_method(cfg.method)
    _check_init_profile(cfg, method)
    for stack in ("encoder", "decoder"):
        _check_stack(cfg, stack)
    _check_options(cfg, method)
    _check_norm_place(cfg, method.from_config(cfg))
    get_probes(cfg.deepnet_probe)
    Recomputation.check(cfg)
    if cfg.probe_interval < 1:
        raise UserError(f"--probe-interval {cfg.probe_interval}: must be at least 1")
    if cfg.rollbacks < 0:
        raise UserError(f"--rollbacks {cfg.rollbacks}: must be 0 or more")
    if not 0 < cfg.rollback_lr_factor <= 1:
        raise UserError(f"--rollback-lr-factor {cfg.rollback_lr_factor}: must be above 0 and at most 1")
    for name in ("dropout", "attention_dropout", "activation_dropout"):
        if not 0 <= getattr(cfg, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} {getattr(cfg, name)}: must be at least 0 and below 1")
    if cfg.cuda_graphs_limit < 1:
        raise UserError(f"--cuda-graphs-limit {cfg.cuda_graphs_limit}: must be at least 1")
    if cfg.cuda_graphs and cfg.checkpoint_activations:
        raise UserError(
            "--cuda-graphs: layers that --checkpoint-activations computes again set the random numbers back, which no "
            "graph can; drop one of the two"
        )
    if cfg.share_all_embeddings and cfg.encoder_embed_dim != cfg.decoder_embed_dim:
        raise UserError(
            f"--share-all-embeddings: --encoder-embed-dim {cfg.encoder_embed_dim} and --decoder-embed-dim "
            f"{cfg.decoder_embed_dim} differ; make them equal or drop the flag"
        )


def _check_init_profile(cfg, method) -> None:
    if cfg.init_profile is None or cfg.init_profile in method.init_profiles:
        return
    raise UserError(
        f"--init-profile {cfg.init_profile}: --method {method.name} is defined for {', '.join(method.init_profiles)}"
    )


def _check_options(cfg, method) -> None:
    for other in METHODS.values():
        for key, option in other.options.items():
            if other is not method and getattr(cfg, f"{other.name}_{key}", option.default) != option.default:
                raise UserError(f"{other.flag(key)}: an option of --method {other.name}, not {method.name}; drop it")


def _check_norm_place(cfg, method) -> None:
    for stack in ("encoder", "decoder"):
        if getattr(cfg, f"{stack}_normalize_before") and method.norm != "pre":
            raise UserError(
                f"--{stack}-normalize-before: --method {method.name} computes {method.equation}; "
                "drop the flag or take --method pre_ln"
            )


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
