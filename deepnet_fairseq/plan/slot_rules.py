"""What the modules in a method's slots keep for the backward pass, by class; any other keeps its input."""

from __future__ import annotations

from functools import singledispatch

from fairseq.modules import LayerNorm
from torch import nn

from ..methods.dlcl import Combination
from ..methods.rezero import Gate, Narrow
from ..transformer.slots import Multiply, Residual, Shift
from .tape import FLOAT32, Tape, Value


@singledispatch
def apply(module: nn.Module, tape: Tape, x: Value) -> Value:
    """A slot of a branch or the end of a stack: x -> what it gives."""
    tape.keep(x)
    return tape.like(x)


@apply.register
def _(module: nn.Identity, tape, x):
    return x


@apply.register(nn.LayerNorm)
@apply.register(type(LayerNorm(1)))
def _(module, tape, x):
    return tape.norm(x)


@apply.register
def _(module: nn.Sequential, tape, x):
    for part in module:
        x = apply(part, tape, x)
    return x


@apply.register
def _(module: Shift, tape, x):
    return tape.like(x)


@apply.register
def _(module: Multiply, tape, x):
    tape.keep(tape.widened(x))
    return tape.like(x)


@apply.register
def _(module: Narrow, tape, x):
    return x if x.itemsize == tape.itemsize else tape.like(x, tape.itemsize)


@singledispatch
def merge(residual: nn.Module, tape: Tape, x: Value, f: Value) -> Value:
    """A shortcut x and its branch f -> their sum."""
    tape.keep(x, f)
    return tape.like(x)


@merge.register
def _(residual: Residual, tape, x, f):
    if any(parameter.requires_grad for parameter in residual.parameters()):  # of the shortcut
        tape.keep(x)
    return tape.like(x)


@merge.register
def _(residual: Gate, tape, x, f):
    tape.keep(tape.widened(f))
    return tape.like(x, FLOAT32) if residual.widen else tape.like(x)


@singledispatch
def mix(mixer: nn.Module | None, tape: Tape, y: Value, history: list[Value]) -> Value:
    """A stack's mixer: the output of a layer -> what the next one reads."""
    tape.keep(y)
    return tape.like(y)


@mix.register
def _(mixer: None, tape, y, history):
    return y


@mix.register
def _(mixer: Combination, tape, y, history):
    norm = mixer.norms[len(history)]
    history.append(apply(norm, tape, y) if mixer.norm_first else y)
    window = history[-mixer.weights.window :]
    tape.keep(*window)
    x = tape.like(y)
    return x if mixer.norm_first else apply(norm, tape, x)
