"""Initial weights by name, as several packages name and draw them, for `deepnet verify`.

Formulas are those of DeepNet, Figure 2, with N encoder layers and M decoder layers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

WIDTH = 64  # features
FFN_WIDTH = 128  # features
GAINED = ("v_proj", "out_proj", "fc1", "fc2")  # ends of the names of matrices to which DeepNorm gives its beta
ATTENTION_ROLES = ("q", "k", "v", "out")

State = dict[str, Tensor]  # weights by name; of a matrix (out, in)


def normal(rows: int, columns: int, std: float) -> Tensor:
    """Draw a matrix (rows, columns) of normal numbers around 0."""
    return torch.randn(rows, columns) * std


def xavier_normal(rows: int, columns: int, gain: float = 1.0) -> Tensor:
    """Draw a matrix (rows, columns) as torch.nn.init.xavier_normal_ does."""
    return normal(rows, columns, gain * math.sqrt(2 / (rows + columns)))


def decoder_alpha(layers: int) -> float:
    """Return DeepNorm's factor of the shortcut in a model of a decoder alone: (2M)^(1/4)."""
    return (2 * layers) ** 0.25


def decoder_beta(layers: int) -> float:
    """Return DeepNorm's gain of initialisation in a model of a decoder alone: (8M)^(-1/4)."""
    return (8 * layers) ** -0.25


def attention_shapes(attention: str) -> dict[str, tuple[int, int]]:
    """Return the shapes of an attention's four matrices, by the names that fairseq gives them."""
    return {f"{attention}.{role}_proj": (WIDTH, WIDTH) for role in ATTENTION_ROLES}


def decoder_in_fairseqs_names(layers: int, gain: float, gained: tuple[str, ...] = GAINED) -> State:
    """Draw the weights of a model of a decoder alone, Xavier-normal, times `gain` where a name ends as in `gained`."""
    torch.manual_seed(0)
    shapes = attention_shapes("self_attn") | {"fc1": (FFN_WIDTH, WIDTH), "fc2": (WIDTH, FFN_WIDTH)}
    state = {"decoder.embed_tokens.weight": normal(50, WIDTH, 0.02)}
    for layer in range(layers):
        prefix = f"decoder.layers.{layer}"
        for name, shape in shapes.items():
            own_gain = gain if name.endswith(gained) else 1.0
            state[f"{prefix}.{name}.weight"] = xavier_normal(*shape, own_gain)
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            state[f"{prefix}.{name}.weight"] = torch.ones(WIDTH)
    return state


def deepnorm_decoder(layers: int = 4) -> State:
    """Draw the weights of a model of a decoder alone as DeepNorm does, in fairseq's names."""
    return decoder_in_fairseqs_names(layers, decoder_beta(layers))


def encoder_in_torchs_names(layers: int, beta: float) -> State:
    """Draw the weights of torch.nn.TransformerEncoder's layers, with DeepNorm's gain `beta` forgotten for v.

    torch keeps q, k and v in one matrix, in_proj_weight (3 x WIDTH, WIDTH), which is easily drawn as one, without beta.
    """
    torch.manual_seed(0)
    state = {}
    for layer in range(layers):
        prefix = f"encoder.layers.{layer}"
        state[f"{prefix}.self_attn.in_proj_weight"] = xavier_normal(3 * WIDTH, WIDTH)
        state[f"{prefix}.self_attn.out_proj.weight"] = xavier_normal(WIDTH, WIDTH, beta)
        state[f"{prefix}.linear1.weight"] = xavier_normal(FFN_WIDTH, WIDTH, beta)
        state[f"{prefix}.linear2.weight"] = xavier_normal(WIDTH, FFN_WIDTH, beta)
        for number in (1, 2):
            state[f"{prefix}.norm{number}.weight"] = torch.ones(WIDTH)
    return state


def torchscale_model(encoder_layers: int, decoder_layers: int) -> State:
    """Draw a translator's weights as torchscale does: torch's default, divided by 1 / beta of the stack in GAINED.

    DeepNorm's beta is 0.87 (N^4 M)^(-1/16) in the encoder, where torchscale has 1.15 in the place of 0.87, and
    (12M)^(-1/4) in the decoder.
    """
    torch.manual_seed(0)
    encoder_scale = (encoder_layers**4 * decoder_layers) ** (1 / 16) / 1.15
    decoder_scale = (12 * decoder_layers) ** 0.25
    encoder = _torchscale_stack("encoder", encoder_layers, encoder_scale, ["self_attn"])
    decoder = _torchscale_stack("decoder", decoder_layers, decoder_scale, ["self_attn", "encoder_attn"])
    return encoder | decoder


def _torchscale_stack(stack: str, layers: int, scale: float, attentions: list[str]) -> State:
    """Draw the weights of one stack. scale: that divides them; attentions: names of a layer's attentions."""
    shapes = {}
    for attention in attentions:
        shapes |= attention_shapes(attention)
    shapes |= {"ffn.fc1": (FFN_WIDTH, WIDTH), "ffn.fc2": (WIDTH, FFN_WIDTH)}
    norms = [f"{attention}_layer_norm" for attention in attentions]

    state = {}
    for layer in range(layers):
        prefix = f"{stack}.layers.{layer}"
        for name, (rows, columns) in shapes.items():
            std = (3 * columns) ** -0.5  # of nn.Linear's default, uniform in +-columns^(-1/2)
            if name.endswith(GAINED):
                std /= scale
            state[f"{prefix}.{name}.weight"] = normal(rows, columns, std)
        for name in (*norms, "final_layer_norm"):
            state[f"{prefix}.{name}.weight"] = torch.ones(WIDTH)
    return state
