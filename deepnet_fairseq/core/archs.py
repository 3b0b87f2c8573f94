"""Named architectures (--arch): each name stands for one of the three models and for config values, as its depth.

Names are MODEL[_WIDTH][_DEPTH], "deepnet_transformer_tiny_18_18" or "deepnet_lm_100", and those of NormFormer's paper.
A stack is the encoder or the decoder of a model; some models have only one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MODEL_NAME = "deepnet_transformer"
LM = "deepnet_lm"
MASKED_LM = "deepnet_masked_lm"
STACKS = {MODEL_NAME: ("encoder", "decoder"), LM: ("decoder",), MASKED_LM: ("encoder",)}  # model -> stacks

# the depths that have a name
EQUAL_DEPTHS = (6, 10, 12, 18, 20, 24, 30, 36, 40, 48, 50, 60, 70, 80, 90, 100, 200, 250, 500)  # of both stacks
UNEQUAL_DEPTHS = ((12, 6), (18, 6), (24, 12), (36, 12), (48, 12), (60, 12), (12, 60))  # encoder, decoder
SINGLE_DEPTHS = (6, 12, 18, 24, 36, 48, 50, 60, 72, 100, 200, 250, 500, 1000)  # of a language model's one stack


@dataclass(frozen=True)
class Width:
    """Residual width and feed-forward width in features, attention heads."""

    embed_dim: int
    ffn_embed_dim: int
    attention_heads: int

    def fields(self, stack: str) -> dict[str, int]:
        """Return the widths as config fields of `stack`, field -> number: "encoder_embed_dim" -> 512 and so on."""
        return {f"{stack}_{field}": value for field, value in vars(self).items()}


WIDTHS = {  # an architecture's name leaves "base" out
    "base": Width(512, 2048, 8),
    "tiny": Width(64, 128, 2),
    "medium": Width(768, 3072, 12),
    "large": Width(1024, 4096, 16),
}
# further defaults of the two language models; their activations are those of fairseq's transformer_lm and roberta
CAUSAL = {"method": "deepnorm", "activation_fn": "relu", "share_decoder_input_output_embed": False}
MASKED = {"method": "deepnorm", "activation_fn": "gelu", "encoder_learned_pos": False,
          "layernorm_embedding": False, "no_scale_embedding": False}  # fmt: skip
# Shleifer et al. 2021, Table 1; 2.7B is the one trained with ReLU^2
NORMFORMER = {"method": "normformer", "activation_fn": "gelu", "share_decoder_input_output_embed": True}
NORMFORMER_LMS = {  # size -> layers, width, further fields
    "125m": (12, Width(768, 3072, 12), {}),
    "355m": (24, Width(1024, 4096, 16), {}),
    "1.3b": (24, Width(2048, 8192, 32), {}),
    "2.7b": (32, Width(2560, 10240, 32), {"activation_fn": "relu_squared"}),
}
# the embeddings as in fairseq's roberta
ROBERTA = {"encoder_learned_pos": True, "layernorm_embedding": True, "no_scale_embedding": True}

PRESETS: dict[str, dict[str, Any]] = {}  # architecture name -> config field -> value, of the fields that it sets
MODELS: dict[str, str] = {}  # architecture name -> name of its model


def _add(model: str, name: str, fields: dict[str, Any]) -> None:
    """Register the architecture `name` of a model; fields: config field -> value, of the fields that it sets."""
    PRESETS[name] = fields
    MODELS[name] = model


def _add_widths_and_depths(
    model: str, default_depth: tuple[int, ...], depths: Sequence[tuple[int, ...]], more_fields: dict[str, Any]
) -> None:
    """Register an architecture MODEL[_WIDTH][_DEPTH] for every width in WIDTHS and every depth.

    Widths are set for the model's first stack; `fill` gives them to a decoder behind it. A depth is the number of
    layers of each stack, in the order of STACKS. default_depth: that of names without a depth; depths: those that get a
    name; more_fields: config field -> value, for all these architectures.
    """
    stacks = STACKS[model]
    depth_of_suffix = {"": default_depth}  # "" and "_18_18" -> depth
    for depth in depths:
        suffix = "".join(f"_{number}" for number in depth)
        depth_of_suffix[suffix] = depth

    for width_name, width in WIDTHS.items():
        stem = model if width_name == "base" else f"{model}_{width_name}"
        for suffix, depth in depth_of_suffix.items():
            layers = {f"{stack}_layers": number for stack, number in zip(stacks, depth, strict=True)}
            _add(model, stem + suffix, layers | width.fields(stacks[0]) | more_fields)


_add_widths_and_depths(MODEL_NAME, (6, 6), [(N, N) for N in EQUAL_DEPTHS] + list(UNEQUAL_DEPTHS), {})
_add_widths_and_depths(LM, (12,), [(M,) for M in SINGLE_DEPTHS], CAUSAL)
_add_widths_and_depths(MASKED_LM, (12,), [(N,) for N in SINGLE_DEPTHS], MASKED)
for _size, (_layers, _width, _more) in NORMFORMER_LMS.items():
    _add(LM, f"normformer_lm_{_size}", {"decoder_layers": _layers} | _width.fields("decoder") | NORMFORMER | _more)
_base = {"encoder_layers": 12} | WIDTHS["medium"].fields("encoder") | MASKED | ROBERTA
_add(MASKED_LM, "normformer_masked_lm_base", _base | {"method": "normformer"})


def unknown_arch_message(setting: str) -> str:
    """Return the error message for an unknown architecture, with the nearest name that exists, if one is near.

    setting: what the user wrote, "--arch NAME" or the like, with the name at its end.
    """
    setting = " ".join(setting.split())  # on one line
    name = setting.split()[-1]
    near = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    model = MODELS[near[0]] if near else MODEL_NAME
    # what makes any depth, whether an architecture has it in its name or not
    depth = f"{model} with its own {' and '.join(STACKS[model])} layers"
    return f"{setting}: no such architecture; {hint}`deepnet methods --archs` lists them, and any depth is {depth}"


# architecture name -> name of its model; model_of searches them in order, and the plugin adds fairseq's own registry
REGISTRIES: list[Mapping[str, str]] = [MODELS]


def _arch_of(cfg: Any) -> str:
    """Return the name of a config's architecture, which YAML calls _name; "" if it has none."""
    return getattr(cfg, "arch", None) or getattr(cfg, "_name", None) or ""


