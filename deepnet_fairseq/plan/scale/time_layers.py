"""Seconds of one layer's passes, by the number of tokens: of stacks of a few real layers, no model around them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from ... import config
from ...archs import WIDTHS
from ...methods import get_method
from ...transformer.layer import DecoderLayer, EncoderLayer
from ...transformer.shape import StackShape
from ..flags import parse
from ..tracing import trace
from .measured import STACKS, LayerTime, Width

DEPTH, LENGTH, WARMUP = 12, 32, 2
TOKENS = 32, 512  # little work, so that the host's part is seen; and much
KINDS = {"encoder": EncoderLayer, "decoder": DecoderLayer}


def layer_times(name: str, turns: int) -> Width:
    """Both stacks' layers at one of archs.WIDTHS, DeepNorm, fp32, dropout 0.1; the processor time of this process.

    Stacks and numbers of tokens take turns, so that a busy moment of the machine falls on all; medians of the turns.
    """
    cfg = config.namespace(_arch(name), dropout=0.1)
    layers = {stack: _layers(cfg, stack) for stack in STACKS}
    seconds: dict[tuple[str, int], list] = {(stack, tokens): [] for stack in STACKS for tokens in TOKENS}
    for turn in range(WARMUP + turns):
        for (stack, tokens), found in seconds.items():
            passes = _passes(layers[stack], tokens)
            if turn >= WARMUP:
                found.append(passes)
    timed = {stack: _fit([seconds[stack, tokens] for tokens in TOKENS], _flops(name, stack)) for stack in STACKS}
    return Width(WIDTHS[name].embed_dim, **timed)


def _arch(name: str) -> str:
    return f"deepnet_transformer{'' if name == 'base' else '_' + name}"


def _layers(cfg, stack: str) -> list[torch.nn.Module]:
    shape, method = StackShape.from_config(cfg, stack), get_method(cfg.method).from_config(cfg)
    return [KINDS[stack](shape, method, index).train() for index in range(1, DEPTH + 1)]


def _flops(name: str, stack: str) -> float:
    """Of a layer's forward pass, a token, as the plan counts them."""
    sizes = ["--vocab", "100", "--max-tokens", str(TOKENS[1]), "--length", str(LENGTH)]
    setting = parse(["--arch", _arch(name), *sizes, "--cpu"])
    found = next(segment for segment in trace(setting) if segment.name == f"{stack} layers")
    return found.flops / setting.max_tokens


def _fit(passes: list[list[tuple[float, float]]], flops: float) -> LayerTime:
    """passes: seconds forward and backward of every turn, with few tokens and with many."""
    forward, backward = (_line(*(statistics.median(one[way] for one in turns) for turns in passes)) for way in range(2))
    return LayerTime(*forward, *backward, flops)


def _line(few: float, many: float) -> tuple[float, float]:
    """Host and token seconds of a layer; noise may not make the host's part vanish."""
    token = (many - few) / (TOKENS[1] - TOKENS[0])
    return max(few - TOKENS[0] * token, 0.01 * few), token


def _passes(layers: list[torch.nn.Module], tokens: int) -> tuple[float, float]:
    """Seconds a layer of a forward and a backward pass over random inputs."""
    dim, memory = layers[0].fc1.in_features, None
    x = torch.randn(tokens // LENGTH, LENGTH, dim, requires_grad=True)
    if isinstance(layers[0], DecoderLayer):
        memory = torch.randn(tokens // LENGTH, LENGTH, dim, requires_grad=True)
    for layer in layers:
        layer.zero_grad()
    marks = list(_run(layers, x, memory))
    return (marks[1] - marks[0]) / len(layers), (marks[2] - marks[1]) / len(layers)


def _run(layers: list[torch.nn.Module], x: Tensor, memory: Tensor | None) -> Iterator[float]:
    yield time.process_time()
    for layer in layers:
        x = layer(x, None) if memory is None else layer(x, None, memory, None)
    gradient = torch.ones_like(x)
    yield time.process_time()
    x.backward(gradient)
    yield time.process_time()
