"""How many parameters a model has, exactly, without building it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from .blueprint import Blueprint, blueprint
from .setting import Setting


@dataclass(frozen=True)
class Parameters:
    """Numbers of parameters.

    embeddings: tokens and positions, a shared matrix once; encoder, decoder: layers and what stands around them, 0 for
    a stack that the model does not have; output: what makes scores of features, but for what is an embedding;
    trainable: those that are trained; tensors: how many hold them; largest: numbers of the largest; weight_bytes: of
    all.
    """

    embeddings: int
    encoder: int
    decoder: int
    output: int
    trainable: int
    tensors: int
    largest: int
    weight_bytes: int

    @property
    def total(self) -> int:
        """All parameters of the model, trained or not."""
        return self.embeddings + self.encoder + self.decoder + self.output

    def as_dict(self) -> dict[str, int]:
        """For JSON; numbers of parameters, weight_bytes in bytes."""
        return asdict(self) | {"total": self.total}


def count(setting: Setting) -> Parameters:
    """The parameters of the setting's model: exact, from modules on torch's meta device."""
    stacks = [blueprint(setting, stack) for stack in setting.stacks]
    trainable = weight_bytes = tensors = largest = 0
    for stack in stacks:
        for modules in _parts(stack):
            trainable += stack.parameters(modules, trainable=True)
            weight_bytes += stack.weights(modules)
            sizes = [p.numel() for p in {p: None for module in modules for p in module.parameters()}]
            tensors, largest = tensors + len(sizes), max(largest, *sizes, 0)
    bodies = {stack.name: _body(stack) for stack in stacks}
    embeddings = sum(stack.parameters([*stack.tokens, *stack.embedding]) for stack in stacks)
    output = sum(stack.parameters([*stack.tokens, *stack.output]) - stack.parameters(stack.tokens) for stack in stacks)
    encoder, decoder = (bodies.get(name, 0) for name in ("encoder", "decoder"))
    return Parameters(embeddings, encoder, decoder, output, trainable, tensors, largest, weight_bytes)


def _parts(stack: Blueprint):
    """Lists of modules that make up a stack; parameters are shared inside of one at most."""
    yield from ([layer] for layer in stack.every_layer())
    yield from ([*stack.tokens, *stack.output], stack.embedding, stack.mixer_and_ending)


def _body(stack: Blueprint) -> int:
    layers = sum(stack.parameters([layer]) for layer in stack.every_layer())
    return layers + stack.parameters(stack.mixer_and_ending)