def model_of(cfg: Any) -> str:
    """Return the name of the model, a key of STACKS, that a config (Namespace, omegaconf or dataclass) describes.

    The result is the translation model if the config has no architecture or an unknown one. The architecture may be one
    that another package has registered for one of these models.
    """
    arch = _arch_of(cfg)
    for registry in REGISTRIES:
        if arch in registry:
            return registry[arch]
    return MODEL_NAME


def depths(cfg: Any) -> tuple[int, int]:
    """Return the numbers of layers, N of the encoder and M of the decoder, in a config, after `fill`.

    The number is 0 for a stack that the model does not have.
    """
    return getattr(cfg, "encoder_layers", 0), getattr(cfg, "decoder_layers", 0)


def fill(cfg: Any) -> None:
    """Set the fields of a config that are None or missing, in place, to the values that its architecture has for them.

    cfg: argparse.Namespace of the command line, or omegaconf/dataclass config of YAML and checkpoints. Widths and heads
    of the decoder that are None even then become the encoder's; fairseq's `transformer` does so with widths alone.
    A checkpoint_every turns checkpoint_activations on.
    """
    arch = _arch_of(cfg)
    model = model_of(cfg)
    # an architecture that another package has registered sets fields itself; what it leaves open is the model's
    preset = PRESETS.get(arch, PRESETS[model])
    for field, value in preset.items():
        if getattr(cfg, field, None) is None:
            setattr(cfg, field, value)

    if model == MODEL_NAME:
        for field in ("embed_dim", "ffn_embed_dim", "attention_heads"):
            if getattr(cfg, f"decoder_{field}", None) is None:
                setattr(cfg, f"decoder_{field}", getattr(cfg, f"encoder_{field}"))
    if getattr(cfg, "checkpoint_every", None) is not None:  # tools also fill configs without this field
        cfg.checkpoint_activations = True  # a flag that says how to recompute implies recomputation
